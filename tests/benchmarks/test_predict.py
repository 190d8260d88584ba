"""benchmarks/predict.py without a GPU: rows whose times are known rates come back as these rates, and are judged so."""

import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from weft.planning.families.tile import menu
from weft.planning.rates import Rates, measured
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


@pytest.mark.more
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


def test_fit_keeps_the_rows_that_it_fits(predict, timed, tmp_path, monkeypatch):
    """Of a kernel of a problem the last time that was measured; without new rows the same rates come again."""
    from prediction import rows

    monkeypatch.setattr(predict, "TABLES", tmp_path / "measured")
    monkeypatch.setattr(predict, "ROOT", tmp_path)
    kept, table = tmp_path / "benchmarks" / "results" / "rates-h200.csv", tmp_path / "measured" / "h200.json"
    kept.parent.mkdir(parents=True)
    rows.write(kept, [replace(timed[0], seconds=1.0), replace(timed[0], tiling=Tiling(64, 32, 4, 3))])
    raw = tmp_path / "raw"
    raw.write_text("".join(row.text + "\n" for row in timed))

    def fit(*given):
        ran = CliRunner().invoke(predict.main, ["fit", *given], catch_exceptions=False)
        assert ran.exit_code == 0, ran.output
        return table.read_text()

    first = fit(str(raw), "--versions", "now")
    said = json.loads(first)
    assert said["versions"] == "now"
    assert {tuple(line[:3]) for line in said["rates"]} == {(64, "forward", "formula"), (64, "forward", "table")}
    assert next(row.seconds for row in rows.read(kept)) == pytest.approx(timed[0].seconds, rel=1e-3)
    assert len(list(rows.read(kept))) == len(timed) + 1
    assert fit() == first


@pytest.mark.more
def test_the_rates_predict_what_their_rows_do(predict):
    """Fitted again, every thirtieth kernel is predicted alike: `python benchmarks/predict.py fit` writes the rates."""
    from prediction import rows

    gpu, groups = GPUS["h200"], defaultdict(list)
    for row in rows.read(BENCHMARKS / "results" / "rates-h200.csv"):
        if row.seconds:
            groups[row.case.d, row.direction, row.tiling].append(row)
    for d, direction, tiling in sorted(groups, key=str)[::30]:
        found = [(row, predict.works_of(row, gpu)) for row in groups[d, direction, tiling]]
        again = predict.solve(found, gpu)
        known = {kind: measured("h200")[d, direction, kind, tiling] for kind in again}
        for row, works in found:
            if {work.kind for work in works} <= set(again):
                one, other = (predict.predicted(row, works, rates, gpu) for rates in (again, known))
                # documents were measured before tiles ended with them: by up to 8 %, until they are measured again
                rel = 0.08 if "documents(" in row.text else 0.01
                assert one == pytest.approx(other, rel=rel), row.text


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
