"""Score functions as text and steps: there and back, simplified, with derivatives that differences confirm."""

import numpy as np
import pytest

from weft.errors import OptionError
from weft.score import Score
from weft.score.derive import derived
from weft.score.evaluate import Rule, evaluate
from weft.score.expression import Builder
from weft.score.text import parse
from weft.score.value import expressions

TEXTS = [
    "score",
    "score - abs(q - k) * real0[h]",
    "tanh(score / 20.0) * 20.0",
    "where(q - k < 3, score, -inf)",
    "v0 = k - q\nscore + real0[h] * exp(-0.1 * abs(v0))",
    "-(score - (q - k)) - -2",
    "score * (1 - (2 - q)) / (3 / real(k + 1))",
    "where((q < 3) & ~(k == q), sqrt(abs(score) + 1), floor(score) * sin(score))",
    "score * real0[int(bool1[q])] + cos(score) - log(score * score + 1.0)",
    "max(score, real0[k % 3]) - min(score, 0.5)",
    "where((q <= k) | (b != h), score, score * score) + size(0, 0) * real0[0]",
]
TABLES = (np.array([0.3, -0.7, 1.9]), np.array([True, False, True, True, False]))


def env(seed=0):
    random = np.random.default_rng(seed)
    return {"score": random.standard_normal((5, 6)), "b": 1, "h": 2, "q": np.arange(5)[:, None], "k": np.arange(6),
            "shift": 0}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_there_and_back(text):
    expression = parse(text)
    assert parse(str(expression)) == expression
    assert hash(parse(str(expression))) == hash(expression)


def test_equal_parts_are_one_step():
    assert str(parse("(k - q) * (k - q) + score")) == "v0 = k - q\nreal(v0 * v0) + score"


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("score + 0", "score"), ("0 + score * 1", "score"), ("score - 0.0", "score"), ("--score", "score"),
        ("score * 0 + 2 * 3", "6.0"), ("where(True, score, k)", "score"), ("where(q < k, score, score)", "score"),
        ("k // 1 + k % 1 + score", "real(k) + score"), ("~~(q < k) & True", "real(q < k)"), ("score / 1", "score"),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_left_out(text, simple):
    assert str(parse(text)) == str(parse(simple))


def test_zeros_of_both_signs_are_two_constants():
    build = Builder()
    assert build.const(0.0) != build.const(-0.0)
    assert build.const(float("nan")) == build.const(float("nan"))
    assert build.const(1) != build.const(1.0) != build.const(True)


@pytest.mark.parametrize(
    "text", ["score +", "import os", "score.real", "open(score)", "x = 1", "unknown + score", "score[0]"]
)
def test_what_is_no_score_function(text):
    with pytest.raises((ValueError, SyntaxError)):
        parse(text)


def test_too_many_steps_are_refused():
    build = Builder()
    ref = build.leaf("score")
    with pytest.raises(OptionError, match="4096 steps"):
        for i in range(5000):
            ref = build.binary("mul", ref, build.const(float(i + 2)))


@pytest.mark.parametrize("text", TEXTS)
def test_derivatives_by_the_score(text):
    rule, step = Rule(parse(text), TABLES), 1e-6
    given = env()
    found = evaluate(rule, given)
    high, low = (evaluate(rule, given | {"score": given["score"] + d}).score for d in (step, -step))
    smooth = np.isfinite(found.score) & np.isfinite(high) & np.isfinite(low)
    expected = (high[smooth] - low[smooth]) / (2 * step)
    np.testing.assert_allclose(found.slope[smooth], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("text", [text for text in TEXTS if "real0" in text])
def test_derivatives_by_tables(text):
    expression, step, given = parse(text), 1e-6, env()
    found = evaluate(Rule(expression, TABLES), given)
    total = np.zeros(3)
    for table, indices, by in found.by_entry:
        assert table == 0
        np.add.at(total, indices, by)
    for entry in range(3):
        bump = np.eye(3)[entry] * step
        high, low = (evaluate(Rule(expression, (TABLES[0] + d, TABLES[1])), given).score for d in (bump, -bump))
        np.testing.assert_allclose(total[entry], ((high - low) / (2 * step)).sum(), rtol=1e-6, atol=1e-6)


def test_a_bias_is_known_as_one():
    assert parse("score - real0[h] * abs(q - k)").addend[0] == "sub"
    assert parse("real0[h] + score").addend[0] == "add"
    assert derived(parse("score + real0[h]")).by_score is not None
    for other in ("score * 2", "score + score", "real0[h] - score", "score + tanh(score)"):
        assert parse(other).addend is None


def test_scores_follow_each_other():
    both = Score("score * 2", ()) + Score("score + real0[h]", (TABLES[0],))
    assert both.tables == (TABLES[0],)
    assert [str(one) for one in expressions(both.text)] == ["score * 2.0", "score + real0[h]"]
    assert len(both.parts) == 2
