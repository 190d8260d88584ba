"""The text of a kernel's entry: a module with one jit function, which names arguments and calls fragments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

IMPORTS = {
    "triton": "import triton\nimport triton.language as tl\n", "gluon": "from triton.experimental import gluon\n",
}  # fmt: skip
WIDTH = 100  # columns of a line of arguments


def module(
    symbol: str, about: str, helpers: str, arguments: Sequence[str], body: Iterable[str], language: str = "triton"
) -> str:  # fmt: skip
    """The source of a module with one kernel.

    symbol: the kernel's name, which a profiler shows; the module also has the kernel as `kernel`. about: the module's
    docstring. helpers: imports of what the body calls, with blank lines after them. body: statements, not indented.
    language: "triton" or "gluon".
    """
    names = "".join(f"    {line}\n" for line in _wrapped(arguments))
    lines = "\n".join(indented(body))
    function = f"@{language}.jit\ndef {symbol}(\n{names}):\n{lines}"
    return f'"""{about}"""\n\n{IMPORTS[language]}\n{helpers}\n{function}\n\n\nkernel = {symbol}\n'


def indented(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a block."""
    for line in lines:
        yield "    " + line if line else line


def _wrapped(names: Sequence[str]) -> Iterator[str]:
    line = ""
    for name in names:
        if len(line) + len(name) > WIDTH:
            yield line.rstrip()
            line = ""
        line += f"{name}, "
    yield line.rstrip()
