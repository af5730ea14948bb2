"""The first look at a script: what cannot be trained is said before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from golden_texts import Golden

from cputune import UsageError
from cputune.plans.training_command import require_trainable, script_text


@pytest.mark.parametrize(
    ("file", "text", "argv", "said", "way_out"),
    [
        ("a", "", "train.py", "there is no script 'train.py'", "after -- give the script"),
        ("train.ipynb", "{}", "train.ipynb", "train.ipynb is a notebook", "jupyter nbconvert --to"),
        ("code/a", "", "code", "'code' is a directory without __main__.py", "name the script in"),
        ("train", "\x7fELF\0\0", "train", "'train': it is not UTF-8 text", "after -- give"),
        ("t.py", "import a\nprint('a'", "t.py", "t.py, line 2: '\\(' was never closed", "fix it"),
        ("n.py", "import a\0", "n.py", "n.py(, line 1)?: source code string cannot", "fix it"),
        ("t.sh", "python t.py", "t.sh", "t.sh, line 1: invalid", "cannot run this file"),
        ("p/__init__.py", "", "-m p", "there is no module 'p' here", "it is looked for in"),
        ("a", "", "-m no.such.module", "there is no module 'no.such.module'", "looked for"),
        ("train.py", "", "-m train.py", "there is no module 'train.py'", "looked for"),
        ("a/b", "", "-m a/b", "there is no module 'a/b' here", "with dots and without .py"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(
    file: str, text: str, argv: str, said: str, way_out: str, workdir: Path
) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_bytes(text.encode("latin-1") + b"\xff" * text.startswith("\x7f"))
    with pytest.raises(UsageError, match=said) as caught:
        require_trainable(argv.split())
    assert way_out in str(caught.value.hint)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, golden: Golden) -> None:
    os.mkfifo(tmp_path / "train.py")
    with golden.raises(UsageError):
        require_trainable([str(tmp_path / "train.py")])


@pytest.mark.parametrize("words", ["--deepspeed ds.json", "--fsdp=full_shard", "--fsdp_config f"])
def test_arguments_that_divide_a_model_are_refused(
    words: str, tmp_path: Path, golden: Golden
) -> None:
    (tmp_path / "train.py").write_text("")
    with golden.raises(UsageError):
        require_trainable([str(tmp_path / "train.py"), *words.split()])


def test_what_python_runs_is_let_through(workdir: Path) -> None:
    (workdir / "package").mkdir()
    for name in ("package/__init__.py", "package/__main__.py", "package/train.py"):
        (workdir / name).write_text("raise SystemExit('nothing is run or imported')\n")
    for argv in (["-m", "package"], ["-m", "package.train"], ["package"]):
        require_trainable(argv)
    assert "nothing is run" in script_text(["-m", "package.train"])
