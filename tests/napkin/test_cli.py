"""`weft napkin`: the derivation, its costs, the picture, and its refusals."""

import pytest
from click.testing import CliRunner

from weft.cli import main


def run(*args):
    return CliRunner().invoke(main, ["napkin", *map(str, args)], catch_exceptions=False)


def test_attention_on_h200(tmp_path):
    out = tmp_path / "flash.svg"
    done = run("attention", "--target", "h200", "--out", out)
    assert done.exit_code == 0
    told = ("lemma:", "fusion theorem:", "for each chunk: s_x of x", "H = 4*d*q + 4*d*q*x/g_q", "16*d**2*q*x/M")
    for text in (*told, "on h200: g_q = 256", "384 rows", "206 rows"):
        assert text in done.output
    assert out.read_text().startswith("<svg") and "attention on h200" in out.read_text()


def test_a_window_reads_its_span():
    done = run("attention", "--length", 4096, "--pattern", "causal() & window(1023)")
    assert "2046*d*q/g_q" in done.output and "mask(S) x by q" in done.output


@pytest.mark.parametrize("algorithm, text", [("matmul", "sqrt(M)"), ("mlp", "H takes in X, U by sum")])
def test_other_algorithms(algorithm, text):
    done = run(algorithm, "--target", "a100", "--length", 512)
    assert done.exit_code == 0 and text in done.output and "on a100:" in done.output


@pytest.mark.parametrize(
    "args, word",
    [
        (("attention", "--pattern", "strided(16)"), "2 affine terms"),
        (("attention", "--pattern", "strided("), "never closed"),
        (("attention", "--pattern", "documents([8000, 192])"), "no closed form"),
        (("attention", "--dim", 1 << 16), "even q by 16, x by 16 hold"),
        (("attention", "--out", "/nowhere/at/all.svg"), "No such file"),
        (("sorting",), "sorting"),
        (("attention", "--target", "abacus"), "abacus"),
    ],
)
def test_refusals(args, word):
    done = run(*args)
    assert done.exit_code == 2 and word in done.output
