"""Files as small as their plan: lines of every launch, for kinds of plan × formats."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest
from launch_lines import KINDS, LOOP, TRAINER, Kind, below_header, written
from rows import like_others

from cputune import EmittedFile, probe
from cputune.emitters import FORMATS

OF_ONE_RANK, OF_SEVERAL, OF_HEADER = 25, 60, 8
SHELL_FORMATS = tuple(name for name, one in FORMATS.items() if one.main.endswith(".sh"))


def held(files: tuple[EmittedFile, ...], ranks: int) -> None:
    """Raise AssertionError for a script that is longer than it may be."""
    text = files[0].text
    comments = takewhile(lambda line: line.startswith("#"), text.splitlines())
    said = [line for line in comments if not line.startswith(("#!", "#SBATCH", "# Unless"))]
    assert len(said) <= OF_HEADER, text
    directives = text.count("\n#SBATCH")
    assert below_header(text) + directives <= (OF_ONE_RANK if ranks == 1 else OF_SEVERAL), text


USUAL = ("torchrun", "mpirun")
OTHERS = [format for format in SHELL_FORMATS if format not in USUAL]


@pytest.mark.parametrize("format", [*USUAL, *like_others(OTHERS)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_launch_is_as_long_as_its_plan_needs(kind: Kind, format: str, workdir: Path) -> None:
    (workdir / "train.py").write_text(TRAINER)
    (workdir / "loop.py").write_text(LOOP)
    files = written(kind, format, probe())
    held(files, kind.ranks)
    said = kind.framework != "recipe" and kind.ranks == 1 and not kind.settings
    if said and kind.framework is not None:
        assert [file.name for file in files] == [f"{format}.sh"], "flags and variables say it all"
