"""Sizes that keep the sources readable, and names that must not appear in any file."""

import ast
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "src" / "weft").rglob("*.py"))

MODULE_LINES = 450
FUNCTION_LINES = 60
PARAMETERS = 8

# "module:function" -> why it may take more parameters than PARAMETERS.
MANY_PARAMETERS = {
    "weft.torch.attention:attention": "the public face: every option by name",
    "weft.torch.key_cache:decode_attention": "the public face: every option by name",
    "weft.torch.varlen:varlen_attention": "as FlashAttention's, whose order of tensors is known",
    "weft.distributed.plan:plan": "the public face: a layer, by name",
    "weft.torch.distributed.call:attention": "the public face: every option by name",
    "weft.torch.distributed.decode:decode_attention": "the public face: every option by name",
    "weft.jax.attention:attention": "the public face: every option by name",
    "weft.jax.distributed:distributed_attention": "the public face: every option by name",
    "weft.integrations.natten.functional:operation": "the signature of NATTEN's na1d, na2d and na3d",
    "weft.integrations.natten.functional:attention": "the signature of NATTEN's attention",
    "weft.integrations.natten.modules:__init__": "the signature of NATTEN's modules",
    "weft.kernels.gpu.gemm.product:product": "a kernel, which is launched with flat arguments",
    "weft.kernels.gpu.gemm.projections:projections": "a kernel, which is launched with flat arguments",
    "weft.jax.dot_product:dot_product_attention": "the signature of jax.nn.dot_product_attention",
    "weft.integrations.flex.call:flex_attention": "the signature of FlexAttention's",
    "weft.integrations.flex.create:create_block_mask": "the signature of FlexAttention's",
}

# Put together, so that this file does not contain them: paths of one machine, hosts that only a user may choose.
BANNED = ["/" + "work" + "/", *(f"{name}.org" for name in ("pypi", "pythonhosted", "download.pytorch"))]


@cache
def functions():
    """(name as in MANY_PARAMETERS, lines, parameters) of every function in the package."""
    found = []
    for path in MODULES:
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found += [
            (f"{module}:{x.name}", x.end_lineno - x.lineno + 1, parameter_count(x))
            for x in nodes if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)
        ]  # fmt: skip
    return found


def parameter_count(function):
    given = function.args
    named = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in named if name not in ("self", "cls")])


def repository_files():
    """What git tracks or would track; a copy without git is not a repository, and is not looked at."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout")
    listed = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]


def test_there_is_something_to_measure():
    assert MODULES


def test_modules_are_short():
    lines = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > MODULE_LINES} == {}


def test_functions_are_short():
    assert [(name, lines) for name, lines, _ in functions() if lines > FUNCTION_LINES] == []


def test_functions_take_few_parameters():
    too_many = [(name, count) for name, _, count in functions() if count > PARAMETERS]
    # equality, so that an exception no longer needed is taken off the list
    assert {name for name, _ in too_many} == set(MANY_PARAMETERS), too_many


def test_no_file_names_a_machine_or_a_registry():
    found = [
        (str(path.relative_to(ROOT)), banned)
        for path in repository_files()
        for banned in BANNED
        if banned.encode() in path.read_bytes()
    ]
    assert found == []
