"""Formulas of transfers and memory: the paper's results, and counts of what really moves."""

import ast
import subprocess
import sys
from itertools import product as cartesian
from math import prod
from pathlib import Path

import pytest
import sympy as sp
from tests.napkin.algorithms import OPEN, SQUARE, axes, flash, tiled_matmul

import weft
from weft.errors import RelabelError
from weft.napkin import formulas, generate
from weft.napkin.builders import AttentionAxes, attention, attention_of_term, mlp
from weft.napkin.cost import best_sizes, columns, divisors, evaluate, memory, optimum, symbol, transfers, work
from weft.napkin.diagram import FP4, FP8, FP16, FP32, Array, Axis
from weft.napkin.emit import compiled, source
from weft.napkin.relabel import Derivation, flash_attention
from weft.napkin.schedule import Loop, program

a, b, c, d, h, q, r, x, M = (symbol(name) for name in "abcdhqrxM")
g_a, g_c, s_b, g_q, g_r, s_x = (symbol(name) for name in ("g_a", "g_c", "s_b", "g_q", "g_r", "s_x"))


def same(left, right):
    return sp.simplify(left - right) == 0


# ---- the paper's formulas --------------------------------------------------------------------------------------------
def test_matmul():
    done = tiled_matmul()
    assert same(transfers(done, "shared"), a * b * c * (1 / g_a + 1 / g_c) + a * c)
    assert same(memory(done, "shared"), g_a * g_c + s_b * (g_a + g_c))
    best = optimum(done, "shared")
    assert same(best.transfers, 2 * a * b * c / sp.sqrt(M) + a * c)
    assert best.sizes == {g_a: sp.sqrt(M), g_c: sp.sqrt(M)}


def test_attention():
    done = flash()
    assert same(transfers(done, "shared"), 2 * q * d + 2 * x * q * d / g_q)
    assert same(memory(done, "shared"), 2 * g_q * d + 2 * s_x * d)
    best = optimum(done, "shared")
    assert same(best.transfers, 2 * q * d + 4 * x * q * d**2 / M)
    assert best.sizes == {g_q: M / (2 * d)}


def test_heads_multiply_and_heads_of_a_group_share_keys():
    many = flash_attention(attention(AttentionAxes(v=Axis("d"), heads=(Axis("h"),))))
    assert same(optimum(many, "shared").transfers, h * (2 * q * d + 4 * x * q * d**2 / M))
    shared = flash_attention(attention(AttentionAxes(v=Axis("d"), heads=(Axis("h"),), group=(Axis("r"),))))
    assert same(transfers(shared, "shared"), h * (2 * r * q * d + 2 * x * r * q * d / (g_q * g_r)))


def test_naive_attention_moves_its_scores():
    assert same(transfers(Derivation(attention(SQUARE)), "shared"), 2 * q * d + 2 * x * d + 4 * q * x)


def test_what_registers_hold():
    """The accumulator, a chunk of scores, and a maximum and a sum for each row."""
    assert same(memory(flash(), "register"), g_q * d + g_q * s_x + 2 * g_q)


def test_memory_is_the_most_of_the_columns():
    done = Derivation(mlp(*axes("abhc"))).keep("H", "shared").keep("G", "shared").group("a", "shared")
    hidden = g_a * symbol("h")
    always = g_a * b + b * h + h * c + g_a * c
    assert [same(one, always + hidden) for one in columns(done, "shared")] == [True] * 3  # GELU works in place
    assert same(memory(done, "shared"), always + hidden)


def test_each_level_has_its_own_transfers():
    """Registers read keys again for every group of theirs; scores kept above them are written and read there."""
    done = flash().group("q", "register").stream("x", "register")
    w_q = symbol("g_q_register")
    assert same(transfers(done, "register"), 2 * q * d + 2 * x * q * d / w_q)
    assert same(transfers(done, "shared"), 2 * q * d + 2 * x * q * d / g_q)
    assert same(transfers(done.keep("S", "shared"), "register"), 2 * q * d + 2 * x * q * d / w_q + 2 * q * x)


def test_work():
    assert same(work(flash(), "shared"), 4 * q * x * d + 4 * q * x)
    assert same(work(tiled_matmul(), "shared"), 2 * a * b * c)
    relation = weft.window(left=3, right=4).acsr(64, 64).terms[0].axes[0]
    live = flash(relations=(relation,))
    assert same(work(live, "shared"), (4 * d + 5) * q * (g_q + 7))  # one more for the mask
    hidden = Derivation(mlp(*axes("abhc"))).group("c", "shared")
    assert same(work(hidden, "shared"), (2 * b + 8) * a * h * c / g_c + 2 * a * h * c)  # again in every group of c


