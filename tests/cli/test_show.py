"""`weft show`: what stands in the terminal, in files and in JSON."""

import io
import json
import re
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from click.testing import CliRunner

import weft
from weft import plot
from weft.cli import main, progress, show
from weft.errors import install_line
from weft.pattern.parse import parse


class Screen(io.StringIO):
    """Standard error, of a terminal or not."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(main, ["show", *args], catch_exceptions=False, color=True)


@pytest.fixture
def colourful(monkeypatch):
    monkeypatch.setattr(show, "_coloured", lambda: True)


def picture(output, which=0):
    """The lines inside the frames, one list a frame."""
    frames = re.findall(r"┌─+┐\n(.*?)\n[^\n]*└", ANSI.sub("", output), re.DOTALL)
    return [line.split("│")[1] for line in frames[which].split("\n")]


def test_small_patterns_take_two_characters_a_pair(run):
    lines = picture(run("causal() & window(2)", "--size", "8").output)
    drawn = np.array([list(line) for line in lines]) == "█"
    np.testing.assert_array_equal(drawn[:, ::2], (weft.causal() & weft.window(2)).to_dense(8))


@pytest.mark.parametrize("size", [["40", "60"], ["40,60"], ["40x60"]])
def test_larger_ones_take_half_a_character(run, size):
    pattern = weft.longformer(9, 2).aligned("top-left")
    done = run("--size", *size, "longformer(9, 2).aligned('top-left')", "--width", "90")
    halves = {" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}
    drawn = np.array([[halves[c] for c in line] for line in picture(done.output)]).transpose(0, 2, 1).reshape(40, 60)
    np.testing.assert_array_equal(drawn, pattern.to_dense(40, 60))
    acsr = pattern.acsr(40, 60)
    assert f"{acsr.nnz:,} pairs live" in done.output and f"{acsr.nbytes:,} bytes" in done.output
    assert len(re.findall(r"term \d: ", done.output)) == len(acsr.terms)


@pytest.mark.parametrize("width", [20, 40, 100])
@pytest.mark.parametrize("size", [["1", "5000"], ["5000", "1"], ["100000", "300"], ["70"], ["1000000"]])
def test_no_line_is_wider_than_asked(run, size, width):
    done = run("longformer(9, 2).aligned('top-left')", "--size", *size, "--width", str(width))
    lines = picture(done.output)
    assert done.exit_code == 0 and set("".join(lines)) & set("░▒▓█▀▄")
    assert max(len(line) for line in done.output.splitlines() if set(line) & set("│┌└")) <= width
    assert len(lines) <= max(16, width)


@pytest.mark.parametrize("text", ["causal() & (window(left=127) | periodic_keys(step=128))", "strided(128)"])
def test_no_live_cell_is_blank(run, text):
    done = run(text, "--size", "16384", "--width", "80")
    lines = picture(done.output)
    q, k = (np.arange(1, len(x) + 1) * 16384 // len(x) for x in (lines, lines[0]))
    first = np.append(0, k[:-1])  # key of each cell
    np.testing.assert_array_equal(np.array([list(line) for line in lines]) != " ", first < q[:, None])
    said = json.loads(run(text, "--size", "16384", "--width", "80", "--json").output)
    np.testing.assert_array_equal(np.array(said["density"]) > 0, np.tri(80, dtype=bool))


def test_its_own_size_is_the_default(run):
    for text, size in [
        ("documents([3, 4, 5])", 12), ("documents(ids=[1, 2, 1])", 3), ("neighborhood((4, 6), 3)", 24),
        ("segments([2, 3], [[True, None], [True, causal()]]) & causal()", 5), ("sized(causal(), 9, 9)", 9),
        ("excerpt(causal(), 64, (32, 48), (32, 48))", 16),
        ("causal()", show.SIDE), ("per_head([causal(), chunks(3)])", show.SIDE),
    ]:  # fmt: skip
        assert f"  {size} x {size}" in run(text).output


def test_one_head_of_several(run):
    done = run("per_head([causal(), chunks(4)])", "--size", "8", "--head", "1")
    assert "head 1 of 2" in done.output
    np.testing.assert_array_equal(
        np.array([list(line) for line in picture(done.output)])[:, ::2] == "█", weft.chunks(4).to_dense(8)
    )


def test_tiles_without_colour_have_a_letter_for_each_class(run):
    drawn = "".join(picture(run("causal()", "--size", "256", "--tiles", "--width", "90").output, 1))
    assert set(drawn) == {" ", "░", "▒", "█"}


@pytest.mark.parametrize("width", [20, 60, 100])
def test_the_legend_of_tiles_names_what_is_there(run, width):
    done = run("strided(16)", "--size", "64", "--tiles", "--width", str(width))
    lines = done.output.split("\n\n")[-2].splitlines()
    names = [part.strip()[2:] for line in lines for part in line.split("   ")]
    assert names == ["live in a partial tile", "masked in a partial tile", "live, in another nest"]
    assert max(map(len, lines)) <= max(width, 26)


def test_the_order_of_boxes_is_named(run):
    assert "4×8 queries, queries box after box" in run("neighborhood((16, 16), 5)", "--tiles").output


@pytest.mark.parametrize(("terminal", "during"), [(True, f"\r{'planning ...':<70}"), (False, "")])
def test_what_a_command_is_busy_with_is_told_to_terminals_and_wiped(monkeypatch, terminal, during):
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    with pytest.raises(ZeroDivisionError), progress.busy("planning"):
        assert screen.getvalue() == during
        1 / 0  # noqa: B018
    assert screen.getvalue() == during + ("\r" + " " * 70 + "\r" if terminal else "")


def test_it_says_what_takes_long(run, monkeypatch):
    told = []
    monkeypatch.setattr(show, "busy", lambda text: told.append(text) or nullcontext())
    run("causal()", "--tiles")
    assert told == ["counting live pairs", "planning"]


def test_tiles_in_the_order_of_a_loop_nest(run):
    done = run("dilated(9, 9, 4)", "--size", "64", "--tiles")
    assert "queries by index modulo 4" in done.output and "query 0" in done.output
    assert "63 │" in done.output  # the last query of the last class


def test_terms_have_colours(run, colourful):
    done = run("longformer(9, 2)", "--size", "64", "--width", "90")
    assert len(set(re.findall(r"38;5;(\d+)", done.output))) == 3
    plain = ANSI.sub("", done.output)
    assert set("".join(picture(plain))) <= set(" ▀▄█")


def test_tiles_have_colours(run, colourful):
    done = run("causal()", "--size", "256", "--tiles")
    assert {str(colour) for colour in show.TILE_COLOURS[2:]} <= set(re.findall(r"[34]8;5;(\d+)", done.output))


@pytest.mark.parametrize(
    ("terminal", "no_color", "wanted"), [(True, "", True), (True, "1", False), (False, "", False), (True, "no", False)]
)
def test_colour_is_for_terminals_that_want_it(monkeypatch, terminal, no_color, wanted):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(show.sys, "stdout", type("Stream", (), {"isatty": lambda self: terminal})())
    assert show._coloured() is wanted


def test_json(run):
    said = json.loads(run("causal()", "--size", "128", "--json", "--tiles", "--width", "32").output)
    acsr = weft.causal().acsr(128)
    assert (said["m"], said["n"], said["pairs"], said["nbytes"]) == (128, 128, acsr.nnz, acsr.nbytes)
    assert np.shape(said["density"]) == (32, 32)
    (view,) = said["tiles"]
    assert view["orders"] == ["", ""]
    assert sum(view["pairs"].values()) == 128 * 128
    assert view["pairs"]["full tile, no mask"] + view["pairs"]["live in a partial tile"] == acsr.nnz


@pytest.mark.parametrize("kind", ["png", "svg"])
@pytest.mark.parametrize("more", [[], ["--tiles"], ["--size", "100000"]])
def test_files(run, tmp_path, kind, more):
    pytest.importorskip("matplotlib")
    name = f"one.{kind}"
    done = run("longformer(16, 2)", "--out", name, *more)
    assert done.exit_code == 0 and f"written to {name}" in done.output
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x89PNG" if kind == "png" else b"<?xml") and len(data) > 10_000
    assert [path.name for path in tmp_path.iterdir()] == [name]
    run("longformer(16, 2)", "--out", name, *more)
    assert (tmp_path / name).read_bytes() == data


def test_the_file_shows_the_head_that_was_asked_for(run, tmp_path):
    pytest.importorskip("matplotlib")
    for head in ("0", "1"):
        run("per_head([causal(), chunks(4)])", "--out", f"{head}.png", "--head", head)
    run("chunks(4)", "--out", "alone.png")
    first, second = ((tmp_path / f"{head}.png").read_bytes() for head in "01")
    assert first != second


def test_without_matplotlib(run, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("causal()", "--out", "a.png")
    assert done.exit_code == 2 and install_line("plot") in done.output and "Traceback" not in done.output
    assert run("causal()").exit_code == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["causl()"], "did you mean causal"),
        (["causal()", "--size", "0"], "no pair to draw"),
        (["causal()", "--size", "4", "8"], "which query stands beside which key"),
        (["causal()", "--size", "10000", "--tiles"], "leave out --tiles"),
        (["documents([3, 4])", "--size", "9"], "covers exactly 7 tokens"),
        (["per_head([causal(), full()])", "--head", "2"], "tells 2 of them apart"),
        (["causal()", "--out", "a.jpg"], "none of .png, .svg"),
        (["causal()", "--out", "no/such/folder/a.png"], "No such file"),
    ],
)
def test_refused(run, args, says):
    done = run(*args)
    assert done.exit_code == 2
    assert says in done.output and "wrong:" in done.output and "do:" in done.output


@pytest.mark.parametrize("size", ["x", "1,2,3", "-4", "99999999999", "1.5", "²"])
def test_sizes_that_are_none(run, size):
    done = run("causal()", f"--size={size}")
    assert done.exit_code == 2 and "Traceback" not in done.output and "--size" in done.output


def test_a_map_inside_a_sequence_is_no_map_of_its_own():
    pytest.importorskip("matplotlib")
    text = "segments([4, 36], [[causal(), None], [True, neighborhood((6, 6), (3, 3))]])"
    panels = [len(plot.pattern_figure(parse(t), m).axes) for t, m in [(text, 40), ("neighborhood((6, 6), (3, 3))", 36)]]
    views = [plot.views(plot.planned(parse(t), m, m)) for t, m in [(text, 40), ("neighborhood((6, 6), (3, 3))", 36)]]
    assert panels == [1 + len(views[0]), 2 + len(views[1])]
    assert not any(view.grid for view in views[0]) and views[1][0].grid == (6, 6)
