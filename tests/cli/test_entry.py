"""The ways into weft: `python -m weft`, and the attributes that are loaded when they are first asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft import cli
from weft.errors import install_line

LATE = ("attention", "plan", "explain", "recognize")


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)


def test_python_dash_m_is_the_command():
    done = python("-m", "weft", "show", "causal()", "--size", "8")
    assert done.returncode == 0 and "36 pairs live" in done.stdout
    assert weft.__version__ in python("-m", "weft", "--version").stdout


def test_python_dash_m_refuses_as_the_command_does():
    done = python("-m", "weft", "show", "causal(")
    assert done.returncode == 2 and "wrong:" in done.stderr and "Traceback" not in done.stderr
    assert "python -m weft" in python("-m", "weft", "shwo").stderr


@pytest.mark.more
def test_what_is_loaded_late_is_kept():
    pytest.importorskip("torch")
    code = (
        f"import weft; assert not set({LATE!r}) & set(vars(weft))\n"
        f"for name in {LATE!r}: assert getattr(weft, name) is vars(weft)[name]\n"
        "import weft.torch, weft.recognition as home\n"
        "assert weft.attention is weft.torch.attention and weft.recognize is home.recognize\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", LATE[:3])
def test_without_torch_the_extra_is_named_every_time(name):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import weft\n"
        "for _ in range(2):\n"
        f"    try: weft.{name}\n"
        "    except ModuleNotFoundError as missing: print(missing)\n"
    )
    assert python("-c", code).stdout == f"weft.{name} needs torch: {install_line('torch')}\n" * 2


def test_what_is_not_there():
    with pytest.raises(AttributeError, match="'weft' has no attribute 'atention'"):
        _ = weft.atention


def test_commands_read_no_environment_themselves():
    sources = Path(cli.__file__).parent.glob("*.py")
    assert [path.name for path in sources if "environ" in path.read_text(encoding="utf-8")] == []
