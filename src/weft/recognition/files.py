"""Masks in .npy files: memory-mapped, never unpickled."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.outside import check_file
from weft.recognition.mask import as_array

MAGIC = b"\x93NUMPY"


def load_mask(path: Any) -> Any:
    """The boolean mask of a .npy file, memory-mapped read-only; InputError if the file is anything else."""
    path = Path(path)
    asked = f"load_mask({str(path)!r})"
    try:
        check_file(path)
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except OSError as error:
        raise InputError(asked, f"it cannot be read: {error.strerror}", "pass the path of a .npy file") from None
    if begin != MAGIC:
        raise InputError(asked, _other(begin), "write the mask with numpy.save(path, mask.astype(bool))")
    return as_array(_mapped(path, asked))


def _other(begin: bytes) -> str:
    if begin[:1] == b"\x80":
        return "it is a pickle, which could run any code when loaded, and is refused"
    return "it is a .npz archive of several arrays" if begin[:2] == b"PK" else "it is no .npy file"


def _mapped(path: Path, asked: str) -> Any:
    """The array of a file that says it is one."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, pickle.UnpicklingError) as error:
        reason = str(error)
    if "object" in reason.lower():
        raise InputError(
            asked, "it holds Python objects, which only unpickling could load, and that is refused",
            "write the mask with numpy.save(path, mask.astype(bool))",
        )  # fmt: skip
    try:
        array = np.load(path, allow_pickle=False)  # an array without elements cannot be mapped
        if array.size == 0:
            return array
    except (ValueError, EOFError, OSError, SyntaxError, MemoryError, pickle.UnpicklingError):
        pass  # a header may tell of more than there is
    raise InputError(asked, f"its data or header is damaged or cut short ({reason})", "write the file again")
