"""Every exception that weft raises on purpose.

Each one carries three sentences: what was asked, what is wrong with it, and what to do about it.
"""

from __future__ import annotations

from weft.outside import lines

DISTRIBUTION = "weft-attention"  # on the package index, where another project is called weft
RELEASED = False  # until it is there, anybody may register that name


def install_line(extra: str) -> str:
    """What installs weft with an extra, for a cure: of a checkout, until weft is on the package index.

    >>> install_line("gpu")
    "pip install '.[gpu]' in a checkout of weft"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'" if RELEASED else f"pip install '.[{extra}]' in a checkout of weft"


class WeftError(Exception):
    """Base of all of weft's exceptions."""

    def __init__(self, asked: str, wrong: str = "", cure: str = "") -> None:
        self.asked, self.wrong, self.cure = asked, wrong, cure
        self.args = (asked, wrong, cure)  # not by super().__init__, where torch.compile would lose the text

    def __str__(self) -> str:
        said = [self.asked]
        if self.wrong:
            said.append(f"  wrong: {self.wrong}")
        if self.cure:
            said.append(f"  do:    {self.cure}")
        return lines("\n".join(said))


class PatternError(WeftError, ValueError):
    """A pattern was built or combined with arguments that mean nothing."""


class ArgumentError(PatternError, TypeError):
    """A function of the library got arguments that it does not take, or a pattern was joined with something else."""


class AlignmentError(PatternError):
    """A position-dependent pattern meets M != N and nobody said how queries and keys line up."""


class LengthError(PatternError):
    """A pattern that knows its own length was asked for at another one."""


class IrregularError(PatternError):
    """A pattern has no affine form and is too large to be written down pair by pair."""


class InputError(WeftError, ValueError):
    """q, k or v have a wrong rank, head count, length, dtype or device."""


class OptionError(WeftError, ValueError):
    """An option of attention has a value that means nothing."""


class UnsupportedError(WeftError, NotImplementedError):
    """A feature is refused by name."""


class UnsupportedKernel(UnsupportedError):
    """No backend, or not the named one, can run this problem; the reasons are listed."""


class VerificationError(WeftError):
    """A plan does not compute what its pattern says."""


class RelabelError(WeftError, ValueError):
    """A diagram does not fit together, or a partition of it is illegal: operation, axis and level are named."""
