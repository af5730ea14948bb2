"""A script under the hooks, and under apply_plan.py, sees what it sees under plain ``python``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from in_process import ran
from rows import every_row

import cputune
from cputune.inside import applying_script

LOOK = """
import json, sys
def annotated(x: int): pass
if __name__ == "__main__":
    main = sys.modules["__main__"]
    print(json.dumps([sys.argv, sys.path, __file__, __package__ or "",
                      __spec__ and __spec__.name, main.__dict__ is globals(),
                      str(annotated.__annotations__)]))
"""
SIBLING = "from . import near\nfrom ..far import FAR\n"

WAYS = {
    "trial": ["-m", "cputune.inside"],
    "carried": [str(applying_script()), '{"world_size": 1}'],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("")
    (inner / "near.py").write_text("")
    (inner.parent / "far.py").write_text("FAR = 1\n")
    (inner / "train.py").write_text(SIBLING + LOOK)
    (inner / "alone.py").write_text("import near\n" + LOOK)
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "link.py").symlink_to(inner / "alone.py")
    return tmp_path


def seen(place: Path, *words: str) -> object:
    answer = ran(
        [sys.executable, *words],
        cwd=place,
        env={"PYTHONPATH": f"{Path(cputune.__file__).parent.parent}:{place}"},
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


SAFE = ("-P",) if sys.version_info >= (3, 11) else ()
"""No folder of a script's own is searched then."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("python", "words"),
    [
        ((), ("-m", "package.inner.train", "--a", "1")),
        ((), ("package/inner/alone.py", "--a", "1")),
        ((), ("link.py",)),
        ((), ("-m", "package.inner.train", "-m")),
        (SAFE, ("-m", "package.inner.train")),
        (SAFE, ("look.py",)),
    ],
)
def test_as_python_runs_it(
    place: Path, way: str, python: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert seen(place, *python, *WAYS[way], *words) == seen(place, *python, *words)


@every_row(
    ("line", "code", "said"),
    [
        ("sys.exit('no data')", 1, "no data"),
        ("sys.exit()", 0, ""),
        ("sys.exit(259)", 3, ""),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise ValueError('x')", 1, "ValueError: x"),
    ],
)
def test_it_ends_as_python_ends_it(line: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(f"import sys\n{line}\n")
    root = {"PYTHONPATH": str(Path(cputune.__file__).parent.parent)}
    ended = ran([sys.executable, "-m", "cputune.inside", "ends.py"], cwd=tmp_path, env=root)
    assert ended.returncode == code
    assert said in ended.stderr
    assert "cputune" not in ended.stderr
