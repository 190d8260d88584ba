"""`weft doctor`: this machine, what is installed, what each backend can run here, and what to install."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import weft
from weft.cli.cache import amount, cache_facts
from weft.cli.say import say
from weft.errors import UnsupportedKernel, install_line
from weft.kernels.backend import BACKENDS, Reason
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.store import opened

PACKAGES = ("numpy", "torch", "triton", "jax", "matplotlib", "transformers")
DTYPES = {"cpu": "float32", "cuda": "bfloat16"}  # of the problem that backends are asked about


@dataclass
class Torch:
    """What torch says of itself; error: why it cannot be imported, None if it can."""

    error: str | None = None
    build: str = ""  # "CUDA 13.0", "ROCm 7.0", "CPU only"
    gpus: list[str] = field(default_factory=list)
    threads: int = 0


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> None:
    """Say what this machine can run, why not what it cannot, and what to install."""
    facts = examine()
    say(json.dumps(facts, indent=2) if as_json else _report(facts))


def examine() -> dict[str, Any]:
    """All findings; never fails for what is missing."""
    torch = look_at_torch()
    versions = {"weft": weft.__version__, **{name: _version(name) for name in PACKAGES}}
    driver = _nvidia()
    devices = ["cpu", *(["cuda"] if torch.gpus else [])]
    backends = {b.name: {device: _reasons(b, device, torch) for device in devices} for b in BACKENDS}
    return {
        "machine": {
            "system": platform.platform(terse=True), "processor": _processor(), "cores": _cores(),
            "threads": torch.threads, "memory_gib": _memory(), "gpus": torch.gpus or driver["gpus"],
            "driver": driver["driver"],
        },
        "python": platform.python_version(),
        "versions": versions,
        "others": others(),
        "torch": {"build": torch.build, "error": torch.error},
        "triton_interpreter": interpreted(),
        "cache": cache_facts(opened()),
        "backends": {
            name: {device: [{"why": r.why, "cure": r.cure} for r in found] for device, found in by.items()}
            for name, by in backends.items()
        },
        "jax": look_at_jax(),
        "install": _cures(versions, torch, bool(driver["gpus"])),
    }  # fmt: skip


def others() -> list[str]:
    """Other packages that `import weft` may find: files on the import path, and a distribution of that name."""
    mine = Path(weft.__file__).resolve().parent
    folders = [Path(entry or ".").resolve() for entry in sys.path]
    # the folder of a script is on the path too, and has a file "weft", which is no module
    files = dict.fromkeys(folder / name for folder in folders for name in ("weft/__init__.py", "weft.py"))
    places = (at.parent if at.name == "__init__.py" else at for at in files if at.is_file())
    found = [str(at) for at in places if at != mine]
    try:
        about = metadata("weft")  # an older installation of this one has that name, too
    except PackageNotFoundError:
        return found
    ours = any(name in about and about[name] == "The weft authors" for name in ("Author", "Author-email"))
    return found if ours else [*found, f"the distribution weft {about['Version']}"]


def look_at_torch() -> Torch:
    """Imports torch, which may be missing or broken in many ways."""
    try:
        torch = import_module("torch")
        if torch.version.cuda:
            build = f"CUDA {torch.version.cuda}"
        else:
            build = f"ROCm {torch.version.hip}" if torch.version.hip else "CPU only"
        found = Torch(None, build, threads=torch.get_num_threads())
        if torch.cuda.is_available():
            found.gpus = [_gpu(torch, i) for i in range(torch.cuda.device_count())]
    except Exception as error:  # a broken library raises whatever it likes
        return Torch(f"{type(error).__name__}: {error}")
    return found


def look_at_jax() -> dict[str, Any] | None:
    """What `weft.jax.facts` says, or the error that importing JAX raises; None where it is not installed."""
    if find_spec("jax") is None:
        return None
    try:
        from weft.jax.facts import facts

        return facts()
    except Exception as error:  # as above
        return {"error": f"{type(error).__name__}: {error}"}


def _gpu(torch: Any, index: int) -> str:
    one = torch.cuda.get_device_properties(index)
    return f"{one.name}, compute capability {one.major}.{one.minor}, {one.total_memory / 2**30:.0f} GiB"


def _reasons(backend: Any, device: str, torch: Torch) -> list[Reason]:
    """Why a backend cannot run a small problem on a device; a torch that is installed may still be broken."""
    problem = Problem(1, 1, 1, 128, 128, 64, 64, DTYPES[device], device)
    broken = torch.error is not None and find_spec("torch") is not None
    reasons = [Reason(f"torch cannot be used: {torch.error}", install_line("torch"))] if broken else []
    reasons += backend.reasons_against(problem)
    if not reasons and device == "cuda" and torch.gpus:
        reasons += _against_card(backend, device)
    return reasons


def _against_card(backend: Any, device: str) -> list[Reason]:
    """Why a backend has no kernels for the card at hand."""
    try:
        backend.card(device)
    except UnsupportedKernel as error:
        return [Reason(error.wrong, error.cure)]
    except Exception as error:  # as above
        return [Reason(f"the card cannot be asked: {type(error).__name__}: {error}", "mend the driver, or Triton")]
    return []


def _cures(versions: dict[str, str | None], torch: Torch, has_gpu: bool) -> list[str]:
    """What to install for what is missing."""
    cures = []
    if torch.error is not None:
        cures.append(f"{install_line('torch')}: attention itself (patterns, plans and pictures need only numpy)")
    elif has_gpu and torch.build == "CPU only":
        cures.append("a build of torch for this machine's GPU: the one installed is for CPUs only")
    if versions["triton"] is None and (has_gpu or torch.gpus):
        cures.append(f"{install_line('gpu')}: kernels for this machine's GPU")
    if versions["matplotlib"] is None:
        cures.append(f"{install_line('plot')}: pictures (weft show --out FILE.png)")
    return cures


# ---- the machine -----------------------------------------------------------------------------------------------------
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    return _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> float | None:
    kib = _field("/proc/meminfo", "MemTotal").split()
    return round(int(kib[0]) / 2**20, 1) if kib else None


def _field(path: str, name: str) -> str:
    """The first value of a `name: value` file, empty without one."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _nvidia() -> dict[str, Any]:
    """The driver and the GPUs that it knows, even where torch cannot use them."""
    found: dict[str, Any] = {"driver": None, "gpus": []}
    if shutil.which("nvidia-smi") is None:
        return found
    asked = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return found
    rows = [line.split(", ", 1) for line in done.stdout.splitlines() if ", " in line] if done.returncode == 0 else []
    return {"driver": rows[0][0], "gpus": [name for _, name in rows]} if rows else found


