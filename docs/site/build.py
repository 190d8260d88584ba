"""Builds the site: `python docs/site/build.py OUT` runs the code of every page, then Sphinx.

OUT/index.html opens offline. Exit code 1, with what is wrong, if a block of code fails, a link leads nowhere, or Sphinx
has a warning.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main
from stage import SITE, stage


def build(out: Path) -> list[str]:
    """The site in `out`, its sources beside it; what is wrong, if anything."""
    source = out.with_name(out.name + "-source")
    wrong = stage(source)
    if wrong:
        return wrong
    shutil.rmtree(out, ignore_errors=True)
    options = ["-q", "-n", "-W", "--keep-going", "-E", "-c", str(SITE), "-d", str(source / ".doctrees")]
    return ["Sphinx has warnings, above"] if build_main([*options, str(source), str(out)]) else []


if __name__ == "__main__":
    problems = build(Path(sys.argv[1] if len(sys.argv) > 1 else "build/site").resolve())
    print(*problems, sep="\n\n", file=sys.stderr)
    sys.exit(1 if problems else 0)
