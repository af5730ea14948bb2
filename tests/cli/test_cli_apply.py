"""``apply``: the plan in files that the user keeps, after a diff, and back again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from in_process import Run
from report.result_cases import tuned

from cputune.emitters.apply import TARGETS, arguments, variables
from cputune.errors import UsageError
from cputune.result import Measured


@pytest.fixture
def apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cputune: Run) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    tuned().save("cputune.json")
    return partial(cputune, "apply", "cputune.json", "--other-machine")


def test_a_diff_first_and_nothing_written_where_nobody_can_be_asked(
    apply: Run,
) -> None:
    ended = apply()
    assert ended.code == 0
    assert "+++ .env" in ended.out
    assert "\n+OMP_NUM_THREADS=" in ended.out
    assert "nothing was written; --yes writes it" in ended.err
    assert not Path(".env").exists()


def test_lines_of_others_stay_and_undo_brings_back_every_byte(apply: Run) -> None:
    mine = "# mine\nTOKEN=abc\nexport OMP_NUM_THREADS=64\n"
    Path(".env").write_text(mine)
    Path(".env").chmod(0o640)
    assert apply("--yes").code == 0
    held = Path(".env").read_text()
    assert held.startswith("# mine\nTOKEN=abc\nexport OMP_NUM_THREADS=")
    assert held.count("OMP_NUM_THREADS") == 1
    assert Path(".env").stat().st_mode & 0o777 == 0o640
    for name in variables(tuned()):
        assert f"{name}=" in held
    assert "nothing to change" in apply("--yes").err
    assert apply("--undo", "--yes").code == 0
    assert Path(".env").read_text() == mine
    assert "there is nothing to undo" in apply("--undo", "--yes").err


def test_what_was_not_there_before_is_not_there_after_undo(apply: Run) -> None:
    assert apply("--yes").code == 0
    assert apply("--undo", "--yes").code == 0
    assert os.listdir() == ["cputune.json"]


def test_a_file_that_was_changed_since_is_not_taken_back(apply: Run) -> None:
    apply("--yes")
    with Path(".env").open("a") as file:
        file.write("MORE=1\n")
    ended = apply("--undo", "--yes")
    assert ended.code == 2
    assert "was changed after the plan was applied" in ended.err
    assert "MORE=1" in Path(".env").read_text()


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_training_arguments_keep_what_else_they_say(apply: Run, suffix: str) -> None:
    path = Path(f"arguments{suffix}")
    path.write_text('{"output_dir": "out", "bf16": false}' if suffix == ".json" else
                    "# why\noutput_dir: out\nbf16: false\n")  # fmt: skip
    assert apply("--to", "arguments", "--file", str(path), "--yes").code == 0
    held = yaml.safe_load(path.read_text())
    assert held == {"output_dir": "out", **arguments(tuned())}
    assert held["bf16"] is True
    assert suffix == ".json" or path.read_text().startswith("# why\n")


def test_a_compose_service_gets_variables_and_cpus(apply: Run) -> None:
    Path("compose.yaml").write_text("services:\n  train:\n    image: mine\n")
    assert apply("--to", "compose", "--yes").code == 0
    own = yaml.safe_load(Path("compose.override.yaml").read_text())["services"]["train"]
    assert own["environment"] == variables(tuned())
    assert own["cpuset"]
    Path("compose.yaml").write_text("services: {a: {}, b: {}}")
    Path("compose.override.yaml").unlink()
    ended = apply("--to", "compose", "--yes")
    assert "which service trains? (a, b)" in ended.err


def test_accelerate_has_its_default_config(apply: Run) -> None:
    one = tuned()
    plan = replace(one.best.plan, processes_per_node=1, cpus=one.best.plan.cpus[:1], node_cpus=())
    best = Measured(plan=plan, samples_per_second=one.best.samples_per_second)
    replace(one, best=best).save("cputune.json", force=True)
    assert apply("--to", "accelerate", "--yes").code == 0
    held = yaml.safe_load(Path("hf/accelerate/default_config.yaml").read_text())
    assert held["mixed_precision"] == "bf16"
    assert held["use_cpu"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "arguments"], "--to arguments needs a file"),
        (["--to", "arguments", "--file", "broken.json"], "is not JSON"),
        (["--to", "arguments", "--file", "list.json"], "holds no settings by name"),
        (["--to", "compose", "--file", "broken.yaml"], "cannot be read"),
        (["--file", "."], "cannot read"),
        (["--to", "compose"], "which service trains? (none is seen)"),
    ],
)
def test_what_cannot_be_is_said_in_words(apply: Run, words: list[str], said: str) -> None:
    Path("broken.json").write_text("{")
    Path("list.json").write_text("[1]")
    Path("broken.yaml").write_text("a: [")
    ended = apply(*words, "--yes")
    assert ended.code == 2
    assert said in ended.err
    assert "hint: " in ended.err


def test_the_word_of_each_kind_is_known_to_help(apply: Run) -> None:
    said = apply("--help").out
    assert all(kind in said for kind in TARGETS)


IN_PYTHON = """
import sys, cputune, transformers
before = transformers.TrainingArguments(output_dir="out", use_cpu=True, learning_rate=0.5)
after = cputune.Result.load(sys.argv[1]).apply(before)
assert (after.bf16, after.learning_rate, before.bf16) == (True, 0.5, False)
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_training_arguments_in_python_get_the_plan(tmp_path: Path) -> None:
    tuned().save(tmp_path / "r.json")
    subprocess.run([sys.executable, "-c", IN_PYTHON, tmp_path / "r.json"], check=True, cwd=tmp_path)


def test_what_is_no_training_arguments_is_refused() -> None:
    with pytest.raises(UsageError, match="no TrainingArguments: dict"):
        tuned().apply({})
