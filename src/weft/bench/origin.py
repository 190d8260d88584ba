"""Where a figure comes from: machine, driver, versions and commit."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import weft


def commit() -> str:
    """The short hash of the commit; with + and a hash of the sources where these differ from it."""
    package = Path(weft.__file__).parent
    short = _output("git", "-C", str(package), "rev-parse", "--short", "HEAD")
    if short and not _output("git", "-C", str(package), "status", "--porcelain", "--", "."):
        return short
    digest = sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{short}+{digest.hexdigest()[:7]}"


def machine(device: str) -> dict[str, str]:
    """machine, threads, driver and versions, as columns of a row. Imports torch."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if device == "cuda" else ""
    return {
        "machine": name, "threads": str(torch.get_num_threads()), "driver": driver.partition("\n")[0],
        "python": platform.python_version(), "torch": torch.__version__, "triton": _version("triton"),
    }  # fmt: skip


def _processor() -> str:
    info, name = Path("/proc/cpuinfo"), platform.processor()
    if info.exists():
        models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0] if models else name
    return f"{name or platform.machine()}, {os.cpu_count()} cores"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    """Standard output of a command, empty if it fails or does not exist."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
