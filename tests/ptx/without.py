"""PTX with something left out, to see that a test notices."""

import re

WAIT = re.compile(r"\{\s*\.reg \.pred complete;\s*waitLoop:.*?waitLoop;\s*\}", re.S)


def without_waits(before, text):
    """Waits that are followed by `before`, and soon, are left out."""
    found = [wait for wait in WAIT.finditer(text) if re.match(before, text[wait.end() :], re.S)]
    assert found
    for wait in reversed(found):
        text = text[: wait.start()] + text[wait.end() :]
    return text


def without_every(what, text):
    """All lines with it are left out."""
    assert what in text
    return "".join(line for line in text.splitlines(keepends=True) if what not in line)
