"""The worker and its parent: every kind of peer gets its row, whatever another one does."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.bench import rows
from weft.bench.run import Bench, probe
from weft.errors import OptionError

HERE = Path(__file__).parent
WORKLOAD = "causal_window_1024.small"


@pytest.fixture(scope="module")
def machine():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        yield probe("cpu", "fakes")


@pytest.fixture
def bench(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    return Bench(machine, tmp_path / "rows.csv", rounds=2, limit=5, peers="fakes")


def statuses(made):
    return {(row["direction"], row["peer"]): row["status"] for row in made}


@pytest.mark.more
def test_a_peer_that_fails_costs_its_own_row(bench):
    peers = ["right", "absent", "crash", "raise", "late-crash", "wrong", "mask", "refuse", "noise", "plan"]
    made = bench.run([WORKLOAD], peers, "fwd")
    assert statuses(made) == {
        ("fwd", "right"): rows.OK, ("fwd", "noise"): rows.OK, ("fwd", "wrong"): rows.WRONG,
        ("fwd", "crash"): rows.CRASHED, ("fwd", "late-crash"): rows.CRASHED, ("fwd", "raise"): rows.FAILED,
        ("fwd", "mask"): rows.DIFFERENT, ("fwd", "refuse"): rows.REFUSED, ("any", "plan"): rows.OK,
    }  # fmt: skip
    by_peer = {row["peer"]: row for row in made}
    assert "exit status 7" in by_peer["crash"]["message"]
    assert "SIGABRT" in by_peer["late-crash"]["message"]
    assert by_peer["raise"]["message"] == "RuntimeError: no kernel for this"
    assert by_peer["wrong"]["message"].startswith("out is off by")
    assert by_peer["mask"]["median_ms"] > 0
    assert "tflops" not in by_peer["mask"]
    assert by_peer["right"]["tflops"] > 0
    assert by_peer["right"]["p20_ms"] <= by_peer["right"]["median_ms"] <= by_peer["right"]["p80_ms"]
    assert by_peer["plan"]["plan_ms"] == by_peer["plan"]["median_ms"] >= 1
    with bench.out.open(newline="") as file:
        assert [row["peer"] for row in csv.DictReader(file)] == [row["peer"] for row in made]


@pytest.mark.more
def test_a_peer_that_hangs_is_given_up(bench):
    bench.limit = 3
    made = bench.run([WORKLOAD], ["right", "hang"], "fwd")
    assert statuses(made) == {("fwd", "right"): rows.OK, ("fwd", "hang"): rows.TIMED_OUT}


KILLED = """
import sys, time
from weft.bench.run import Process
process = Process({"workload": sys.argv[1], "entries": [["fwd", "hang"]], "device": "cpu", "rounds": 1,
                   "peers": "fakes"}, 60)
assert next(process.events())["event"] == "start"
print(process.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_nothing_outlives_a_benchmark_that_is_killed(monkeypatch):
    """Else a peer that hangs would stay on the device, beside whatever is measured next."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    with subprocess.Popen([sys.executable, "-c", KILLED, WORKLOAD], stdout=subprocess.PIPE, text=True) as bench:
        worker = int(bench.stdout.readline())
        bench.kill()
    for _ in range(200):
        if not is_running(worker):
            return
        time.sleep(0.05)
    os.killpg(worker, signal.SIGKILL)
    pytest.fail("the worker is still running ten seconds later")


def is_running(pid):
    """Whether a process is there, and no zombie that nobody asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.more
def test_finished_rows_are_kept_and_not_repeated(bench):
    seen = []
    bench.show = lambda name, event: seen.append(event)
    first = bench.run([WORKLOAD], ["right", "raise"], "both")
    assert set(statuses(first)) == {(way, peer) for way in ("fwd", "bwd") for peer in ("right", "raise")}
    assert bench.run([WORKLOAD], ["right", "raise"], "both") == []
    assert seen[-1] == {"event": "workload", "left": 0, "finished": 4}
    bench.fresh = True
    assert len(bench.run([WORKLOAD], ["right"], "bwd")) == 1
    assert len(rows.read(bench.out)) == 5


@pytest.mark.more
def test_an_interrupted_run_leaves_whole_rows_and_no_process(bench):
    left = []

    def interrupt(name, event):
        if event["event"] == "row":
            left.append(event)
            raise KeyboardInterrupt

    bench.show = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.run([WORKLOAD], ["refuse", "right"], "fwd")
    assert len(left) == 1
    bench.show = lambda name, event: None
    assert {peer for _, peer in statuses(bench.run([WORKLOAD], ["refuse", "right"], "fwd"))} == {"refuse", "right"}


@pytest.mark.more
def test_a_foreign_file_is_refused_and_left_alone(bench):
    bench.out.write_text("date,case\n2026,window\n")
    with pytest.raises(OptionError, match="its columns are date, case"):
        bench.run([WORKLOAD], ["right"], "fwd")
    assert bench.out.read_text() == "date,case\n2026,window\n"


def test_the_probe_names_the_machine_and_the_peers(machine):
    assert machine.device == "cpu"
    assert machine.absent == {"absent": "nobody installed it"}
    assert machine.ways["right"] == ["fwd", "bwd"]
    assert machine.ways["plan"] == ["any"]
    assert "plan" not in machine.default
    assert set(machine.origin) == {"machine", "threads", "driver", "python", "torch", "triton", "commit"}
