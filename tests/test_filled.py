"""What ``make new-…`` begins is filled, and each kind is begun whole."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import new
import pytest

HERE = Path(__file__).resolve().parent.parent
ROOMS = ("cputune", "tests", "docs", "recipes")
ASKING = {"new.py", Path(__file__).name}
"""Files that name FILL because they are about it."""


def empty_places(root: Path) -> dict[str, int]:
    """How often FILL stands in each file of a checkout."""
    found = {}
    for path in (root / "CHANGELOG.md", *(p for room in ROOMS for p in (root / room).rglob("*"))):
        if path.suffix in (".py", ".sh", ".md", ".txt", ".toml") and path.name not in ASKING:
            times = path.read_text(encoding="utf-8").count("FILL: ")
            found |= {path.relative_to(root).as_posix(): times} if times else {}
    return found


def test_nothing_that_was_begun_is_left_empty() -> None:
    assert empty_places(HERE) == {}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of this one that something new is written into."""
    for place in ("cputune/doctor/checks", "cputune/plans/knobs", "cputune/emitters"):
        shutil.copytree(HERE / place, tmp_path / place)
    for name in ("knobs", "consumers", "tuner", "doctor", "emitters"):
        (tmp_path / "tests" / name).mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    for room in ("records", "cli"):
        (tmp_path / "cputune" / room).mkdir()
    rows = ("docs/emit.md", "docs/verify.md", "tests/doctor/test_doctor_checks.py", "CHANGELOG.md")
    of_knobs = ("tests/knobs/test_knobs.py", "tests/knobs/test_offered.py")
    for path in (*rows, *of_knobs, "cputune/records/options.py", "cputune/cli/help_groups.py"):
        shutil.copy(HERE / path, tmp_path / path)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "name", "place", "parts"),
    [
        ("check", "invented-check", "limits", 3),
        ("knob", "invented", "", 6),
        ("format", "invented", "", 7),
        ("option", "invented", "tune", 4),
        ("option", "invented", "emit", 4),
        ("option", "invented", "cluster", 4),
    ],
)
def test_each_kind_has_its_record_its_test_and_its_word(
    kind: str, name: str, place: str, parts: int, checkout: Path
) -> None:
    before = empty_places(checkout)
    paths = new.begin(kind, name, place, checkout)
    empty = {path for path, times in empty_places(checkout).items() if before.get(path, 0) < times}
    # Registers get a whole row, and the text of a script is complete: nothing is decided there.
    complete = {p for p in paths if p.endswith(("__init__.py", "help_groups.py", ".sh"))}
    assert (len(paths), empty | complete) == (parts, {*paths})
    for path in (path for path in paths if path.endswith(".py")):
        ast.parse((checkout / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("kind", "name", "place", "why"),
    [
        ("check", "", "limits", "is no name of a check"),
        ("check", "Swap", "limits", "is no name of a check"),
        ("check", "invented-check", "swaps", "there is no cputune/doctor/checks/swaps.py"),
        ("check", "invented-check", "versions", "by hand"),
        ("knob", "precision", "", "precision.py is there already"),
        ("format", "mpirun", "", "mpirun.py is there already"),
        ("option", "invented", "run", "IN=tune"),
        ("option", "dry_run", "tune", "--dry-run is an option of tune already"),
        ("option", "budget", "tune", "--budget is an option of tune already"),
        ("option", "max_time", "tune", "--max-time is an option of tune already"),
        ("option", "secret", "emit", "--secret is an option of emit already"),
        ("option", "output", "emit", "--output is an option of emit already"),
        ("option", "nodes", "cluster", "--nodes is an option of emit already"),
    ],
)
def test_what_cannot_be_begun_leaves_everything_as_it_was(
    kind: str, name: str, place: str, why: str, checkout: Path
) -> None:
    before = empty_places(checkout)
    with pytest.raises(new.NotBegunError, match=re.escape(why)):
        new.begin(kind, name, place, checkout)
    assert empty_places(checkout) == before
