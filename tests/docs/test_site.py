"""The documentation: every block of code runs, the site builds without a warning, and nothing in it is broken."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import weft
from weft.bench import chart
from weft.bench.figures import load
from weft.cli import COMMANDS, main
from weft.errors import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"
sys.path.insert(0, str(SITE))  # the site's scripts import each other by name

import check  # noqa: E402
from chrome import ChromeError, found  # noqa: E402
from pages import PageError, blocks, execute  # noqa: E402

sys.path.remove(str(SITE))

# (page, first words of its reason): code on the pages that is not run, and all there may be.
LEFT_OUT = {
    ("README.md", "it makes an environment"),
    ("docs/distributed.md", "it needs a process group"),
    ("docs/index.md", "it changes an environment"),
    ("docs/start.md", "it makes the environment"),
}
RUN = ("python", "sh")
# A page of every kind, to see that what is broken is found.
BROKEN = """<!doctype html><html><head><link rel="icon" href="data:,"></head><body id="top">
<a href="#top">fine</a> <a href="other.html#there">fine</a> <a href="https://example.org/">not followed</a>
<a href="missing.html">m</a> <a href="other.html#nowhere">a</a> <a href="../outside.html">o</a>
<div style="width: 500px">wide</div>
<img src="good.svg"> <img src="empty.svg"> <img src="text.png"> <img src="absent.png">
<script src="https://example.org/code.js"></script><script>{script}</script></body></html>"""
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {0}" width="{0}" height="{0}"/>'


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does."""
    pytest.importorskip("sphinx", reason="the site needs Sphinx: pip install '.[docs]'")
    pytest.importorskip("matplotlib", reason="its pictures need matplotlib: pip install '.[plot]'")
    pytest.importorskip("transformers", reason="a recipe needs it: pip install '.[transformers]'")
    out = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, SITE / "build.py", out], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def broken(tmp_path):
    """A site of two pages with a fault of every kind."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text(BROKEN.format(script="console.error('oh no'); absent()"))
    (folder / "other.html").write_text('<!doctype html><link rel="icon" href="data:,"><p id="there">here</p>')
    (folder / "good.svg").write_text(SVG.format(8))
    (folder / "empty.svg").write_text(SVG.format(0))
    (folder / "text.png").write_text("no picture")
    return folder


def pages():
    """Pages whose code is run: the README and all of docs but the dated decisions."""
    return [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "decisions")]


def browser():
    program = found()
    if program is None:
        pytest.skip(check.NO_BROWSER)
    return program


# ---- the site --------------------------------------------------------------------------------------------------------
@pytest.mark.more
def test_every_page_is_in_the_site(site):
    for page in pages()[1:]:
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page


@pytest.mark.more
def test_every_pattern_has_a_page_with_its_picture(site):
    for name in {name for name in weft.__all__ if name.islower()} - {
        "errors",
        "attention",
        "merge",
        "plan",
        "varlen_attention",
        "decode_attention",
        "explain",
        "recognize",
        "bias",
        "trace_score",
        "fuse",
    }:
        page = check.parsed(site / "patterns" / f"{name}.html")
        assert [address for tag, address in page.links if tag == "img" and address.endswith(f"{name}-tiles.svg")], name


@pytest.mark.more
def test_the_reference_has_every_public_name(site):
    """What `weft`, its exceptions and `weft.napkin`'s derivations offer stands in the reference, with its source."""
    known = set().union(*(check.parsed(page).ids for page in (site / "reference").glob("*.html")))
    public = {f"weft.{name}" for name in weft.__all__ if name not in ("errors", "bias", "__version__")}
    public |= {f"weft.bias.{name}" for name in ("relative", "buckets", "grid", "dense", "alibi")}
    public |= {f"weft.errors.{name}" for name, kind in vars(weft.errors).items() if isinstance(kind, type)}
    public |= {f"weft.napkin.{name}" for name in ("relabel.Derivation", "cost.transfers", "span.Span", "draw.svg")}
    assert public - known == set()


@pytest.mark.more
def test_every_link_and_picture_of_the_site(site, monkeypatch):
    assert check.linked(site) == []
    monkeypatch.chdir(site.parent)  # and named as `make docs-check` names it
    assert check.linked(Path(site.name)) == []


