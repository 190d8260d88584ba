"""Metadata of the package that depends on where the project lives: its links, and the README as the index shows it.

hatchling loads this as a hook. The address stands in pyproject.toml, [tool.hatch.metadata.hooks.custom], and nowhere
else; while it is empty the package has no links, and links of the README stay relative.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def address() -> str:
    """Where the project lives, as https://HOST/OWNER/NAME; empty: not known yet."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["tool"]["hatch"]["metadata"]["hooks"]["custom"]["address"])


def absolute(text: str, home: str) -> str:
    """Markdown with its relative links as addresses of the main branch, pictures as raw files; as it is without a home.

    >>> absolute("[design](DESIGN.md) ![chart](docs/chart.svg)", "https://host/owner/name")
    '[design](https://host/owner/name/blob/main/DESIGN.md) ![chart](https://host/owner/name/raw/main/docs/chart.svg)'
    """
    if not home:
        return text
    return LINK.sub(
        lambda found: f"{found[1]}[{found[2]}]({home}/{'raw' if found[1] else 'blob'}/main/{found[3]})", text
    )


class Hook(MetadataHookInterface):
    """What hatchling calls."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the fields that pyproject.toml calls dynamic."""
        home = self.config["address"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, home)}
        if home:
            metadata["urls"] = {
                "Source": home, "Changes": f"{home}/blob/main/CHANGELOG.md", "Issues": f"{home}/issues",
            }  # fmt: skip
