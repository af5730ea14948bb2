"""What the site takes from outside of ``docs/``: a hook of mkdocs.

README and CONTRIBUTING, the list of recipes and the figures have one home, where people and
other tools look for them. The site shows them too, and their links lead to its own pages. A link
to a file that is not brought along stays as it is, and ``mkdocs build --strict`` refuses it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
BROUGHT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "recipes/README.md": "recipes.md",
    "benchmarks/scaling.md": "scaling.md",
    "benchmarks/scripts.md": "tried-scripts.md",
    "benchmarks/readings.md": "readings.md",
    **{
        f"benchmarks/{kept.name}": f"benchmarks/{kept.name}"
        for kept in ROOT.glob("benchmarks/*.txt")
    },
}
"""A file of the repository, and where it lies on the site; of readings all that are kept."""

_HOMES = {place: source for source, place in BROUGHT.items()}
_LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add what is brought along."""
    for source, place in BROUGHT.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links between files of the repository become links between pages of the site."""
    return _LINK.sub(lambda found: _on_site(found, page.file.src_uri), markdown)


def _on_site(found: re.Match[str], page: str) -> str:
    home = _HOMES.get(page, f"docs/{page}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(home), found[1]))
    if target not in BROUGHT and not target.startswith("docs/"):
        return found[0]
    place = BROUGHT.get(target, target.removeprefix("docs/"))
    return f"]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{found[2] or ''})"