@pytest.mark.more
def test_the_site_in_a_browser(site):
    assert list(check.browsed(site, browser())) == []


@pytest.mark.more
def test_the_site_is_small_enough_to_carry_along(site):
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 14 << 20


@pytest.mark.more
def test_the_page_of_every_pattern_in_a_browser(tmp_path):
    """What `weft demo --html` writes: pictures drawn, nothing loaded, nothing said on the console."""
    pytest.importorskip("matplotlib", reason="its pictures need matplotlib: pip install '.[plot]'")
    program = browser()
    done = CliRunner().invoke(main, ["demo", "--html", str(tmp_path / "weft.html")])
    assert done.exit_code == 0, done.output
    assert list(check.browsed(tmp_path, program)) == []


def test_the_code_of_the_first_page_runs(tmp_path):
    page = ROOT / "docs" / "start.md"
    assert "```text\n" in execute(page.read_text(), "start.md", tmp_path)


# ---- the checks ------------------------------------------------------------------------------------------------------
def test_broken_links_and_pictures_are_found(broken):
    told = [line.removeprefix("index.html: ") for line in check.linked(broken)]
    assert told == [
        "missing.html leads nowhere",
        "other.html#nowhere has no such anchor",
        "../outside.html leads nowhere",
        "empty.svg is a picture without a size",
        "text.png is a picture without a size",
        "absent.png leads nowhere",
        "https://example.org/code.js is loaded from elsewhere",
    ]


def test_a_browser_finds_errors_and_pictures_that_are_not_drawn(broken):
    told = "\n".join(check.browsed(broken, browser()))
    for fault in (
        "oh no",
        "absent is not defined",
        "text.png is not drawn",
        "absent.png is not drawn",
        "code.js is loaded",
        "wider than a window of 390",
    ):
        assert fault in told, told
    assert "good.svg is not drawn" not in told and "other.html:" not in told and "window of 820" not in told


def test_a_browser_that_is_named_must_be_there(monkeypatch):
    monkeypatch.setenv("WEFT_CHROME", "no-such-browser")
    with pytest.raises(ChromeError, match="WEFT_CHROME=no-such-browser"):
        found()


def test_without_a_browser_it_says_so(broken, tmp_path):
    (broken / "index.html").unlink()
    done = subprocess.run(
        [sys.executable, SITE / "check.py", broken], capture_output=True, text=True, check=False,
        env={"PATH": str(tmp_path)} | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
    )  # fmt: skip
    assert done.returncode == 0 and "no fault found" in done.stdout
    assert "apt-get install chromium" in done.stderr


# ---- the code of pages -----------------------------------------------------------------------------------------------
def test_little_code_is_left_out():
    left = {(str(p.relative_to(ROOT)), b.skipped) for p in pages() for b in blocks(p.read_text()) if b.skipped}
    assert len(left) == len(LEFT_OUT)
    for page, reason in left:
        assert any(page == name and reason.startswith(words) for name, words in LEFT_OUT), (page, reason)


def test_what_is_left_out_asks_make_for_what_it_has():
    """The environment that tests run in cannot make itself; that the commands are understood is what can be tried."""
    lines = [line for p in pages() for b in blocks(p.read_text()) if b.skipped for line in b.body.splitlines()]
    targets = [line.split()[1] for line in lines if line.startswith("make ")]
    assert len(targets) >= 2
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_block_has_a_language():
    """A block without one would be shown as code and never run; `text` is what is no code."""
    for page in pages():
        text = page.read_text()
        assert text.count("\n```") + text.startswith("```") == 2 * len(list(blocks(text))), page
        for block in blocks(text):
            assert block.language in (*RUN, "text", "{eval-rst}"), f"{page}, line {block.line}: {block.language!r}"


PAGE = """# A page

```python
x = 2
```

```python
print(x + 1)
```

```text
{promise}
```

```python
# not run here: it would fail
boom()
```
"""


def test_a_page_shows_what_its_code_prints(tmp_path):
    text = PAGE.split("```text", maxsplit=1)[0]
    assert execute(text, "page", tmp_path).rstrip().endswith("```text\n3\n```")
    assert execute(PAGE.format(promise=3), "page", tmp_path).count("```text\n3\n```") == 1


