"""`weft recognize` on files and functions: what it prints, and how it refuses."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import weft
from weft.cli import main

MODULE = """
import numpy as np
IDS = np.repeat([0, 1], [10, 30])
def window(q, k): return (k <= q) & (q - k < 8)
def documents(q, k): return IDS[q] == IDS[k]
def heads(b, h, q, k): return q - k < 4 * h
def branch(q, k): return k <= q if q > 3 else k == q
def numbers(q, k): return q - k
def broken(q, k): raise RuntimeError("boom")
class Box:
    @staticmethod
    def causal(q, k): return k <= q
plain = 3
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mask_module_of_tests.py").write_text(MODULE)
    np.save(tmp_path / "mask.npy", weft.chunks(10).to_dense(40))
    return lambda *args: CliRunner().invoke(main, ["recognize", *args], catch_exceptions=False)


def test_a_file(run):
    done = run("mask.npy")
    assert done.exit_code == 0
    assert "chunks(size=10)" in done.output and "evaluated at (40, 40)" in done.output
    assert f"bytes: {weft.chunks(10).acsr(40).nbytes} at 40 x 40" in done.output
    assert "█" in done.output


def test_a_function(run):
    done = run("mask_module_of_tests:window", "--no-draw")
    assert done.exit_code == 0
    assert "causal(align='top-left') & window(left=7, align='top-left')" in done.output and "symbolic" in done.output
    assert "█" not in done.output and "at any length" in done.output


def test_a_function_with_a_table(run):
    done = run("mask_module_of_tests:documents", "--no-draw")
    assert "documents(lengths=[10, 30])" in done.output and "m=40, n=40" in done.output
    free = run("mask_module_of_tests:documents", "--no-draw", "--generalize")
    assert "sized" not in free.output and "on your word" in free.output


def test_heads(run):
    done = run("mask_module_of_tests:heads", "--size", "16", "16", "--heads", "3")
    assert "per_head" in done.output and "(batch row 0, head 0)" in done.output


def test_evaluated(run):
    done = run("mask_module_of_tests:branch", "--size", "20", "20", "--no-draw")
    assert done.exit_code == 0
    assert "evaluated at (20, 20)" in done.output and "a branch on its value" in done.output


def test_json(run):
    said = json.loads(run("mask_module_of_tests:Box.causal", "--size", "10", "12", "--json").output)
    assert said["pattern"] == "causal(align='top-left')" and said["proof"] == "symbolic"
    assert (said["m"], said["n"], said["closed"], said["remainder"]) == (10, 12, True, 0)
    assert said["nbytes"] == weft.causal(align="top-left").acsr(10, 12).nbytes


def test_large_masks_are_drawn_small(run):
    done = run("mask_module_of_tests:window", "--size", "100000", "100000")
    assert done.exit_code == 0 and len(done.output.splitlines()) < 50


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["mask_module_of_tests:branch"], "tracing ended in branch, line 7"),
        (["mask_module_of_tests:heads"], "pass heads="),
        (["mask_module_of_tests:numbers"], "not booleans"),
        (["mask_module_of_tests:broken", "--size", "4", "4"], "it raises RuntimeError: boom"),
        (["mask_module_of_tests:plain"], "plain is a int, no function"),
        (["mask_module_of_tests:absent"], "has no attribute 'absent'"),
        (["no_such_module_of_tests:f"], "No module named"),
        (["absent.npy"], "cannot be read"),
        (["mask_module_of_tests.py"], "no .npy file"),
        (["mask.npy", "--size", "4", "4"], "a mask has its own sizes"),
    ],
)
def test_refused(run, args, says):
    done = run(*args)
    assert done.exit_code == 2
    assert says in done.output and "wrong:" in done.output and "do:" in done.output
    assert "Traceback" not in done.output
