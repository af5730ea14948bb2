"""``place.py``: the files of a launch come to another host, and none of them stays."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

from cputune.host.remote.ask import script_text

FILES = {"launch/rank.py": "print(1)\n", "lib/package/module.py": "x = 1\n"}


def ask(folder: Path, files: dict[str, str] | None) -> subprocess.Popen[str]:
    question = {"folder": str(folder), "files": files, "programs": ["launch/rank.py"]}
    argv = [sys.executable, "-c", script_text("place.py"), json.dumps(question)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> object:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(out)


def test_two_launches_of_one_tuner_do_not_take_each_others_files(tmp_path: Path) -> None:
    first, second = (tmp_path / "cputune-a" / name for name in ("trial-1", "trial-2"))
    for folder in (first, second):
        assert answer(ask(folder, FILES)) == {"placed": str(folder)}
    answer(ask(first, None))
    assert not first.exists()
    assert (second / "launch" / "rank.py").stat().st_mode & 0o777 == 0o700
    assert (second / "lib" / "package" / "module.py").read_text() == "x = 1\n"
    answer(ask(second, None))
    assert not list(tmp_path.iterdir())


def test_a_rank_that_still_writes_while_it_ends_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cputune-a" / "trial-1"
    answer(ask(folder, {**FILES, **{f"lib/package/{n}.py": "" for n in range(300)}}))
    ended = threading.Event()

    def write() -> None:
        cache = folder / "lib" / "package" / "__pycache__"
        for number in range(1000):
            with contextlib.suppress(OSError):  # there, and removed between two looks at it
                cache.mkdir(exist_ok=True)
                (cache / f"{number}.pyc").touch()
            if ended.wait(0.001):
                return

    rank = threading.Thread(target=write)
    rank.start()
    removals = [ask(folder, None) for _ in range(2)]
    for removal in removals:
        answer(removal)
    ended.set()
    rank.join()
    assert not list(tmp_path.iterdir())


def test_what_a_rank_has_left_half_removed_goes_too(tmp_path: Path) -> None:
    folder = tmp_path / "cputune-a" / "trial-1"
    folder.mkdir(parents=True)  # it was killed after the mark had gone
    answer(ask(folder, None))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_hosts_share_stays(tmp_path: Path) -> None:
    folder = tmp_path / "cputune-a" / "trial-1"
    (folder / "scratch").mkdir(parents=True)
    answer(ask(folder, FILES))
    answer(ask(folder, None))
    assert [path.name for path in folder.iterdir()] == ["scratch"]
