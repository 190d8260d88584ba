"""Emitted sources: some of them whole, as golden files; all of them readable, and without masks where none are due."""

import ast
import os
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from weft.kernels.gpu.sinks import source as sinks
from weft.kernels.gpu.split_kv import source as split_kv
from weft.kernels.triton.emit import emit

from .specs import BESIDE, CALLS, SHORT, gradients_of, specs_of, specs_towards
from .test_rowwise import CALLS as ROW_CALLS

GOLDEN = Path(__file__).with_name("golden")
WRITE = "WEFT_GOLDEN=write python -m pytest tests/triton/test_source.py"
# file -> (call, direction, which of its kernels there)
CHOSEN = {
    "forward_window": ("window", "forward", 0),
    "dq_documents": ("documents", "dq", 0),
    "keys_2d": ("2-D", "keys", 0),
    "keys_by_groups": ("window, by groups", "keys", 0),
    "forward_by_groups": ("two terms, by groups", "forward", 0),
    "keys_longformer": ("longformer", "keys", 0),
    "forward_blocks": ("random blocks", "forward", 0),
    "keys_with_dq": ("window", "one kernel", 1),
    "blocks_with_dq": ("random blocks", "one kernel", 1),
}
WALKS = {"gradients_in_one_walk": (SHORT, 0), "few_keys": (BESIDE, 1), "few_sums": (BESIDE, 2)}
SPLIT_KV = {
    "split_kv": ("window, 64, all options", 0), "split_kv_alone": ("two terms", 1), "combine": ("window", 2),
    "split_kv_of_a_cache": ("counts from the device", 0),
}  # fmt: skip
OF_SINKS = {
    "sink_gradient": sinks.gradient_source,
    "sink_gradient_sum": sinks.sum_source,
    "join_sinks": lambda: sinks.join_source("bfloat16", 80),
}
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
    return OF_SINKS[name]().text if name in OF_SINKS else emit(chosen(name))


@pytest.mark.parametrize("name", [*CHOSEN, *WALKS, *SPLIT_KV, *OF_SINKS])
def test_golden_source(name):
    path, text = GOLDEN / f"{name}.py", text_of(name)
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


def walks(source):
    """The loops over tiles: the innermost ones."""
    loops = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For)]
    return [loop for loop in loops if not any(x is not loop and isinstance(x, ast.For) for x in ast.walk(loop))]


def compares_bounds(node):
    """Whether the bounds of rows are used inside a node."""
    names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    return any(name.startswith(("low_", "high_", "from_", "to_")) for name in names)


def is_edge_branch(statement):
    """Whether a statement of a loop is a branch that full tiles do not take."""
    return isinstance(statement, ast.If) and any(side in ast.unparse(statement.test) for side in ("left_", "full_"))


def chooses_term(statement):
    """Whether all that it does is to take the bounds of one term or another."""
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in ("low_j", "high_j")


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.rank > 1])
def test_grids_are_masked_by_a_product(name):
    """A box on a grid costs one more product, and no comparison of its pairs."""
    for loop in walks(emit(SPECS[name])):
        text = ast.unparse(loop)
        assert text.count("tl.dot(out, tl.trans(hot)") == 1
        assert not compares_bounds(loop)


OF_LINES = [name for name, spec in SPECS.items() if spec.rank == 1 and spec.direction != "delta" and not spec.groups]


@pytest.mark.parametrize("name", OF_LINES)
def test_full_tiles_have_no_mask(name):
    """Outside the branch for tiles with an edge, or its own loop, no statement looks at the bounds of rows."""
    found = walks(emit(SPECS[name]))
    assert found
    masked = [loop for loop in found if compares_bounds(loop)]
    assert masked, "nothing is masked at all"
    apart = len(masked) < len(found)
    for loop in masked:
        outside = [x for x in loop.body if compares_bounds(x) and not chooses_term(x)]
        assert apart or all(map(is_edge_branch, outside)), ast.unparse(loop)
    # what is no mask of bounds: columns that do not exist, in loads; rows that join sums of dQ, or have no maximum yet
    for loop in found:
        if loop not in masked:
            text = ast.unparse(loop)
            for other in ("new ==", "wanted[", "largest =="):
                text = text.replace(f"tl.where({other}", "")
            assert "tl.where" not in text


def test_alibi_and_float16_keep_the_online_form():
    def forwards(call):
        return {spec.no_maximum for spec in specs_towards(call, "forward", "sm_90")}

    assert forwards(CALLS["window"]) == {True}
    assert forwards(CALLS["window, softcap, alibi, sinks"]) == {False}
    assert forwards(replace(CALLS["window"], dtype=torch.float16)) == {False}
