"""How Sphinx turns the staged pages into the site; `build.py` calls it."""

import re
import tomllib
from pathlib import Path

import weft

with (Path(__file__).resolve().parents[2] / "pyproject.toml").open("rb") as file:
    ADDRESS = tomllib.load(file)["tool"]["hatch"]["metadata"]["hooks"]["custom"]["address"]

project = "weft"
author = "The weft authors"
project_copyright = "The weft authors"
release = version = weft.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
root_doc = "index"
myst_heading_anchors = 3
default_role = "code"  # docstrings name code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes and units are in the prose, where types would hide them
autodoc_preserve_defaults = True
toc_object_entries = False
suppress_warnings = ["toc.not_included"]  # notes and lists of files that pages link to
highlight_language = "none"

html_theme = "furo"
html_title = "weft"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_favicon = "static/weft.svg"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
if ADDRESS:
    html_theme_options |= {"source_repository": ADDRESS, "source_branch": "main", "source_directory": "docs/"}


def plain(app, what, name, obj, options, lines):
    """Docstrings are prose: marks that reStructuredText would read are letters, but for backticks."""
    parts = "\n".join(lines).split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"[\\*|]|_(?=\W|$)", lambda mark: "\\" + mark[0], parts[i])
    lines[:] = "`".join(parts).split("\n")


def setup(app):
    """Sphinx calls it."""
    app.connect("autodoc-process-docstring", plain)
