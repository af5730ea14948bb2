"""Write the pages of this folder that are made from the program's own text: ``make doc``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cputune.report.checks_page import checks_page

PAGES: dict[str, Callable[[], str]] = {
    "checks.md": checks_page,
}


def main() -> None:
    """Write each page beside this file."""
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
