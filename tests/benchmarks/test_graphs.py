"""benchmarks/graphs.py without a GPU: what is asked for, what becomes of figures, and that it says what it needs."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from weft.bench.check import Truth
from weft.bench.inputs import Tensors
from weft.bench.worker import calls_of
from weft.testing.workloads import WORKLOADS

HERE = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return import_module("graphs")


@pytest.mark.parametrize(
    "sizes, found",
    [("", (16, 16, 16384)), ("@4", (4, 4, 16384)), ("@16:1", (16, 1, 16384)), ("@8:4:32768", (8, 4, 32768))],
)
def test_sizes_of_a_problem(graphs, sizes, found):
    workload = graphs.problem_of(f"strided_l128_s128{sizes}")
    assert (workload.q_heads, workload.kv_heads, workload.n) == found
    assert workload.m == workload.n and workload.mask == WORKLOADS["strided_l128_s128"].mask


@pytest.mark.parametrize(
    "text, said",
    [
        ("stridden", "no workload"), ("dense_d64@4:", "no workload"), ("dense_d64@6:4", "evenly"),
        ("dense_d64@0", "evenly"), ("document_causal@4:4:100", "leave them out"), ("dense_d64@1:1:1:1", "no workload"),
    ],
)  # fmt: skip
def test_problems_that_do_not_exist(graphs, text, said):
    with pytest.raises(ValueError, match=said):
        graphs.problem_of(text)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("name", ["strided_l128_s128", "gpt_oss_window_128"])
def test_what_is_called_is_right(graphs, name, direction):
    tensors = Tensors(WORKLOADS[name].small(), "cpu")
    found = calls_of(graphs.attention_of(tensors.workload, tensors), tensors.cases, direction)[0]()
    assert not Truth(tensors).verdict(direction, found if direction == "bwd" else (found,)).wrong


def row(us, wrong=""):
    return {"problem": "dense", "direction": "fwd", "us": us, "error": us / 1e4, "wrong": wrong}


def test_rounds_are_joined(graphs):
    first, second = (graphs.joined([[row(scale * us)] for us in (30.0, 10.0, 20.0)]) for scale in (1, 2))
    assert first == [
        {
            "problem": "dense",
            "direction": "fwd",
            "us": 20.0,
            "error": 3e-3,
            "rounds": 3,
            "least_us": 10.0,
            "most_us": 30.0,
        }
    ]
    assert "20.00 (1.000)" in graphs.table([first, second]) and "40.00 (2.000)" in graphs.table([first, second])


def test_a_wrong_result_ends_the_run(graphs):
    with pytest.raises(ValueError, match="wrong"):
        graphs.joined([[row(1.0)], [row(1.0, "out is off")]])


@pytest.mark.more
@pytest.mark.skipif(torch.cuda.is_available(), reason="here it measures")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, str(HERE / "graphs.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no GPU" in done.stderr


def test_a_wrong_name_is_refused_before_anything_runs():
    command = [sys.executable, str(HERE / "graphs.py"), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no workload" in done.stderr