# ---- words -----------------------------------------------------------------------------------------------------------
def _report(facts: dict[str, Any]) -> str:
    machine, torch = facts["machine"], facts["torch"]
    cores = f"{machine['cores']} cores" + (f", torch threads: {machine['threads']}" if machine["threads"] else "")
    memory = f", {machine['memory_gib']} GiB" if machine["memory_gib"] else ""
    rows = [
        ("machine", f"{machine['processor']}, {cores}{memory}"),
        ("system", machine["system"]),
        *(("gpu", gpu) for gpu in machine["gpus"] or ["none found"]),
        *([("driver", machine["driver"])] if machine["driver"] else []),
        ("python", facts["python"]),
        *((name, _said(name, found, torch)) for name, found in facts["versions"].items()),
        ("cache", amount(facts["cache"])),
        *(
            ("other weft", f"{one}: not this project; pip uninstall weft, or change the path")
            for one in facts["others"]
        ),
    ]
    lines = [f"{name:<13}{text}" for name, text in rows] + ["", "backends"]
    for name, devices in facts["backends"].items():
        for device, reasons in devices.items():
            where = "the CPU" if device == "cpu" else "the GPU"
            lines.append(f"  {name:<8} on {where}: {'no' if reasons else 'ready'}")
            lines += [f"      {reason['why']}; {reason['cure']}" for reason in reasons]
    lines += _of_jax(facts["jax"])
    if facts["triton_interpreter"]:
        lines.append("  note     TRITON_INTERPRET=1: kernels are interpreted, slowly")
    lines += [
        "",
        "to install",
        *(f"  {cure}" for cure in facts["install"] or ["nothing: all that weft uses here is here"]),
    ]
    return "\n".join(lines)


def _of_jax(found: dict[str, Any] | None) -> list[str]:
    """The implementations of weft.jax, as backends are told."""
    if found is None:
        return []
    if "error" in found:
        return ["", "from JAX", f"  it cannot be used: {found['error']}"]
    lines = ["", "from JAX"]
    for name, reason in found["implementations"].items():
        lines.append(f"  {name:<8} on {found['platform']}: {'no' if reason else 'ready'}")
        lines += [f"      {reason['why']}; {reason['cure']}"] if reason else []
    return lines


def _said(name: str, found: str | None, torch: dict[str, Any]) -> str:
    """A version, and of torch for what it was built, or why it does not work."""
    if found is None:
        return "not installed"
    more = torch["error"] or torch["build"] if name == "torch" else ""
    return f"{found} ({more})" if more else found
