"""Texts of kernels: entries, some of them as golden files; and what their fragments come to, without dead branches."""

import os
import re
from dataclasses import replace
from difflib import unified_diff
from itertools import chain
from pathlib import Path

import pytest
from tests.tiers import every
from triton._C.libtriton import ir
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from weft.kernels.gpu.compile import compiler, load
from weft.kernels.gpu.compile.emit import emit
from weft.kernels.gpu.compile.listing import fragments
from weft.kernels.gpu.split_kv import source as split_kv
from weft.kernels.gpu.tile.config import config_of
from weft.settings import interpreted

from .resources import TARGETS
from .specs import BESIDE, CALLS, SHORT, gradients_of, specs_of, specs_towards
from .test_rowwise import CALLS as ROW_CALLS

GOLDEN = Path(__file__).with_name("golden")
WRITE = "WEFT_GOLDEN=write python -m pytest tests/triton/test_source.py"
# file -> (call, direction, which of its kernels there)
CHOSEN = {
    "forward_window": ("window", "forward", 0),
    "keys_by_groups": ("window, by groups", "keys", 0),
    "forward_by_groups": ("two terms, by groups", "forward", 0),
}
WALKS = {"fused": (SHORT, 0), "sparse_keys": (BESIDE, 1), "reduce_partials": (BESIDE, 2)}
SPLIT_KV = {
    "split_kv": ("window, 64, all options", 0), "split_kv_alone": ("two terms", 1), "combine": ("window", 2),
    "split_kv_of_a_cache": ("counts from the device", 0), "split_kv_of_pages": ("pages of 16", 0),
}  # fmt: skip
# Files that say how a source differs from that of "split_kv".
DIFFERENCES = "split_kv_alone", "split_kv_of_a_cache", "split_kv_of_pages"
EVERY = [replace(call, one_kernel=one) for call in (*CALLS.values(), SHORT, BESIDE) for one in (False, True)]
SPECS = {spec.name: spec for spec in chain.from_iterable(map(specs_of, EVERY))}


def chosen(name):
    if name in WALKS:
        call, which = WALKS[name]
        return gradients_of(call)[which]
    call, direction, which = CHOSEN[name]
    return specs_towards(CALLS[call], direction)[which]


def text_of(name):
    if name in SPLIT_KV:
        call, which = SPLIT_KV[name]
        return split_kv.source_of(ROW_CALLS[call].specs()[which]).text
    return emit(chosen(name))


@pytest.mark.parametrize("name", [*CHOSEN, *WALKS, *SPLIT_KV])
def test_golden_source(name):
    path, text = GOLDEN / f"{name}.py", text_of(name)
    if name in DIFFERENCES:
        lines = unified_diff(text_of("split_kv").splitlines(True), text.splitlines(True), "split_kv", name, n=0)
        path, text = path.with_suffix(".diff"), "".join(lines)
    if os.environ.get("WEFT_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"the emitted source is another one. If it should be: {WRITE}"


def test_names_tell_sources_apart():
    """But for warps and stages, which the docstring of a source has."""
    of_name = {}
    for spec in chain.from_iterable(map(specs_of, EVERY)):
        _, _, body = emit(spec).split('"""')
        assert of_name.setdefault(spec.name, body) == body, f"two kernels are called {spec.name}"


@pytest.mark.parametrize("name", SPECS)
def test_readable(name):
    source = emit(SPECS[name])
    compile(source, name, "exec")
    lines = source.splitlines()
    long = [line for line in lines if len(line) > 120]
    assert not long, f"{len(long)} lines are longer than 120: {long[0]}"
    assert not [line for line in lines if line != line.rstrip() or "\t" in line]
    assert emit(SPECS[name]) == source, "emitted twice, it is another source"


LISTED = {
    "forward of a window": ("window", "forward", 0),
    "dQ of documents": ("documents", "dq", 0),
    "dK and dV of a plane": ("2-D", "keys", 0),
    "dK and dV of listed tokens": ("listed tokens", "keys", 0),
    "forward of blocks": ("random blocks", "forward", 0),
    "delta": ("window", "one kernel", 0),
    "all gradients": ("window", "one kernel", 1),
    "forward of three terms": ("three terms", "forward", 0),
}
FAMILY = {name: spec for name, spec in SPECS.items() if not spec.groups and spec.direction != "delta"}
MASK = "weft.kernels.gpu.ops.mask"


def fragments_of(spec, **constants):
    """(module, name) -> text of each fragment of a kernel, as it is compiled; constants: beside its configuration."""
    found = fragments(emit(spec), {"C": config_of(spec), **constants})
    return {(module, re.search(r"def (\w+)", text)[1]): text for module, text in found}


@pytest.mark.parametrize("name", [name for name, spec in FAMILY.items() if spec.rank > 1])
def test_grids_are_masked_by_a_product(name):
    """A box on a grid costs one more product, and no comparison of its pairs but where lists ask for it."""
    spec = FAMILY[name]
    found = fragments_of(spec, KIND="either")
    (home,) = {module for module, _ in found if module.startswith("weft.kernels.gpu.tile.") and "wd" in module}
    steps = [text for (module, _), text in found.items() if module == home]
    assert sum(len(re.findall(r"\bpenalty\(", text)) for text in steps) == 1
    masks = {part for module, part in found if module == MASK and part.startswith("_mask")}
    assert masks == ({"_mask_edge"} if spec.listed else set())


@pytest.mark.parametrize("name", every(10, [name for name, spec in FAMILY.items() if spec.rank == 1]))
def test_full_tiles_have_no_mask(name):
    """Only masks look at the bounds of rows, and in a loop over full tiles there are none."""
    spec = FAMILY[name]
    looks = {part for (_, part), text in fragments_of(spec).items() if re.search(r"visit\.(low|high)", text)}
    assert looks and all(part.startswith("_mask") for part in looks)
    assert not [part for _, part in fragments_of(spec, KIND="full") if part.startswith("_mask")]
    if not spec.apart:
        either = fragments_of(spec, KIND="either")
        assert {"_mask_edge_if_any", "_mask_sides"} & {part for _, part in either}


@pytest.mark.parametrize("name", every(4, LISTED))
def test_a_listing_names_what_triton_compiles(name):
    """Each function of weft that Triton makes for a kernel is in its listing, under its module."""
    if interpreted():
        pytest.skip("Triton interprets, and compiles nothing")
    call, direction, which = LISTED[name]
    spec = specs_towards(CALLS[call], direction)[which]
    made = set(re.findall(r"@\"?(weft\.[\w.]+?)__", first_language(load.source_of(spec), TARGETS["sm_90"])))
    listed = {f"{module}.{part}" for module, part in fragments_of(spec)}
    assert made and made <= listed
    assert len(listed - made) <= 2  # what the kind of a loop rules out


def first_language(source, target):
    """A kernel as Triton has it before it is optimised."""
    backend = make_backend(target)
    options, context = backend.parse_options({"num_warps": source.warps}), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    described = ASTSource(compiler.module_of(source).kernel, dict(source.types), {}, {})
    helpers = backend.get_codegen_implementation(options), backend.get_module_map()
    return str(described.make_ir(target, options, *helpers, context))