def test_a_page_that_promises_something_else_is_refused(tmp_path):
    with pytest.raises(PageError, match=r"(?s)page, line 12: the page promises\n4\n.*prints\n3"):
        execute(PAGE.format(promise=4), "page", tmp_path)


def test_a_block_that_fails_names_its_line(tmp_path):
    with pytest.raises(PageError, match=r'(?s)page, line 4.*"page", line 5.*NameError'):
        execute("# A page\n\n```python\nx = 1\nboom()\n```\n", "page", tmp_path)


def test_a_page_whose_modules_are_not_installed_says_so_and_runs_nothing(tmp_path):
    page = "<!-- needs: os no_such_module -->\n# A page\n\n```python\nboom()\n```\n"
    shown = execute(page, "page", tmp_path)
    assert shown.startswith("# A page\n\n*The code of this page was not run here, since no_such_module is not")
    assert shown.endswith(page.partition("# A page\n")[2])
    with pytest.raises(PageError, match="page, line 4"):
        execute(page.replace(" no_such_module", ""), "page", tmp_path)


def test_a_block_whose_modules_are_not_installed_is_left_alone(tmp_path):
    page = "# A page\n\n```python\n# needs: os no_such_module\nboom()\n```\n\n```python\nprint(3)\n```\n"
    assert execute(page, "page", tmp_path) == page + "\n```text\n3\n```\n"
    with pytest.raises(PageError, match="page, line 4"):
        execute(page.replace(" no_such_module", ""), "page", tmp_path)


@pytest.mark.parametrize("line, word", [("rm -rf /", "no command of weft"), ("weft show 'causal('", "exit code 2")])
def test_a_command_that_fails_is_told(line, word, tmp_path):
    with pytest.raises(PageError, match=f"page, line 2: .*{word}"):
        execute(f"```sh\n{line}\n```\n", "page", tmp_path)


def test_pictures_that_a_page_writes_are_shown(tmp_path):
    pytest.importorskip("matplotlib")
    shown = execute("```sh\n.venv/bin/weft show 'causal()' --out mine.svg # a picture\n```\n", "page", tmp_path)
    assert shown.endswith("\n![mine](mine.svg)\n") and (tmp_path / "mine.svg").exists()


def test_every_command_has_its_help_on_the_page_of_commands():
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    for name in COMMANDS:
        assert f"\n## weft {name}\n" in text and f"weft {name} --help\n" in text, name


# ---- the home page and the README ----------------------------------------------------------------------------------
def test_the_picture_of_the_home_page_tells_the_truth():
    picture = next(blocks((ROOT / "docs" / "index.md").read_text())).body
    text, _, _ = picture.partition(" at 256 tokens")
    pattern = eval(f"weft.{text}")
    drawn = [line.split("|")[1] for line in picture.splitlines() if "|" in line]
    assert drawn == pattern.draw(256, width=len(drawn[0]) // 2).split("\n")[: len(drawn)]
    terms = [f"{term.nnz:,} pairs" for term in pattern.acsr(256).terms]
    assert [line.rpartition("  ")[2].strip() for line in picture.splitlines() if " term " in line] == terms
    assert f"{pattern.acsr(256).nbytes} bytes" in picture and pattern.acsr(1_000_000).nbytes == pattern.acsr(256).nbytes


def test_the_readme_is_short_and_names_the_distribution():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 90
    assert f"`{DISTRIBUTION}`" in text


@pytest.mark.more
def test_the_code_of_the_readme_is_typed(tmp_path):
    """As strictly as mypy can, but for what torch leaves without types."""
    pytest.importorskip("mypy", reason="pip install '.[dev]'")
    code = [b.body for b in blocks((ROOT / "README.md").read_text()) if b.language == "python" and b.runs]
    (tmp_path / "readme.py").write_text("\n".join(code))
    words = ["--strict", "--config-file=", "--follow-imports=silent", "--untyped-calls-exclude=torch", "readme.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"MYPYPATH": str(ROOT / "src"), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache" / "readme")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_that_the_readme_links_to_are_there():
    """It is no page of the site, whose links are checked there."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_what_the_readme_says_of_speed_is_what_the_rows_say():
    readme = " ".join((ROOT / "README.md").read_text().split())
    machines = [machine for machine in load(ROOT / "benchmarks" / "results") if chart.complete(machine)]
    assert machines
    assert all(chart.conclusion(machine) in readme for machine in machines)
