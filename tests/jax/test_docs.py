"""The page on JAX and blocks of other pages that need JAX: their code runs, here where JAX is installed."""

import sys
from pathlib import Path

import pytest

for module in ("jax", "flax", "optax", "equinox"):
    pytest.importorskip(module, reason=f"{module} is not installed")

import weft

ROOT = Path(__file__).resolve().parents[2]


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    sys.modules.pop("pages", None)
    from pages import blocks, execute

    text = (ROOT / "docs" / "jax.md").read_text(encoding="utf-8")
    shown = execute(text, "docs/jax.md", tmp_path)
    assert "was not run here" not in shown
    assert "1 trace for five splits of documents" in shown
    printed = shown.split("```text\n")[1:]
    assert len(printed) == sum(block.language == "python" for block in blocks(text))
    assert not any("False" in block.partition("```")[0] for block in printed)
    assert "('data', None, 'model'" in shown


@pytest.mark.parametrize("page", ["README.md", "docs/coming.md"])
def test_blocks_for_jax_on_other_pages_run(page, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    sys.modules.pop("pages", None)
    from pages import blocks

    found = [block for block in blocks((ROOT / page).read_text()) if block.body.startswith("# needs: jax\n")]
    assert len(found) == 1
    exec(found[0].body, {"weft": weft})