# ---- dtypes ----------------------------------------------------------------------------------------------------------
def test_halving_bytes_divides_the_optimum():
    """By 4 for attention and by 2.83 for a product, beside what is moved once."""
    for done, moved_once, factor in ((flash(OPEN), 2 * q * d, 4), (tiled_matmul(OPEN), a * c, 2 * sp.sqrt(2))):
        nbytes = symbol("nbytes")
        again = optimum(done, "shared").transfers - moved_once * nbytes
        assert same(again.subs(nbytes, 2) / again.subs(nbytes, 1), factor)


def test_arrays_of_different_dtypes():
    diagram = attention(SQUARE, FP8)
    arrays = tuple(Array(one.name, one.axes, FP16) if one.name in "VO" else one for one in diagram.arrays)
    mixed = flash_attention(type(diagram)("mixed", arrays, diagram.boxes, diagram.inputs, diagram.outputs))
    assert same(transfers(mixed, "shared"), q * d + 2 * q * d + 3 * x * q * d / g_q)
    half = flash_attention(attention(SQUARE, FP4))
    assert same(transfers(half, "shared") * 8, transfers(flash_attention(attention(SQUARE, FP32)), "shared"))


# ---- sparse axes -----------------------------------------------------------------------------------------------------
def test_a_window_takes_the_place_of_the_axis():
    """H = 2qd + 2qd (1 + (w - 1) / g): the exponent of M stays, x becomes w - 1, and a halo is added."""
    relation = weft.window(left=10, right=21).acsr(64, 64).terms[0].axes[0]
    width = 32
    done = flash(relations=(relation,))
    assert same(transfers(done, "shared"), 2 * q * d + 2 * q * d * (1 + (width - 1) / g_q))
    assert same(optimum(done, "shared").transfers, 4 * q * d + 4 * q * (width - 1) * d**2 / M)


def test_a_neighbourhood_is_a_product_of_its_axes():
    (term,) = weft.neighborhood((64, 32), (9, 5), stride=(3, 1), dilation=(1, 2)).acsr(2048, 2048).terms
    done = flash_attention(attention_of_term(term, 64, 64))
    sizes = {axis.name: axis.size for axis in done.diagram.axes.values()} | {"g_q1": 6, "g_q2": 4}
    expected = 2 * 2048 * 64 * (1 + (6 + 9 - 3) * (4 + 5 - 1) / (6 * 4))
    assert evaluate(transfers(done, "shared"), sizes) == pytest.approx(expected)


def test_causal_reads_half():
    relation = weft.causal().acsr(64, 64).terms[0].axes[0]
    assert same(transfers(flash(relations=(relation,)), "shared"), 2 * q * d + q * d * (x + g_q) / g_q)


