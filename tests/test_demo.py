"""The main job end to end, its checks, and the pictures of `weft.plot`."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.tiers import every

import weft
from weft.errors import OptionError, install_line
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem

torch = pytest.importorskip("torch")
image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")

from weft import plot  # noqa: E402
from weft.demo import __main__ as demo  # noqa: E402
from weft.demo import guests, inputs, measure, smooth  # noqa: E402
from weft.demo.cases import cases, scaled  # noqa: E402
from weft.plot.tiles import MASKED, PARTIAL  # noqa: E402

NAMES = [case.name for case in cases((8, 8), 16)]


def run(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = f"{before}\nimport sys\nfrom weft.demo.__main__ import main\nsys.exit(main())"
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # small inputs: threads would only wait for each other
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=alone)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One run of `--quick`: what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("demo") / "not" / "yet" / "there"
    return run("--quick", "--out", str(folder)), folder


def read(path: Path) -> np.ndarray:
    with image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def rows(printed: str) -> dict[str, list[str]]:
    """The cells of the table by case."""
    table = printed[printed.index("\n---") :]
    found = {name: re.search(rf"^{re.escape(name)} +(\S.*)$", table, re.MULTILINE) for name in NAMES}
    return {name: re.split(r"\s{2,}| (?=\S+x\b)", line[1].strip()) for name, line in found.items() if line}


# ---- the run -----------------------------------------------------------------------------------------------------
@pytest.mark.more
def test_a_run_holds_and_is_quiet_on_stderr(quick):
    done, _ = quick
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\r" not in done.stdout, "progress is for terminals"
    assert "every check holds" in done.stdout.splitlines()[-1]


@pytest.mark.more
def test_every_case_has_a_row_with_numbers_in_it(quick):
    found = rows(quick[0].stdout)
    assert list(found) == NAMES
    for cells in found.values():
        assert cells[-1] == "ok"
        assert 0 < float(cells[0].removesuffix("%")) < 20
        assert all(float(cell.split()[0]) > 0 for cell in cells[1:6])
        assert float(cells[6].removesuffix("x")) > 0
        assert float(cells[7]) < 1e-5


@pytest.mark.more
def test_columns_are_aligned(quick):
    lines = quick[0].stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("---"))
    ends = {
        re.search(r"\S  (?=check|ok)", line).start() for line in [lines[at - 1], *lines[at + 1 : at + 1 + len(NAMES)]]
    }
    assert len(ends) == 1


@pytest.mark.more
def test_the_pictures_show_something(quick):
    _, folder = quick
    expected = {name.replace(" ", "-") + ".png" for name in NAMES} | {"photograph.png", "chart.png"}
    assert {path.name for path in folder.iterdir()} == expected
    for path in folder.iterdir():
        pixels = read(path)
        assert pixels.shape[0] > 500 and pixels.shape[1] > 1000
        pixels = pixels[::3, ::3]
        share = {colour: (pixels == plot._rgb(colour)).all(axis=2).mean() for colour in plot.COLOURS[2:4]}
        if path.name == "photograph.png":
            assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 5000
        elif path.name == "chart.png":
            bars = {colour: (pixels == plot._rgb(colour)).all(axis=2).mean() for colour in plot.COLOURS[3:]}
            assert min(bars.values()) > 0.01, "a chart without bars"
        else:
            assert min(share.values()) > 1e-3, f"{path.name} shows no partial tile"


@pytest.mark.more
def test_without_matplotlib_it_says_so_and_goes_on(tmp_path):
    done = run("--out", str(tmp_path), before=f"import sys\nsys.modules['matplotlib'] = None\n{SMALL}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no pictures: matplotlib is not installed" in done.stdout and "drawn rings" in done.stdout
    assert list(rows(done.stdout)) == NAMES
    assert list(tmp_path.iterdir()) == []


SMALL = """from weft.demo import __main__ as demo
demo.SIZES = {False: (512, 16, 32), True: (512, 16, 32)}
demo.GUESTS = ()"""


@pytest.mark.more
def test_without_transformers_it_says_so_and_goes_on(tmp_path):
    hide = "from weft.demo import cases\ncases.has_transformers = demo.has_transformers = lambda: False"
    done = run("--no-pictures", before=f"{SMALL}\n{hide}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert install_line("transformers") in done.stdout
    assert [name for name in NAMES if name != "transformers"] == list(rows(done.stdout))


@pytest.mark.skipif("transformers" not in NAMES, reason="transformers is not installed")
def test_the_case_of_transformers_is_its_window_in_documents():
    case = next(case for case in cases((300, 700), 16) if case.name == "transformers")
    meant = weft.documents([300, 700]) & weft.window(left=15, right=0)
    assert (case.pattern.to_dense(1000) == meant.to_dense(1000)).all()


@pytest.mark.more
def test_models_of_other_libraries_have_rows_or_a_line_that_installs_them(quick):
    printed = quick[0].stdout
    for guest in guests.GUESTS:
        found = re.search(rf"^{guest.name} +\d.*  ok$", printed, re.MULTILINE)
        assert bool(found) is guest.here
        assert guest.here or install_line(guest.module) in printed


def guest(apart: float) -> guests.Guest:
    return guests.Guest("a model", "numpy", "what it is", lambda pack, quick: guests.Outcome(8, 1e-3, 2e-3, apart))


@pytest.mark.parametrize("apart", [0.0, 1e-3, math.nan])
def test_a_model_that_differs_from_its_own_library_fails_the_run(apart, monkeypatch, capsys):
    monkeypatch.setattr(demo, "SIZES", {False: (512, 16, 32), True: (512, 16, 32)})
    monkeypatch.setattr(demo, "cases", lambda lengths, side: [])
    monkeypatch.setattr(demo, "GUESTS", (guest(apart),))
    assert demo.main(["--no-pictures"]) == (apart != 0)
    printed = capsys.readouterr().out
    assert re.search(r"^a model +8 +1.0 ms +2.0 ms +2.0x", printed, re.MULTILINE)
    assert ("FAILED: a model" in printed.splitlines()[-1]) == (apart != 0)


def test_a_wrong_result_fails_the_run(monkeypatch, capsys):
    right = weft.attention

    def wrong(q, k, v, mask, **options):
        out = right(q, k, v, mask, **options)
        out[0, 3, 17, 5] += 1e-3 * (mask == weft.strided(22))
        return out

    monkeypatch.setattr(weft, "attention", wrong)
    monkeypatch.setattr(demo, "GUESTS", ())
    monkeypatch.setattr(demo, "SIZES", {False: (512, 16, 32), True: (512, 16, 32)})
    assert demo.main(["--no-pictures"]) == 1
    printed = capsys.readouterr().out
    assert [name for name, cells in rows(printed).items() if cells[-1] != "ok"] == ["strided"]
    assert "FAILED: strided" in printed.splitlines()[-1]


def test_a_plan_that_does_not_verify_fails_the_run(monkeypatch, capsys):
    from weft.errors import VerificationError
    from weft.planning.attention_plan import AttentionPlan

    def refuse(self):
        if "dilation" in str(self.pattern):
            raise VerificationError("verify a plan", "a tile is missing", "do not use it")

    monkeypatch.setattr(AttentionPlan, "verify", refuse)
    monkeypatch.setattr(demo, "GUESTS", ())
    monkeypatch.setattr(demo, "SIZES", {False: (512, 16, 32), True: (512, 16, 32)})
    assert demo.main(["--no-pictures"]) == 1
    printed = capsys.readouterr().out
    assert "a tile is missing" in printed and "FAILED: neighbors dilated" in printed.splitlines()[-1]


def test_a_folder_that_cannot_be_made_is_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        demo.main(["--out", str(tmp_path / "file" / "below")])
    assert stop.value.code == 2
    assert "--out" in capsys.readouterr().err


# ---- its parts ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("total", [512, 2048, 16384])
def test_a_pack_is_whole_documents_of_the_standard_library(total):
    pack = inputs.pack_sources(total)
    assert sum(pack.lengths) == pack.tokens.size == total
    assert len(pack.lengths) >= 3 and min(pack.lengths) > 0
    first = Path(os.__file__).with_name(pack.names[0]).read_bytes()
    assert pack.tokens[: pack.lengths[0]].tobytes() == first
    again = inputs.pack_sources(total)
    assert np.array_equal(again.tokens, pack.tokens) and again.names == pack.names


def test_embeddings_depend_on_what_and_where():
    q, k, v = inputs.embed_text(np.array([7, 8, 7], np.uint8))
    assert q.shape == k.shape == v.shape == (1, inputs.HEADS, 3, inputs.D)
    assert not np.allclose(q[0, 0, 0], q[0, 0, 1]) and not np.allclose(q[0, 0, 0], q[0, 0, 2])
    q, k, v = inputs.embed_map(inputs.drawn_map(4))
    assert q.shape == v.shape == (1, inputs.HEADS, 16, inputs.D)
    assert 0.5 < float(q.std()) < 2


def test_scaled_lengths_keep_their_sum():
    assert sum(scaled((1, 3389, 2675, 9), 512)) == 512


def row(**changed: float) -> measure.Row:
    good = {"error": 1e-7, "dense_error": 1e-7, "apart": 1e-7}
    return measure.Row(live=0.1, nbytes=8, plan=1, verify=1, sparse=1, dense=1, **{**good, **changed})


def test_a_row_judges_its_errors():
    assert row().wrong == ""
    assert "float64" in row(error=2e-6).wrong
    assert "apart" in row(apart=2e-5).wrong
    assert row(error=math.nan).wrong and row(apart=math.nan).wrong
    assert row(error=2e-6, dense_error=1e-6).wrong == "", "as good as dense attention is good enough"


def test_smoothing_removes_noise():
    truth = np.kron(np.array([[0.2, 0.8], [0.6, 0.1]]), np.ones((16, 16)))[..., None] * np.ones(3)
    before = smooth.noisy(truth, 0.05)
    after = smooth.smoothed(before, 0.05)
    assert smooth.likeness(after, truth) > smooth.likeness(before, truth) + 6


# ---- pictures ----------------------------------------------------------------------------------------------------
PATTERNS = [
    (weft.causal() & weft.window(left=40), 150),
    (weft.dilated(9, 3, step=3), 151),
    (weft.strided(12), 160),
    (weft.longformer(32, global_tokens=5), 130),
    (weft.bigbird(block=16), 200),
    (weft.neighborhood((12, 11), (5, 3)), 132),
    (weft.neighborhood((12, 12), 3, dilation=2), 144),
    (weft.neighborhood((4, 6, 8), 3), 192),
    (weft.causal() & weft.periodic_keys(step=8), 128),
    (weft.fixed(16, summary=2), 256),
    (weft.segments([20, 40], [[weft.causal(), None], [True, weft.window(left=3, right=3)]]), 60),
    (weft.nothing(), 33),
]


@pytest.mark.parametrize(("pattern", "m"), PATTERNS, ids=lambda x: str(x)[:40])
def test_views_show_every_live_pair_once_and_all_that_is_computed(pattern, m):
    plan = plan_attention(pattern, Problem(8, 8, 8, m, m, 64, 64)).forward[0].plan
    seen, total = np.zeros((m, m), int), 0
    for view in plot.views(plan):
        assert sorted(view.keys) == list(range(m)) and len(set(view.queries)) == view.queries.size
        live = view.classes >= PARTIAL
        seen[np.ix_(view.queries, view.keys)] += live
        total += (view.classes >= MASKED).sum()
        for first, last, left, right in view.boxes:
            assert (view.classes[first:last, left:right] >= MASKED).all()
    assert np.array_equal(seen, pattern.to_dense(m))
    assert plan.acsr.nnz <= total <= plan.visited, "a pair may be computed in vain by two launches, and is shown once"


@pytest.mark.parametrize(("pattern", "m"), every(4, PATTERNS), ids=lambda x: str(x)[:40])
def test_every_pattern_can_be_drawn(pattern, m, tmp_path):
    path = plot.save(plot.pattern_figure(pattern, m), tmp_path / "one.png")
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.png"]
    assert read(path).std() > 1, "an empty page"


def drawn(pattern, m, **how):
    figure = plot.pattern_figure(pattern, m, **how)
    return figure, [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_views_that_take_keys_by_class_say_so():
    (view,) = plot.views(plot.planned(weft.causal() & weft.periodic_keys(step=8), 128, 128))
    assert view.orders == ("", "by index modulo 8") and view.keys[:3].tolist() == [0, 8, 16]
    (view,) = plot.views(plot.planned(weft.neighborhood((12, 11), (5, 3)), 132, 132))
    assert view.orders == ("box after box", "") and view.grid == (12, 11)


@pytest.mark.parametrize(("pattern", "m"), every(4, PATTERNS), ids=lambda x: str(x)[:40])
def test_everything_in_a_picture_is_inside_of_it(pattern, m):
    figure, _ = drawn(pattern, m)
    renderer = figure.canvas.get_renderer()
    width, height = figure.get_size_inches() * figure.dpi
    boxes = [part.get_window_extent(renderer) for part in (*figure.legends, *figure.texts)]
    boxes += [axes.get_tightbbox(renderer) for axes in figure.axes]
    assert all(0 <= box.x0 and box.x1 <= width and 0 <= box.y0 and box.y1 <= height for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_a_volume_shows_the_plane_of_one_query():
    figure, legend = drawn(weft.neighborhood((4, 6, 8), 3), 192)
    assert figure.axes[-1].get_title().endswith("plane 2") and "its box of queries" in legend


def test_the_legend_names_a_remainder_that_stands_alone():
    assert "remainder: 8,192" in drawn(weft.blocks(64, [(0, 1), (3, 2)]), 256)[1]
    assert not any("term" in text for text in drawn(weft.causal(), 64)[1])
    (legend,) = plot.term_figure(weft.longformer(512, 16), 10**6).legends
    assert [text.get_text() for text in legend.get_texts()] == ["term 0: 16.0 M", "term 1: 16.0 M", "term 2: 512.9 M"]


def test_the_headline_names_the_head():
    figure, _ = drawn(weft.per_head([weft.causal(), weft.chunks(8)]), 32, at=(0, 1))
    assert "head 1 of 2" in figure.texts[1].get_text()


def test_a_picture_that_would_show_nothing_is_refused():
    with pytest.raises(OptionError, match="smaller"):
        plot.pattern_figure(weft.causal(), 1 << 20)
