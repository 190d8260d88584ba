"""What came from outside is shown by its codes: in errors, by commands, in pictures and on pages."""

import json
import re
from pathlib import Path
from xml.dom import minidom

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.tiers import every

import weft
from weft.bench import figures, rows
from weft.cli import main
from weft.errors import OptionError, WeftError
from weft.napkin.draw import _text
from weft.outside import lines, parsed, shown
from weft.store import opened
from weft.tracing.place import place_of

from .hostile import TEXTS, TITLE, harmless

CLI = Path(weft.__file__).parent / "cli"


@given(st.text() | st.sampled_from(TEXTS))
def test_the_law(text):
    assert harmless(shown(text)) and len(shown(text)) <= 10 * 200 and "\n" not in shown(text)
    assert harmless(lines(text)) and lines(text).count("\n") == text.count("\n")
    if text.isprintable() and len(text) <= 200:
        assert shown(text) == lines(text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_errors(text):
    error = OptionError(f"adopt {text}", text, text)
    assert harmless(str(error)) and isinstance(error, WeftError) and error.wrong == text


@pytest.mark.parametrize("module", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_commands_write_by_one_way(module):
    text = module.read_text()
    assert "print(" not in re.sub(r"[\w.]print\(", "", text)
    assert module.stem == "say" or not re.search(r"click\.(s?echo)|std(out|err)\.write", text)


@pytest.mark.parametrize("text", every(4, TEXTS[:16]))
@pytest.mark.parametrize(
    "command",
    [("{}",), ("--{}",), ("plan", "{}"), ("show", "causal()", "--{}"), ("recognize", "{}.npy"), ("recognize", "m:{}"),
     ("tune", "--adopt", "{}"), ("plan", "causal()", "--device", "{}")],
    ids=str,
)  # fmt: skip
def test_what_was_typed(command, text):
    if set(text) & {"\x00", "\ud800"}:
        pytest.skip("no argument of a process holds it")
    done = CliRunner().invoke(main, [part.format(text) for part in command])
    assert done.exit_code == 2 and harmless(done.output), repr(done.output)


@pytest.mark.parametrize("text", every(4, TEXTS))
def test_names_in_the_store(text, tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    store = opened()
    store.put("0" * 64, {"name": text, "target": text, "triton": text}, {"a": b"."})
    for action in ("list", "size", "verify"):
        done = CliRunner().invoke(main, ["cache", action])
        assert done.exit_code == 0 and harmless(done.output), repr(done.output)
        assert max(map(len, done.output.splitlines())) < 2000
        json.loads(CliRunner().invoke(main, ["cache", action, "--json"]).output)


def test_a_file_in_an_entry_with_a_name_that_paints(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    store = opened()
    store.put("0" * 64, {"name": "a"}, {"a": b"."})
    (store.root / ("0" * 64) / TITLE).touch()
    done = CliRunner().invoke(main, ["cache", "verify"])
    assert done.exit_code == 1 and harmless(done.output) and "owned" in done.output
    with pytest.warns(RuntimeWarning, match="damaged") as found:
        store.get("0" * 64)
    assert harmless(str(found[0].message))


@pytest.mark.parametrize("text", TEXTS[:16])
def test_where_a_trace_ended(text):
    def function(q, k):
        return 1 // 0

    try:
        code = function.__code__.replace(co_name=text)
        type(function)(code, {})(0, 0)
    except ZeroDivisionError as error:
        assert harmless(place_of(error))
    except (ValueError, UnicodeEncodeError):  # no name of Python's
        pass


def test_what_recognition_says_of_a_function(monkeypatch):
    code = compile(
        "def f(q, k):\n    return (q * k) % 7 // (1 if q is k else 1) == 0  # \x1b]0;owned\x07\n", "x.py", "exec"
    )
    scope = {}
    exec(code, scope)
    assert harmless(str(weft.recognize(scope["f"], size=(16, 16))))


@pytest.mark.parametrize("text", TEXTS)
def test_text_in_svg(text):
    minidom.parseString(_text(0, 0, text, "black"))  # what is no XML raises


@pytest.mark.parametrize("text", every(6, TEXTS[:-1]))  # whose letters its font has
def test_titles_of_figures(text, tmp_path):
    plot = pytest.importorskip("weft.plot")
    pytest.importorskip("matplotlib")
    figure = plot._figure((3, 3)) if hasattr(plot, "_figure") else None
    if figure is None:
        from matplotlib.figure import Figure

        figure = Figure((6, 4))
    plot.headline(figure, text, "below")
    figure.savefig(tmp_path / "a.svg")
    minidom.parse(str(tmp_path / "a.svg"))


@pytest.mark.parametrize("text", [*TEXTS, "a|b", "nan", "inf"])
def test_rows_of_benchmarks(text, tmp_path):
    path = tmp_path / "rows.csv"
    name = text.replace("\x00", "").encode(errors="replace").decode()[:50]
    row = dict.fromkeys(rows.COLUMNS, "") | {
        "workload": next(iter(figures.WORKLOADS)),
        "machine": name,
        "message": name,
    }
    rows.append(path, [row])
    (machine,) = figures.load(tmp_path)
    assert harmless(machine.name) and not set("<|") & set(machine.name) and "\n" not in machine.name
    for column in rows.FIGURES:
        path.unlink()
        rows.append(path, [row | {column: name or "x"}])
        with pytest.raises(OptionError, match=f"{column} of its row 2"):
            rows.read(path)


@pytest.mark.parametrize(
    "data", ["[" * 10_000, "[" * 40 + "]" * 40, "1" * 5000, "1e999", "NaN", "-Infinity", "", "\ud800", b"\xff"]
)
def test_json_that_nobody_wrote(data):
    with pytest.raises(ValueError):
        parsed(data)
    assert parsed('{"a": [1, 2.5, null, true, "x"]}') == {"a": [1, 2.5, None, True, "x"]}


def test_a_directory_with_a_name_that_paints(tmp_path, monkeypatch):
    place = tmp_path / TITLE
    place.mkdir()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(place / "cache"))
    place.chmod(0o777)
    (place / "cache").mkdir()
    with pytest.warns(RuntimeWarning, match="owned") as found:
        assert opened().entries() == []
    assert harmless(str(found[0].message))
    done = CliRunner().invoke(main, ["cache", "size"])
    assert harmless(done.output)
    place.chmod(0o700)
