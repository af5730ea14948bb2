"""The first look at a script: what cannot be trained is said before anything runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cputune.errors import UsageError
from cputune.training_command import require_trainable, script_text


def notebook(here: Path) -> list[str]:
    (here / "train.ipynb").write_text("{}")
    return ["train.ipynb"]


def directory(here: Path) -> list[str]:
    (here / "code").mkdir()
    return ["code"]


def binary(here: Path) -> list[str]:
    (here / "train").write_bytes(b"\x7fELF\0\0\xff")
    return ["train"]


def typo(here: Path) -> list[str]:
    (here / "train.py").write_text("import torch\nprint('a'\n")
    return ["train.py"]


def shell_script(here: Path) -> list[str]:
    (here / "train.sh").write_text("#!/bin/bash\nset -e\npython train.py --a\n")
    return ["train.sh"]


def pipe(here: Path) -> list[str]:
    os.mkfifo(here / "train.py")
    return ["train.py"]


def package_without_main(here: Path) -> list[str]:
    (here / "package").mkdir()
    (here / "package" / "__init__.py").write_text("")
    return ["-m", "package"]


@pytest.mark.parametrize(
    ("bad", "said", "way_out"),
    [
        (lambda _: ["train.py"], "there is no script 'train.py'", "after -- comes the script"),
        (notebook, "train.ipynb is a notebook", "jupyter nbconvert --to script train.ipynb"),
        (directory, "'code' is a directory without __main__.py", "give the script in it"),
        (
            binary,
            "cannot read the script 'train': it is no UTF-8 text",
            "after -- comes the script",
        ),
        (typo, "train.py, line 2: '\\(' was never closed", "mend it first"),
        (shell_script, "train.sh, line 3: invalid syntax", "python cannot run this file either"),
        (pipe, "cannot read the script 'train.py': not a regular file", "after --"),
        (package_without_main, "there is no module 'package' here", "it is looked for in"),
        (lambda _: ["-m", "no.such.module"], "there is no module 'no.such.module'", "looked for"),
        (lambda _: ["-m", "train.py"], "there is no module 'train.py'", "looked for"),
        (lambda _: ["-m", "a/b"], "there is no module 'a/b' here", "with dots and without .py"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(
    bad: Callable[[Path], list[str]],
    said: str,
    way_out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said) as caught:
        require_trainable(bad(tmp_path))
    assert way_out in str(caught.value.hint)


@pytest.mark.parametrize("words", ["--deepspeed ds.json", "--fsdp=full_shard", "--fsdp_config f"])
def test_arguments_that_divide_a_model_are_refused(words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UsageError, match="divides a model over accelerators"):
        require_trainable([str(tmp_path / "train.py"), *words.split()])


def test_what_python_runs_is_let_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for name in ("package/__init__.py", "package/__main__.py", "package/train.py"):
        (tmp_path / name).write_text("raise SystemExit('nothing is run or imported')\n")
    for argv in (["-m", "package"], ["-m", "package.train"], ["package"]):
        require_trainable(argv)
    assert "nothing is run" in script_text(["-m", "package.train"])
