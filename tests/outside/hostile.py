"""Texts that paint, hide, reorder or break: names as files, cards and functions may have them."""

TITLE = "\x1b]0;owned\x07"  # the title of the window
CLEAR = "\x1b[2J\x1b[H"
HIDDEN = "\x1b[8m"
TEXTS = (
    TITLE, CLEAR, HIDDEN, "\x9b31m", "a\rb", "a\x08b", "\x00", "\x7f", "\u202egnp.exe", "\u2066x\u2069", "\u200b",
    "\ufeff", "\ud800", "\u2028", "a\nb", "\t", "<script>alert(1)</script>", "&amp;'\"", "$\\frac{",
    "%s{0}", "x" * 100_000,
    "é漢字",
)  # fmt: skip


def harmless(text):
    """Whether a terminal shows a text as it is: lines of printable characters, which UTF-8 can say."""
    return all(one.isprintable() for one in text.split("\n")) and text == text.encode().decode()