# ---- counts ----------------------------------------------------------------------------------------------------------
def counted(derivation, lengths, sizes):
    """Elements moved when the loops really run: every read of an input piece, and every write of an output piece."""
    cuts = {p.axis: (p.kind, p.size or sizes[p.symbol]) for p in derivation.partitions}
    streams = tuple(axis for axis, (kind, _) in cuts.items() if kind == "stream")
    nodes = program(derivation.diagram, derivation.diagram.boxes, streams)
    groups = prod(lengths[axis] // size for axis, (kind, size) in cuts.items() if kind == "group")

    def piece(name):
        axes = derivation.diagram.array(name).names
        return prod(cuts[axis][1] if axis in cuts else lengths[axis] for axis in axes)

    moved = sum(piece(name) for name in derivation.diagram.outputs)
    placed = set()

    def walk(nodes, times):
        nonlocal moved
        for node in (node for node in nodes if isinstance(node, Loop)):
            inside = times * prod(lengths[axis] // cuts[axis][1] for axis in node.axes)
            walk(node.body, inside)
            for name in set(derivation.diagram.inputs) - placed:
                if set(node.axes) & set(derivation.diagram.array(name).names):
                    moved += piece(name) * inside
                    placed.add(name)

    walk(nodes, 1)
    moved += sum(piece(name) for name in set(derivation.diagram.inputs) - placed)
    return moved * groups


@pytest.mark.parametrize(
    "done",
    [
        tiled_matmul(),
        flash(),
        flash_attention(attention(AttentionAxes(heads=(Axis("h"),), group=(Axis("r"),)))),
        Derivation(mlp(*axes("abhc"))).keep("H", "register").keep("G", "register")
        .group("a", "shared").group("c", "shared").stream("h", "shared").stream("b", "shared"),
    ],
    ids=lambda done: done.diagram.name,
)  # fmt: skip
def test_transfers_are_what_the_loops_move(done):
    lengths = {name: 4 * (2 + i) for i, name in enumerate(sorted(done.diagram.axes))}
    for size in (1, 2, 4):
        sizes = {p.symbol: size for p in done.partitions if p.size is None}
        assert evaluate(transfers(done, "shared"), lengths | sizes) == counted(done, lengths, sizes)


# ---- sizes -----------------------------------------------------------------------------------------------------------
def test_best_sizes_are_the_best_of_all():
    done = tiled_matmul()
    lengths, limit = {"a": 24, "b": 12, "c": 36}, 200
    found = best_sizes(done, "shared", {"shared": limit}, lengths)
    everything = [
        evaluate(transfers(done, "shared"), lengths | sizes)
        for choice in cartesian(divisors(24), divisors(36), divisors(12))
        if evaluate(memory(done, "shared"), sizes := dict(zip(("g_a", "g_c", "s_b"), choice, strict=True))) <= limit
    ]
    assert found.transfers == min(everything) and found.memory["shared"] <= limit
    assert all(size > 0 and lengths[name[-1]] % size == 0 for name, size in found.sizes.items())


def test_sizes_obey_divisors_and_every_limit():
    diagram = attention(
        AttentionAxes((Axis("q", 4096, 128),), (Axis("x", 4096, 32),), Axis("d", 128), Axis("d", 128)), FP16
    )
    done = flash_attention(diagram)
    found = best_sizes(done, "shared", {"shared": 227 * 1024, "register": 256 * 1024})
    assert found.sizes["g_q"] % 128 == 0 and found.sizes["s_x"] % 32 == 0
    assert found.memory["shared"] <= 227 * 1024 and found.memory["register"] <= 256 * 1024
    assert best_sizes(done, "shared", {"shared": 227 * 1024}).transfers <= found.transfers
    # never below the optimum of thin slices
    bound = evaluate(optimum(done, "shared").transfers, {"q": 4096, "x": 4096, "d": 128, "M": 227 * 1024})
    assert found.transfers >= bound


def test_chunks_are_no_longer_than_spans():
    (term,) = weft.neighborhood((64, 64), (8, 8)).acsr(4096, 4096).terms
    done = flash_attention(attention_of_term(term, 64, 64))
    found = best_sizes(done, "shared", {"shared": 100_000}).sizes
    assert found["s_x1"] <= found["g_q1"] + 7 and found["s_x2"] <= found["g_q2"] + 7


def test_a_limit_that_nothing_fits_is_refused():
    with pytest.raises(RelabelError) as caught:
        best_sizes(tiled_matmul(), "shared", {"shared": 2}, {"a": 4, "b": 4, "c": 4})
    assert all(word in str(caught.value) for word in ("matmul", "a by 1", "shared", "2 bytes", "3 bytes"))


def test_an_open_axis_is_refused():
    with pytest.raises(RelabelError, match="axis c has no size"):
        best_sizes(tiled_matmul(), "shared", {"shared": 99}, {"a": 4, "b": 4})


def test_an_optimum_without_closed_form_is_refused():
    done = Derivation(mlp(*axes("abhc"))).group("a", "shared").stream("h", "shared").stream("b", "shared")
    with pytest.raises(RelabelError, match="size of a chunk"):
        optimum(done, "shared")
    (term,) = weft.neighborhood((4, 4, 4), (3, 3, 3)).acsr(64, 64).terms
    with pytest.raises(RelabelError, match="g_q1, g_q2, g_q3 are too many"):
        optimum(flash_attention(attention_of_term(term, 4, 4)), "shared")


# ---- plain Python ----------------------------------------------------------------------------------------------------
def test_emitted_formulas_are_the_written_ones():
    values = {"a": 96, "b": 64, "c": 80, "g_a": 8, "g_c": 16, "s_b": 4, "nbytes": 2, "M": 4096}
    values |= {"q": 512, "x": 384, "d": 64, "v": 32, "g_q": 32, "s_x": 16}
    for name, (formula, _) in generate.standard().items():
        names = [str(one) for one in formula.free_symbols]
        given = {one: values[one] for one in names}
        assert getattr(formulas, name)(**given) == pytest.approx(evaluate(formula, given), rel=1e-14)
    assert "sympy" not in generate.text().replace("without sympy", "")


def test_only_costs_import_sympy():
    """Formulas, spans and relabellings are for hot paths."""
    modules = ("formulas", "span", "relabel", "execute", "draw", "pseudocode", "builders", "sketch")
    code = "import sys; " + "; ".join(f"import weft.napkin.{m}" for m in modules) + "; print('sympy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"


def test_the_written_module_is_up_to_date():
    written = Path(formulas.__file__).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(written)) == ast.dump(ast.parse(generate.text()))


def test_maxima_and_roots_are_emitted():
    found = compiled({"f": sp.Max(a, b) / sp.sqrt(c)}, "abc")["f"]
    assert found(a=3, b=5, c=4) == 2.5
    assert source("f", a + 1, ["a"], "One more.").startswith('def f(*, a):\n    """One more."""\n    return a + 1')
