"""benchmarks/predict.py without a GPU: rows whose times are known rates come back as these rates, and are judged so."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from weft.planning.candidates import menu
from weft.planning.rates import Rates
from weft.planning.tiling import Tiling
from weft.target import GPU, GPUS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KNOWN = {"formula": Rates(2000.0, 900.0, 600.0), "table": Rates(3500.0, 800.0, 700.0)}
TILING = Tiling(64, 64, 4, 3)
PATTERNS = (
    ("full()", 4096),
    ("causal()", 2048),
    ("causal()", 8192),
    ("causal() & window(left=255)", 8192),
    ("window(left=700, right=700)", 8192),
    ("documents([300, 1200, 500, 2000, 96])", 4096),
    ("documents([100, 3000, 50, 946]) & causal()", 4096),
    ("documents([2000, 2000, 4192])", 8192),
)


def test_the_page_is_what_its_rows_say_now(predict, tmp_path):
    """Choices are those of today's rates and of what is offered: `python benchmarks/predict.py judge` writes it."""
    from prediction import page, rows

    results, gpu = BENCHMARKS / "results", GPUS["h200"]
    found = rows.judged(rows.read(results / "prediction-h200.csv"), gpu)
    facts = json.loads((results / "prediction-h200.json").read_text())
    text = page.page(found, gpu, facts, tmp_path)
    assert text == (BENCHMARKS.parent / "docs" / "prediction.md").read_text()


@pytest.fixture(scope="module")
def predict():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import predict

        yield predict
        for name in [name for name in sys.modules if name.split(".")[0] in ("predict", "prediction")]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def timed(predict):
    """Rows of a forward on a card whose rates are KNOWN."""
    from prediction.problems import Case

    rows = [predict.Row(Case(text, 1, 16, tokens, 64), "forward", TILING, None) for text, tokens in PATTERNS]
    kinds = {work.kind for row in rows for work in predict.works_of(row, GPU)}
    assert kinds == set(KNOWN)
    return [replace(row, seconds=predict.predicted(row, predict.works_of(row, GPU), KNOWN, GPU)) for row in rows]


def test_rates_are_found_again(predict, timed):
    found = predict.solve([(row, predict.works_of(row, GPU)) for row in timed], GPU)
    assert set(found) == set(KNOWN)
    for row in timed:
        again = predict.predicted(row, predict.works_of(row, GPU), found, GPU)
        assert again == pytest.approx(row.seconds, rel=0.01), row.case.text
    for kind, rate in KNOWN.items():
        assert found[kind].full == pytest.approx(rate.full, rel=0.1)


def test_fit_writes_a_table_and_keeps_what_rows_lack(predict, timed, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "TABLES", tmp_path)
    rows, table = tmp_path / "rows", tmp_path / "h200.json"
    other = [128, "dq", "formula", [64, 64, 4, 3, 0, True], [1.0, 2.0, 3.0]]
    table.write_text(json.dumps({"target": "h200", "versions": "before", "rates": [other]}))
    rows.write_text("".join(row.text + "\n" for row in timed))
    ran = CliRunner().invoke(predict.main, ["fit", str(rows), "--add", "--versions", "now"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    said = json.loads(table.read_text())
    assert said["versions"] == "before; now"
    assert other in said["rates"]
    assert {tuple(line[:3]) for line in said["rates"]} == {
        (64, "forward", "formula"), (64, "forward", "table"), (128, "dq", "formula")
    }  # fmt: skip


def test_rows_of_a_kernel_replace_its_rows_alone(predict, timed, tmp_path, monkeypatch):
    """Times that are the predictions are judged as without error; the other kernel's rows and seed stay."""
    from prediction import rows as table

    from weft.planning.cost import cost

    def as_predicted(way, tiling):
        for row in timed[:3]:
            one = replace(row, direction=way, tiling=tiling)
            yield replace(one, seconds=cost(table.works_of(one, GPU), way, one.case.problem, tiling, GPU).seconds)

    monkeypatch.setattr(predict, "ROOT", tmp_path)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    kernels = ("forward", "dq", "dkdv")
    tilings = {way: [*menu(way, timed[0].case.problem), Tiling(32, 64, 4, 2)] for way in kernels}

    def judge(seed, *ways):
        rows = (row for way in ways for tiling in tilings[way] for row in as_predicted(way, tiling))
        raw = tmp_path / seed
        raw.write_text("".join(row.text + "\n" for row in rows))
        ran = CliRunner().invoke(predict.main, ["judge", str(raw), "--seed", seed], catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        return (tmp_path / "docs" / "prediction.md").read_text()

    judge("first", "forward", "dq", "dkdv")
    page = judge("second", "dq")
    assert "| forward | `first` |" in page
    assert "| dQ | `second` |" in page
    for kernel in ("forward", "dQ", "dK and dV"):
        assert f"| {kernel} | 3 | 0.0% | 0.0% | 1.000 (1.00) | 1.000 " in page
    kept = list(table.read(tmp_path / "benchmarks" / "results" / "prediction-h200.csv"))
    assert len(kept) == 3 * sum(map(len, tilings.values()))
    assert {row.direction for row in kept} == set(tilings)
