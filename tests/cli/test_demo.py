"""`weft demo`: the page of every pattern, and the way to the main job."""

import json
import sys
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

import weft
from weft.cli import main
from weft.errors import install_line
from weft.pattern.arguments import LIBRARY

pytest.importorskip("torch")

from weft.demo import __main__ as job
from weft.demo import page

VOID = {"meta", "link", "img", "br"}
OPTIONAL = {"th", "td"}  # may be left open


@pytest.mark.more
def test_over_processes():
    """Four processes have the losses of one, and receive less than by all-gather."""
    found = run("distributed")
    assert found.exit_code == 0, found.output
    assert "the losses are the same" in found.output and "138,624; by all-gather 589,824" in found.output


def run(*args):
    return CliRunner().invoke(main, ["demo", *args], catch_exceptions=False)


class Reader(HTMLParser):
    """Collects ids, links and sources, and sees to it that what is opened is closed."""

    def __init__(self):
        super().__init__()
        self.ids, self.links, self.sources, self.open = set(), set(), [], []

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        self.ids |= {said["id"]} if "id" in said else set()
        self.links |= {said["href"]} if "href" in said else set()
        self.sources += [said["src"]] if "src" in said else []
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    pytest.importorskip("matplotlib")
    path = tmp_path_factory.mktemp("page") / "weft.html"
    return run("--html", str(path)), path.read_text(encoding="utf-8")


def test_the_library_is_complete():
    assert set(page.SHOWN) == {name for name in weft.__all__ if name in LIBRARY}


@pytest.mark.more
def test_the_page_stands_alone(written):
    done, text = written
    assert done.exit_code == 0 and "every check holds" in done.output
    assert len(text) < 3_000_000
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert {link for link in reader.links if link != "data:,"} == {f"#{name}" for name in page.SHOWN}
    assert reader.ids == set(page.SHOWN)
    assert len(reader.sources) == len(page.SHOWN)
    assert all(source.startswith("data:image/png;base64,") for source in reader.sources)
    assert "://" not in text and "FAILED" not in text


def test_rows():
    done = run("--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0 and [row["name"] for row in rows] == list(page.SHOWN)
    for row in rows:
        assert row["holds"] and row["seconds"] > 0 and row["error"] <= page.ALLOWED
    causal = next(row for row in rows if row["name"] == "causal")
    assert causal["share"] == pytest.approx((page.TOKENS + 1) / (2 * page.TOKENS))
    assert causal["nbytes"] == weft.causal().acsr(page.TOKENS).nbytes


def test_a_wrong_result_fails(monkeypatch, tmp_path):
    right = weft.attention
    monkeypatch.setattr(page, "SHOWN", {"causal": "causal()", "full": "full()"})
    monkeypatch.setattr(weft, "attention", lambda *args: right(*args) * (float("nan") if args[3] == weft.full() else 1))
    monkeypatch.setattr(page, "_picture", lambda pattern: "")
    done = run("--html", str(tmp_path / "a.html"))
    assert done.exit_code == 1 and "FAILED: full" in done.output
    assert (tmp_path / "a.html").read_text().count("FAILED") == 1


def test_without_a_page_the_main_job_runs(monkeypatch):
    asked = []
    monkeypatch.setattr(job, "main", lambda arguments: asked.append(arguments) or 1)
    assert run("--quick", "--no-pictures", "--out", "there").exit_code == 1
    assert asked == [["--out=there", "--quick", "--no-pictures"]]


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = run("--json")
    assert done.exit_code == 2 and install_line("torch") in done.output


def test_a_page_that_cannot_be_written_is_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "entries", lambda *args, **how: pytest.fail("it ran"))
    done = run("--html", str(tmp_path / "no" / "a.html"))
    assert done.exit_code == 2 and "name a file that can be written" in done.output


@pytest.mark.parametrize("before", [None, "an older page"])
def test_a_run_that_fails_leaves_the_file_as_it_was(monkeypatch, tmp_path, before):
    def fails(*args, **how):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(page, "entries", fails)
    path = tmp_path / "a.html"
    if before:
        path.write_text(before)
    with pytest.raises(RuntimeError, match="in the middle"):
        run("--html", str(path))
    assert (path.read_text() if path.exists() else None) == before
