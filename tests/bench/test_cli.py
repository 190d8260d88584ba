"""The command line of the benchmark."""

import json

import pytest
import torch
from click.testing import CliRunner
from tests.tiers import every

from weft.bench import rows
from weft.cli import main


def run(*words):
    return CliRunner().invoke(main, ["bench", *words])


@pytest.mark.more
def test_it_measures_prints_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.bench.run.commit", lambda: "abc1234")
    words = ("window_pm256.small", "--device", "cpu", "--rounds", "1", "--out", str(tmp_path / "rows.csv"))
    words += ("--peers", "weft-cpu,sdpa-mask,natten,weft-plan", "--direction", "fwd", "--json")
    done = run(*words)
    assert done.exit_code == 0, done.output
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["peer"]: row["status"] for row in made} == dict.fromkeys(("weft-cpu", "sdpa-mask", "weft-plan"), "ok")
    assert all(row["error_over_plain"] < 10 for row in made if row["direction"] == "fwd")
    assert "natten is left out: it runs on cuda only" in done.stderr
    assert "[1/1] window_pm256.small" in done.stderr
    assert len(rows.read(tmp_path / "rows.csv")) == 3
    again = run(*words)
    assert again.stdout == ""
    assert "3 finished before" in again.stderr


@pytest.mark.parametrize(
    "words, said",
    every(
        3,
        [
            (("causal_windw_1024",), "use causal_window_1024"),
            (("--peers", "flash4", "causal.small"), "there is no peer 'flash4'"),
            (("cor",), "use core"),
            (("--rounds", "0"), "Invalid value for '--rounds'"),
            (("--direction", "up"), "'up' is not one of"),
        ],
    ),
)
def test_bad_input_ends_with_2_and_says_what_to_do(words, said):
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.more
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_ends_with_2():
    done = run("--device", "cuda", "causal.small")
    assert done.exit_code == 2
    assert "torch sees no GPU here" in done.stderr


def test_a_foreign_file_ends_with_2(tmp_path):
    out = tmp_path / "rows.csv"
    out.write_text("a,b\n")
    done = run("causal.small", "--device", "cpu", "--out", str(out))
    assert done.exit_code == 2
    assert "left as it is" in done.stderr
    assert out.read_text() == "a,b\n"


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv/more.csv", "nowhere/rows.csv"])
def test_a_file_that_cannot_be_added_to_ends_with_2_before_anything_runs(name, tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"\x93NUMPY")
    done = run("causal.small", "--device", "cpu", "--out", str(tmp_path / name))
    assert done.exit_code == 2
    assert "left as it is" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["rows.csv"]


def test_the_list_names_workloads_and_peers():
    listed = run("--list", "--device", "cpu").stdout
    assert "na3d_30x48x80_k18x24x24" in listed
    assert "weft-cpu     ready" in listed
    assert "fa4          it runs on cuda only" in listed


def test_a_report_without_rows_ends_with_2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("--report").exit_code == 2
