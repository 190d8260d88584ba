"""The chart of the core dozen: which pairs it shows, and what is said of them."""

from pathlib import Path

import pytest

from weft.bench import chart, figures, plots, quoted
from weft.testing.workloads import WORKLOADS


def machine(rates, name="Some GPU"):
    """A machine with rows {(workload, peer): useful TFLOP/s}, forward."""
    latest = {
        (workload, "fwd", peer): {
            "peer": peer, "status": "ok", "commit": "abc", "tflops": rate, "median_ms": 1e9 / rate,
        }
        for (workload, peer), rate in rates.items()
    }  # fmt: skip
    return figures.Machine(name, Path("some-gpu.csv"), latest)


def dozen(name="Some GPU", ours=300.0, theirs=200.0):
    rates = {(workload, "weft-triton"): ours for workload in chart.PROBLEMS}
    return machine(rates | {(workload, "fa4"): theirs for workload in chart.PROBLEMS}, name)


def test_the_dozen_is_the_core():
    assert set(chart.PROBLEMS) == {name for name, w in WORKLOADS.items() if "core" in w.tags}


def test_a_pair_is_weft_and_the_fastest_peer():
    (pair,) = chart.pairs(machine({("causal", "weft-triton"): 450, ("causal", "flex"): 300, ("causal", "fa4"): 600}))
    assert pair == chart.Pair("causal", 450, "FlashAttention-4", 600, False)
    assert pair.ratio == 0.75


def test_without_a_peer_or_without_weft_there_is_no_pair():
    assert chart.pairs(machine({("causal", "weft-triton"): 450, ("dense", "fa4"): 600})) == []


def test_quoted_figures_count_where_weft_does_worse_beside_them():
    """On the card that they were measured on: with weft's figure of the same process, if there is one."""
    shown = {pair.workload: pair for pair in chart.pairs(dozen("NVIDIA H200"))}
    together = next(one for one in quoted.CUDNN if one.workload == "causal")
    assert shown["causal"] == chart.Pair("causal", together.weft_fwd, "cuDNN flex", together.fwd, True)
    assert shown["dense_d64"] == chart.Pair("dense_d64", 300, "FlashAttention-4", 200, False)
    assert not any(pair.apart for pair in chart.pairs(dozen()))


def test_the_worst_pair_comes_last_and_the_conclusion_names_it():
    rates = {("causal", "weft-triton"): 450, ("causal", "fa4"): 600, ("dense_d64", "weft-triton"): 300}
    found = machine(rates | {("dense_d64", "flex"): 100})
    assert [pair.workload for pair in chart.pairs(found)] == ["dense_d64", "causal"]
    assert chart.conclusion(found) == (
        "On one Some GPU, forward, weft is ahead of every peer on 1 of 2 core problems. There it is 3.0 times as fast "
        "as the best peer. On the other 1 it runs at 0.75 of the speed of FlashAttention."
    )


def test_the_advice_names_each_problem_once():
    rates = {("causal", "weft-triton"): 450, ("causal", "fa4"): 600, ("dense_d64", "weft-triton"): 300}
    said = chart.advice(machine(rates | {("dense_d64", "flex"): 100})).split("\n")[2:]
    assert said == ["- Take weft: full attention (D=64).", "- Take the peer in the chart: causal (D=128)."]


def test_a_chart_needs_the_whole_dozen(tmp_path):
    pytest.importorskip("matplotlib")
    assert not chart.complete(machine({("causal", "weft-triton"): 450, ("causal", "fa4"): 600}))
    drawn = [path for path in plots.draw(dozen(), tmp_path) if path.stem.endswith("-core")]
    (text,) = (path.read_text() for path in drawn)
    for workload in chart.PROBLEMS:
        assert chart.PROBLEMS[workload] in text
    assert text.count("FlashAttention-4") == 12 and "1.5x" in text
