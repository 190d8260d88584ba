"""Files of rows, and the pages made of them."""

import shutil
from pathlib import Path

import pytest

from weft.bench import figures, report, rows
from weft.errors import OptionError
from weft.testing.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"machine": "Some GPU", "date": "2026-11-20 14:00", "commit": "abc1234", "torch": "2.11.0"}


def row(workload, direction, peer, tflops, **more):
    w = WORKLOADS[workload]
    time = {"median_ms": w.flops(direction) / tflops / 1e9, "tflops": tflops, "calls": 70} if tflops else {}
    about = {"workload": workload, "direction": direction, "peer": peer, "status": "ok", "share": w.share}
    return MACHINE | about | time | more


def sample():
    yield row("causal", "fwd", "fa4", 600.0, launch_us=12.0)
    yield row("causal", "fwd", "weft-triton", 300.0, plan_ms=2.0)
    yield row("causal", "fwd", "weft-triton", 450.0, plan_ms=3.0)  # the later one counts
    yield row("causal", "fwd", "flex", 400.0)
    yield row("window_pm256", "fwd", "flex", 200.0)
    yield row("window_pm256", "fwd", "weft-triton", 300.0, commit="def5678")
    yield row("window_pm256", "fwd", "natten", 900.0, status="different mask", message="pushed inwards")
    yield row("window_pm256", "fwd", "cudnn", 0, status="refused", message="causal | full")
    yield row("dense", "bwd", "fa4", 610.0)
    yield row("dense", "bwd", "weft-triton", 0, status="crashed", message="signal SIGSEGV")
    yield row("causal", "fwd", "flex", 9e9) | {"workload": "causal.small"}
    for peer, figure in (("matmul", {"tflops": 690.0}), ("copy", {"gbs": 4280.0})):
        yield row("causal", "fwd", peer, 0) | {"direction": "any", "median_ms": 1.0} | figure
    for name in ("scaling_4k", "scaling_8k"):
        yield row(name, "fwd", "flex", 300.0)
        yield row(name, "bwd", "flex", 250.0)
        yield row(name, "fwd", "weft-triton", 400.0)
        for peer, power in (("weft-plan", 1), ("flex-mask", 2)):
            cost = (WORKLOADS[name].n / 6000) ** power
            yield row(name, "any", peer, 0) | {"median_ms": cost, "plan_ms": cost}
    yield row("causal", "any", "flex-mask", 0) | {"median_ms": 2.5, "plan_ms": 2.5, "version": "2.11.0"}


def made(folder):
    """A project with rows, and the page for what is generated there."""
    rows.append(folder / "results" / "some-gpu.csv", sample())
    (folder / "results" / "cpu.csv").write_text("date,case\n")
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "honesty.md", folder / "docs")
    return folder


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """{name: bytes} of everything written, of a first and a second report."""
    project = made(tmp_path_factory.mktemp("project"))
    return [
        {path.name: path.read_bytes() for path in report.write(project / "results", project / "docs")} for _ in range(2)
    ]


def cells(page, beginning):
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {beginning}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_shows_the_latest_rows_and_ratios(reports):
    page = reports[0]["performance.md"].decode()
    assert cells(page, "causal (")[2:] == ["450", "fa4 600", "0.75x", "flex 400"]
    assert cells(page, "window_pm256 (")[2:] == ["300", "flex 200", "1.50x †", "-"]
    assert cells(page, "dense (")[2:] == ["crashed", "fa4 610", "-", "-"]
    assert "natten, **different mask**: pushed inwards (window_pm256 fwd " in page
    assert "cudnn, **refused**: causal / full (window_pm256 fwd)" in page
    assert "matrix product 690 TFLOP/s, copy 4280 GB/s" in page
    assert "commit abc1234, def5678" in page
    assert "| na3d_30x48x80_k18x24x24 | 196 | 145 |" in page


def test_the_other_page_says_where_weft_loses(reports):
    page = reports[0]["honesty.md"].decode()
    assert cells(page, "causal forward") == ["causal forward", "75%", "fa4", "abc1234"]
    assert "block_mask on 1 of 2 problems\nthat have both: scaling_4k (0.683 ms, 0.466)." in page
    assert "weft has no time on 1 that a peer runs.\nThose are: dense bwd." in page


def test_calls_and_plans_are_shown_by_length(reports):
    page = reports[0]["performance.md"].decode()
    (header,) = [line for line in page.splitlines() if "weft-triton fwd" in line]
    assert header == "| problem (B,H,S,D) | weft-triton fwd | flex fwd | flex bwd | weft-plan | flex-mask |"
    assert cells(page, "scaling_8k (")[-2:] == ["1.37", "1.86"]
    assert cells(page, "flex-mask") == ["flex-mask", "2.11.0", "2.5", "-", "-", "-"]
    plot = reports[0]["some-gpu-plan.svg"]
    assert b"weft-plan" in plot
    assert b"flex-mask" in plot
    assert b"weft-triton" not in plot


def test_plots_are_drawn(reports):
    plots = {name: text for name, text in reports[0].items() if name.endswith(".svg")}
    names = ["speed-fwd", "speed-bwd", "roofline", "scaling", "plan"]
    assert list(plots) == [f"some-gpu-{name}.svg" for name in names]
    assert b"speed relative to flex" in plots["some-gpu-speed-fwd.svg"]


def test_the_same_rows_give_the_same_files(reports):
    assert reports[0] == reports[1]


def test_a_page_without_its_marks_is_refused_and_nothing_is_written(tmp_path):
    docs = made(tmp_path) / "docs"
    (docs / "honesty.md").write_text("# Mine\n")
    with pytest.raises(OptionError, match="lacks the line"):
        report.write(tmp_path / "results", docs)
    assert [path.name for path in docs.iterdir()] == ["honesty.md"]
    assert (docs / "honesty.md").read_text() == "# Mine\n"


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(OptionError, match="no rows of this benchmark"):
        report.write(tmp_path, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


def test_files_are_appended_to_and_checked(tmp_path):
    path = tmp_path / "new" / "rows.csv"
    rows.append(path, [MACHINE])
    before = path.read_text()
    rows.append(path, [MACHINE | {"message": 'a "quoted", thing'}])
    assert path.read_text().startswith(before)
    assert [found["message"] for found in rows.read(path)] == ["", 'a "quoted", thing']
    with pytest.raises(ValueError, match="surprise"):
        rows.append(path, [{"surprise": 1}])
    assert rows.finished(rows.read(path), "Some GPU", "abc1234") == {("", "", "")}
    assert rows.finished(rows.read(path), "Some GPU", "other") == set()


def test_where_rows_go():
    assert rows.path_of("NVIDIA H200", "cuda").name == "nvidia-h200.csv"
    assert rows.path_of("Some CPU (R), 2 cores", "cpu").name == "bench-cpu.csv"


def test_weft_planning_is_no_backend():
    assert figures.is_weft("weft-triton")
    assert not figures.is_weft("weft-plan")
    assert not figures.is_weft("fa4")
