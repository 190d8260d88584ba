"""`weft napkin`: the derivation, its costs, the picture, and its refusals."""

import json

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


@pytest.mark.parametrize("algorithm", ["attention", "matmul", "mlp"])
def test_json_says_what_the_report_says(algorithm, tmp_path):
    args = (algorithm, "--length", 512, "--target", "h200", "--out", tmp_path / "last.svg")
    said, told = json.loads(run(*args, "--json").output), run(*args).output
    assert said["loops"] in told and said["out"] in told
    assert all(f"{number}. {step}\n" in told for number, step in enumerate(said["steps"], 1))
    assert f"H = {said['formulas']['transfers']}\n" in told
    assert all(f"held in {at}:  M = {formula}\n" in told for at, formula in said["formulas"]["memory"].items())
    assert ", ".join(f"{symbol} = {size}" for symbol, size in said["sizes"].items()) in told
    for which in ("unfused", "derived"):
        assert f"{said['transfer_bytes'][which] / 2**20:.1f} MiB" in told
        assert f"{said['transfer_seconds'][which] * 1e6:.1f} us" in told
    assert f"{said['flops'] / 1e9:.1f} GFLOP, {said['work_seconds'] * 1e6:.1f} us" in told
    assert ("sketch" in said) == ("least_rows" in said) == (algorithm == "attention")


def test_json_of_what_has_no_closed_form():
    said = json.loads(run("mlp", "--dtype", "fp32", "--target", "a100", "--length", 512, "--json").output)
    assert said["formulas"]["optimum"] is None and "depends on" in said["formulas"]["no_optimum"]
    assert said["work_seconds"] is None


@pytest.mark.parametrize(
    "args, word",
    [
        (("attention", "--pattern", "strided(16)"), "2 affine terms"),
        (("attention", "--pattern", "strided("), "never closed"),
        (("attention", "--pattern", "documents([8000, 192])"), "no closed form"),
        (("attention", "--dim", 1 << 16), "even q by 16, x by 16 hold"),
        (("attention", "--length", 1000), "axis q has 1000, no multiple of 16"),
        (("attention", "--out", "/nowhere/at/all.svg"), "No such file"),
        (("sorting",), "sorting"),
        (("attention", "--target", "abacus"), "abacus"),
    ],
)
def test_refusals(args, word):
    done = run(*args)
    assert done.exit_code == 2 and word in done.output


@pytest.mark.parametrize("model", ["bert-base", "llama-1b"])
def test_a_whole_layer(model, tmp_path):
    out = tmp_path / "layer.svg"
    asked = ("layer", "--model", model, "--length", 512, "--batch", 8, "--pattern", "causal() & window(63)")
    done = run(*asked, "--out", out)
    assert done.exit_code == 0 and f"layer {model} (8, 512)" in done.output and "segmentations priced" in done.output
    assert "weft has kernels for some of these segments" in done.output
    picture = out.read_text()
    assert picture.startswith("<svg") and "MiB moved" in picture
    assert "before: kernels as Inductor makes them" in picture and "after: the best segments by prediction" in picture
    said = json.loads(run(*asked, "--json").output)
    assert said["after"]["nbytes"] < said["before"]["nbytes"] and said["after"]["launches"] < said["before"]["launches"]
    assert said["scheme"] in done.output


def test_a_layer_attends_to_its_pattern():
    def flops(*pattern):
        said = json.loads(run("layer", "--model", "gpt2", "--length", 256, *pattern, "--json").output)
        return next(one["flops"] for one in said["operators"] if one["kind"] == "attention")

    assert flops("--pattern", "causal()") == flops() * 257 / 512


@pytest.mark.parametrize(
    "args, cure",
    [
        (("layer",), "add --model NAME"), (("layer", "--model", "gpt2", "--dim", 64), "leave --dim out"),
        (("layer", "--model", "gpt2", "--dtype", "fp8"), "leave --dtype out"),
        (("mlp", "--batch", 3), "leave --batch out"),
    ],
)  # fmt: skip
def test_options_that_a_layer_has_not(args, cure):
    done = CliRunner().invoke(main, ["napkin", *map(str, args)])
    assert done.exit_code == 2 and cure in done.output
