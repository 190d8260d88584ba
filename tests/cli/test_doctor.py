"""`weft doctor`: findings with all, some or none of the frameworks there."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import weft
from weft.cli import doctor, main
from weft.errors import UnsupportedKernel, install_line
from weft.kernels.backend import BACKENDS, TritonBackend


def run(*args):
    done = CliRunner().invoke(main, ["doctor", *args], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_json():
    said = json.loads(run("--json"))
    assert said["versions"]["weft"] == weft.__version__ and said["versions"]["numpy"]
    assert set(said["backends"]) == {backend.name for backend in BACKENDS}
    assert said["machine"]["cores"] >= 1 and said["machine"]["processor"]


def test_here_the_cpu_is_ready():
    pytest.importorskip("torch")
    assert json.loads(run("--json"))["backends"]["cpu"]["cpu"] == []
    assert "cpu      on the CPU: ready" in run()


def test_another_weft_on_the_path_is_told(tmp_path, monkeypatch):
    (tmp_path / "weft").mkdir()
    (tmp_path / "weft" / "__init__.py").touch()
    assert doctor.others() == []
    monkeypatch.syspath_prepend(str(tmp_path))
    assert json.loads(run("--json"))["others"] == [str(tmp_path / "weft")]
    assert f"other weft   {tmp_path / 'weft'}: not this project" in run()


def test_the_command_beside_the_interpreter_is_no_other_weft(tmp_path, monkeypatch):
    """Python puts the folder of a script on the path, where the command `weft` is a file."""
    (tmp_path / "weft").write_text("#!python")
    before = doctor.others()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor.others() == before
    (tmp_path / "weft.py").touch()
    assert doctor.others() == [str(tmp_path / "weft.py"), *before]


def test_a_distribution_called_weft_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "metadata", lambda name: {"Author": "Somebody", "Author-email": None, "Version": "9.1"})
    assert doctor.others() == ["the distribution weft 9.1"]
    monkeypatch.setattr(doctor, "metadata", lambda name: {"Author": "The weft authors", "Author-email": None})
    assert doctor.others() == []


@pytest.mark.parametrize("missing", [("torch",), ("triton",), ("torch", "triton", "jax", "matplotlib")])
def test_without_frameworks(missing):
    """None in sys.modules makes an import fail, as where a package is not installed."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}));"
        "from importlib import metadata; version = metadata.version\n"
        f"def hidden(name):\n    if name in {missing!r}: raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "metadata.version = hidden\n"
        "from weft.cli import main; main(['doctor', '--json'])"
    )
    said = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert all(said["versions"][name] is None for name in missing)
    why = {name: [reason["why"] for reason in found["cpu"]] for name, found in said["backends"].items()}
    assert why["cpu"] == ["torch is not installed"] * ("torch" in missing)
    assert ("torch is not installed" in why["triton"]) == ("torch" in missing)
    assert any(install_line("torch") in cure for cure in said["install"]) == ("torch" in missing)
    assert any(install_line("plot") in cure for cure in said["install"]) == ("matplotlib" in missing)
    assert ("Triton is not installed" in why["triton"]) == ("triton" in missing)


def test_a_torch_that_breaks_on_import(monkeypatch):
    pytest.importorskip("torch")

    def broken(name):
        raise OSError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr(doctor, "import_module", broken)
    said = run()
    assert "libcudart.so" in said and "cpu      on the CPU: no" in said and install_line("torch") in said


class Properties:
    name, major, minor, total_memory = "Some GPU", 9, 0, 80 * 2**30


def fake_torch(gpu, cuda="13.0", hip=None):
    class Cuda:
        is_available = staticmethod(lambda: gpu)
        device_count = staticmethod(lambda: 1)
        get_device_properties = staticmethod(lambda index: Properties)

    class Torch:
        version = type("Version", (), {"cuda": cuda, "hip": hip})
        get_num_threads = staticmethod(lambda: 4)

    Torch.cuda = Cuda
    return lambda name: Torch


def test_with_a_gpu(monkeypatch):
    monkeypatch.setattr(doctor, "import_module", fake_torch(True))
    said = json.loads(run("--json"))
    assert said["machine"]["gpus"] == ["Some GPU, compute capability 9.0, 80 GiB"]
    assert said["torch"]["build"] == "CUDA 13.0"
    assert [reason["why"] for reason in said["backends"]["cpu"]["cuda"]] == ["the tensors are on cuda"]
    assert "on the GPU" in run()


@pytest.mark.parametrize("error", [UnsupportedKernel("a T4", "it is old", "buy"), RuntimeError("no libcuda")])
def test_a_card_without_kernels(monkeypatch, error):
    def card(self, device):
        raise error

    pytest.importorskip("triton")
    monkeypatch.setattr(doctor, "import_module", fake_torch(True))
    monkeypatch.setattr(TritonBackend, "card", card)
    (reason,) = json.loads(run("--json"))["backends"]["triton"]["cuda"]
    assert reason["why"] in ("it is old", "the card cannot be asked: RuntimeError: no libcuda")
    assert reason["cure"] in ("buy", "mend the driver, or Triton")


def test_a_gpu_that_torch_cannot_use(monkeypatch):
    monkeypatch.setattr(doctor, "import_module", fake_torch(False, cuda=None))
    monkeypatch.setattr(doctor, "_nvidia", lambda: {"driver": "570.1", "gpus": ["Some GPU"]})
    said = run()
    assert "Some GPU" in said and "570.1" in said and "for CPUs only" in said and "(CPU only)" in said


def test_a_rocm_build(monkeypatch):
    monkeypatch.setattr(doctor, "import_module", fake_torch(False, None, "7.0"))
    assert "ROCm 7.0" in run()


@pytest.mark.parametrize(
    ("status", "printed", "found"),
    [
        (0, "570.1, One GPU\n570.1, Other, GPU\n", {"driver": "570.1", "gpus": ["One GPU", "Other, GPU"]}),
        (9, "NVIDIA-SMI has failed, no driver\n", {"driver": None, "gpus": []}),
        (0, "", {"driver": None, "gpus": []}),
    ],
)
def test_what_the_driver_says(monkeypatch, status, printed, found):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, status, printed, ""))
    assert doctor._nvidia() == found
