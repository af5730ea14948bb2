"""What is read of shell: words, where each is, and what a line that ends too early was meant as."""

from __future__ import annotations

import pytest
from golden_texts import Golden
from rows import every_row

from cputune import UsageError
from cputune.launch.launch import Launch
from cputune.launch.located_words import Word
from cputune.launch.shell import read_launches, read_shell


def launch_in(text: str, name: str = "run.sh") -> Launch:
    (launch,) = read_shell(text, name).launches
    return launch


def source(text: str, word: str) -> str | None:
    """The text of the file at the span of a word."""
    assert isinstance(word, Word)
    return None if word.span is None else text[word.span.start : word.span.end]


@every_row(
    ("text", "word", "written"),
    [
        ("python t.py --x 'a b'", "a b", "'a b'"),
        ("python é.py --naïve 'a b'", "a b", "'a b'"),
        ("python t.py --naïve '中文 🤗' $X", "中文 🤗", "'中文 🤗'"),
        ('A="--bf16 --use_cpu"\npython t.py $A', "--use_cpu", "--use_cpu"),
        ("A=(--bf16 --use_cpu)\npython t.py ${A[@]}", "--use_cpu", "--use_cpu"),
        ("N=4\ntorchrun --nproc_per_node=$N t.py", "--nproc_per_node=4", "--nproc_per_node=$N"),
        ('srun bash -c "python t.py --bf16"', "--bf16", "--bf16"),
        ('A="--a 1 \\\n  --b 2"\npython t.py $A', "--b", "--b"),
        ("python t.py --x > log 2>&1 --y", "--y", "--y"),
        ("x=1 y=(a b)\npython t.py $x", "1", "$x"),
    ],
)
def test_a_word_knows_where_it_is_written(text: str, word: str, written: str) -> None:
    words = launch_in(text).words
    assert source(text, words[words.index(word)]) == written


@every_row("letter", ["é", "中", "🤗", "\U00031860", "\U000cf104", "\U0010ffff"])
def test_no_character_ends_the_process(letter: str) -> None:
    """tree-sitter-bash dies of some, behind such a brace (its issue 337)."""
    launch = launch_in(f"echo {{{letter}..3}}\npython t.py --x {letter}b")
    assert launch.argument("--x") == f"{letter}b"


@every_row("word", ["$A", '${B:-"$(nproc)"}', "${B:-`nproc`}", "${SLURM_GPUS_ON_NODE:-2}"])
def test_a_word_that_only_running_shows_is_nowhere(word: str) -> None:
    text = f"A=$(nproc)\npython t.py --x {word}"
    assert launch_in(text).argument("--x") == "$?"


@every_row(
    ("text", "kind", "line"),
    [
        ("python t.py \\\n  --a\n  --b \\\n  --c\n", "lost backslash", 2),
        ("python t.py \\ \n  --b --c\n", "blank behind a backslash", 1),
        ("python t.py \\  # data\n  --b --c\n", "comment behind a backslash", 1),
        ("python t.py \\\n  # --a \\\n  --b --c\n", "comment inside", 2),
        ("python t.py \\\r\n  --b --c\r\n", "carriage return", 1),
    ],
)
def test_a_line_that_ends_too_early_is_read_as_it_was_meant(
    text: str, kind: str, line: int
) -> None:
    file = read_shell(text, "run.sh")
    (launch,) = file.launches
    assert launch.arguments[-2:] == ("--b", "--c")
    assert [(one.kind, one.line) for one in file.breaks] == [(kind, line)]
    assert source(text, launch.arguments[-1]) == "--c"


def test_dashes_that_begin_a_line_of_text_are_no_lost_line() -> None:
    text = "cat <<E > a\nx\n--b\nE\npython t.py \\\n  --a\nA=(\n  --b\n)\n"
    assert read_shell(text, "run.sh").breaks == ()


@every_row(
    "text",
    ["echo python t.py", "pip install torchrun", "python -m pip install -r t.py", "which mpirun"],
)
def test_what_only_names_a_launcher_trains_nothing(text: str) -> None:
    assert read_shell(text, "run.sh").launches == ()


def test_variables_have_the_order_of_the_script() -> None:
    names = [f"CCL_{letter}" for letter in "QWERTYUIOP"]
    text = "".join(f"export {name}=1\n" for name in names) + "python t.py"
    assert list(launch_in(text).environment) == names


def test_variables_of_the_batch_system_are_filled_in() -> None:
    text = "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\npython t.py"
    (launch,) = read_shell(text, "job.sh", {"SLURM_CPUS_PER_TASK": "8"}).launches
    assert launch.environment["OMP_NUM_THREADS"] == "8"


def test_an_open_quote_is_an_error_with_its_line(golden: Golden) -> None:
    with golden.raises(UsageError):
        read_shell("python t.py\npython 'u.py\n", "run.sh")


@pytest.mark.parametrize(
    "text",
    [
        '"$python" train.py --bf16\n',
        'taskset -c 0-1 "$PYTHON" -m package.train\n',
        '[[ -x $tuned ]] || tuned=python3\npython=${PYTHON:-$tuned}\n"$python" a.py\n',
        '[[ -x $tuned ]] || tuned=python3\npython=${PYTHON:-$tuned}\nsrun \\\n "$python" a.py\n',
    ],
)
def test_a_python_that_only_running_shows_is_a_python(text: str) -> None:
    (launch,) = read_launches(text, "run.sh")
    assert launch.launcher == "python"


def test_another_program_that_only_running_shows_starts_no_training() -> None:
    assert read_launches('"$EDITOR" train.py\n', "run.sh") == ()
