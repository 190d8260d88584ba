"""Segmentations: what they mean, which are legal, what they cost, and that the search finds about the best one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples, sample

from weft.errors import OptionError
from weft.fusion.known import MODELS, layer
from weft.fusion.model import LAUNCH, breaks_even, cost, is_legal, moved, of_segment
from weft.fusion.operators import Array, Layer, Operator
from weft.fusion.search import alike, best, exhaustive, moves, search
from weft.fusion.segments import every_scheme, reason_against, scheme, segments, unfused
from weft.target import GPUS

H200 = GPUS["h200"]
SIZES = ((1, 128), (8, 512), (16, 2048))
CASES = [(model, size) for model in MODELS for size in SIZES]
NAMED = [f"{model}-{size}" for model, size in CASES]


@given(st.text("01", min_size=1, max_size=20))
def test_schemes_and_segments_are_one(digits):
    parts = segments(digits)
    assert [i for part in parts for i in part] == list(range(len(digits)))
    assert segments(scheme(parts)) == parts
    again = scheme(parts)
    assert again in (digits, digits.translate(str.maketrans("01", "10")))


def test_every_scheme_once():
    found = list(every_scheme(7))
    assert len(set(found)) == len(found) == 64
    assert all(one[0] == "0" for one in found)


def test_what_inductor_leaves():
    """Products and attention are apart; the residual and the norm after it are together."""
    assert unfused(layer("bert-base", 1, 128)) == "010101101011"


def test_reasons():
    bert, llama = layer("bert-base", 16, 2048), layer("llama-7b", 16, 2048)
    names = [one.name for one in bert.operators]

    def between(first, last, of=bert):
        known = [one.name for one in of.operators]
        return reason_against(of, range(known.index(first), known.index(last) + 1), H200)

    assert names == ["q", "k", "v", "attention", "out", "add 1", "norm 1", "up", "gelu", "down", "add 2", "norm 2"]
    assert not between("up", "gelu") and not between("out", "norm 1") and not between("q", "k")
    assert "more than two products" in between("q", "v")
    assert "attention" in between("v", "attention") and "attention" in between("attention", "out")
    assert "no room" in between("up", "down")
    assert "more than it writes" in between("add 1", "up") and "read elsewhere" in between("norm 1", "up")
    assert "a whole row" in between("out", "norm 2", llama)
    assert "read elsewhere" in between("norm 2", "gate", llama)
    assert "more than it writes" in between("silu, mul", "down", llama)


def test_bytes_of_a_segment():
    """What is made and read inside alone is not moved."""
    bert = layer("bert-base", 16, 2048)
    stream = 16 * 2048 * 768 * 2
    apart = sum(of_segment(bert, range(i, i + 1), H200).nbytes for i in (7, 8))
    together = of_segment(bert, range(7, 9), H200).nbytes
    assert apart - together == 2 * 4 * stream
    reads, writes = moved(bert, range(7, 9))
    assert [x.name for x in reads] == ["norm 1'", "weight of up"] and [x.name for x in writes] == ["gelu'"]


def test_the_cost_of_all_apart():
    bert = layer("bert-base", 1, 128)
    every = cost(bert, "01" * 6, H200)
    assert every.launches == 12 and every.seconds > 12 * LAUNCH
    with pytest.raises(OptionError, match="one digit for each operator"):
        cost(bert, "01", H200)


def test_break_even_falls_with_the_width():
    """Half of the time at 768, a twentieth at 8192: 375 / K."""
    assert breaks_even(768, H200) == pytest.approx(375 / 768, rel=0.02)
    assert breaks_even(8192, H200) == pytest.approx(375 / 8192, rel=0.02)


@pytest.mark.parametrize("case", sample(NAMED, NAMED[2], NAMED[8]))
def test_the_search_is_near_the_best_of_all(case):
    """Within 2 % of an exhaustive run, with at most a sixth of its evaluations."""
    model, (batch, tokens) = CASES[NAMED.index(case)]
    one = layer(model, batch, tokens, share=0.13)
    found, every = search(one, H200), exhaustive(one, H200)
    assert found.cost.seconds <= 1.02 * every.cost.seconds
    assert 6 * found.evaluations <= every.evaluations
    assert is_legal(one, found.scheme, H200) and found.cost == cost(one, found.scheme, H200)
    assert found.cost.seconds <= cost(one, unfused(one), H200).seconds
    assert best(one, H200).cost.seconds == pytest.approx(every.cost.seconds)


KINDS = st.sampled_from(["product", "norm", "pointwise", "pointwise", "attention", "other"])


@st.composite
def layers(draw):
    """Chains, with a residual here and there."""
    arrays = [Array("x", 1 << draw(st.integers(16, 28)), 512)]
    operators = []
    for i in range(draw(st.integers(1, 9))):
        kind = draw(KINDS)
        reads = [arrays[-1]]
        if kind == "pointwise" and draw(st.booleans()):
            reads.append(draw(st.sampled_from(arrays)))
        if kind == "product":
            reads.append(Array(f"w{i}", 1 << draw(st.integers(16, 24)), 512, weight=True))
        flops = 1e9 * draw(st.integers(1, 1000)) if kind in ("product", "attention") else 0.0
        arrays.append(Array(f"a{i}", 1 << draw(st.integers(16, 28)), draw(st.sampled_from([256, 768, 4096]))))
        operators.append(Operator(f"o{i}", kind, tuple(reads), arrays[-1], flops))
    return Layer("drawn", tuple(operators), frozenset({arrays[-1].name}))


@settings(max_examples=examples(100), deadline=None)
@given(layers())
def test_the_two_oracles_agree_and_the_search_is_legal(one):
    every = exhaustive(one, H200)
    assert best(one, H200).cost.seconds == pytest.approx(every.cost.seconds)
    found = search(one, H200)
    assert is_legal(one, found.scheme, H200)
    assert every.cost.seconds <= found.cost.seconds * (1 + 1e-12)
    assert found.cost.seconds <= cost(one, unfused(one), H200).seconds


@settings(max_examples=examples(100), deadline=None)
@given(layers(), st.data())
def test_moves_change_one_boundary_and_lose_no_operator(one, data):
    digits = data.draw(st.text("01", min_size=len(one), max_size=len(one)))
    digits = scheme(segments(digits))
    for boundary in range(1, len(one)):
        for name, after in moves(one, digits, boundary):
            assert len(after) == len(one) and after != digits
            assert name in ("expand", "seize", "compete")


def test_equal_layers_are_searched_once():
    first, second, other = (layer(m, 8, 512) for m in ("bert-base", "bert-base", "gpt2"))
    renamed = Layer("another", second.operators, second.kept)
    found = alike([first, other, renamed], H200)
    assert [names for _, names in found] == [["bert-base (8, 512)", "another"], ["gpt2 (8, 512)"]]
    assert first.fingerprint == renamed.fingerprint != layer("bert-base", 8, 513).fingerprint


def test_what_is_no_layer():
    with pytest.raises(OptionError, match="name one of bert-base"):
        layer("bert", 1, 1)
    with pytest.raises(OptionError, match="a share above 0"):
        layer("gpt2", 1, 1, share=0)
