"""docs/library.md: its tables hold every event and logger, its programs run."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_ranks import simulate
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune.tuner import events

HERE = Path(__file__).parent
PAGE = (Path(__file__).parent.parent / "docs" / "library.md").read_text()


def tune_small(**options: object) -> cputune.Result:
    runner = FakeRunner(truthful())
    return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=runner, **options)


def test_its_table_holds_every_event() -> None:
    named = set(re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.M))
    assert named == {kind.__name__ for kind in events.Event.__args__}


def test_a_listener_that_keeps_a_log_hears_the_study(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cputune.events"):
        result = tune_small(budget=3)
    told = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"\d+ plans, at most 3 trials; .*", told[1])
    ending = re.compile(r"trial \d+: ((at most )?[\d.]+ samples/s|stopped after .*slower)  ")
    ended = [line for line in told if ending.match(line)]
    assert len(ended) == 3
    assert told[-1] == f"study ended after {len(result.trials)} trials"
    assert not any(": step " in line for line in told)


def test_at_debug_every_step_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="cputune.events"):
        tune_small(budget=2)
    assert any(re.fullmatch(r"trial 0: step 0, [\d.e-]+ s", r.getMessage()) for r in caplog.records)


def test_without_a_handler_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tune_small(budget=2)
    assert capsys.readouterr() == ("", "")
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("cputune").handlers)


def test_its_table_names_the_loggers_there_are() -> None:
    code = "\n".join(p.read_text() for p in Path(cputune.__file__).parent.rglob("*.py"))
    children = set(re.findall(r'log\.getChild\("(\w+)"\)', code))
    assert set(re.findall(r"^\| `cputune\.(\w+)` \|", PAGE, re.M)) == children


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> Path:
    """A folder with a script; real ranks are simulated."""
    simulate(monkeypatch, lambda plan: 1.0 / plan.threads_per_process)
    (workdir / "train.py").write_text("import torch\n")
    (workdir / "mine.toml").write_text((HERE.parent / "recipes" / "bert-mini.toml").read_text())
    return workdir


@pytest.mark.parametrize(
    ("job", "argv", "name"),
    [
        ("train.py --lr 3e-5", ("train.py", "--lr", "3e-5"), "train.py"),
        ("python train.py --lr 3e-5", ("train.py", "--lr", "3e-5"), "train.py"),
        (["train.py", "--lr", "3e-5"], ("train.py", "--lr", "3e-5"), "train.py"),
        ("torchrun --nproc-per-node 2 train.py", ("train.py",), "train.py"),
        ("bert-mini", (), "bert-mini"),
        ("mine.toml", (), "mine"),
        (cputune.Workload.from_recipe("bert-mini"), (), "bert-mini"),
    ],
)
def test_a_job_is_given_as_it_is_typed(
    simulated: Path, job: object, argv: tuple[str, ...], name: str
) -> None:
    result = cputune.tune(job, budget=2, max_time="2m", facts=SMALL.facts)
    assert (result.workload.argv, result.workload.name) == (argv, name)
    assert result.budget == 2


@pytest.mark.parametrize(
    ("job", "options", "said"),
    [
        ("gone.py", {}, "there is no script 'gone.py'"),
        ("", {}, "nothing to train"),
        ([], {}, "nothing to train"),
        ("train.py 'open", {}, "cannot read the command"),
        ("train.py", {"max_time": "soon"}, "not a time"),
        ("train.py", {"max_time": "2m", "max_time_seconds": 3}, "cannot both be given"),
        ("train.py", {"budget": 0}, "--budget"),
        ("bert-mni", {}, "no recipe is called 'bert-mni'"),
        ("train.py", {"budgt": 3}, r"cputune\.tune\(\) has no argument 'budgt'"),
    ],
)
def test_what_cannot_be_tuned_is_an_error_with_a_hint(
    simulated: Path, job: object, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(cputune.UsageError, match=said) as error:
        cputune.tune(job, **options)
    assert error.value.hint
    # Below the message in a traceback, and in a notebook instead of one.
    hint = f"hint: {error.value.hint}"
    assert getattr(error.value, "__notes__", None) == [hint]
    shown = error.value._render_traceback_()
    assert shown == [f"{type(error.value).__name__}: {error.value}", hint]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"partition": "long"}, "cluster=cputune.Cluster(partition=…)"),
        ({"nods": 2}, "did you mean nodes?"),
        ({"xyz": 2}, "help(cputune.emit) lists its arguments"),
    ],
)
def test_an_argument_that_emit_does_not_take_is_named(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(TypeError, match=r"cputune\.emit") as error:
        cputune.emit(None, "slurm", **options)
    assert getattr(error.value, "hint", None) == hint


def test_a_time_limit_is_a_text_or_seconds() -> None:
    assert cputune.TuneOptions(max_time="1h30m").max_time_seconds == 5400
    assert cputune.TuneOptions(max_time=90).max_time_seconds == 90
    assert cputune.TuneOptions(max_time="none").max_time_seconds == math.inf


def test_the_doctor_is_called_as_it_is_named(simulated: Path) -> None:
    """`cputune.doctor` is a package, too, once something of it was imported."""
    import cputune.doctor.checks

    report = cputune.doctor()
    assert isinstance(report, cputune.Diagnosis)
    launched = cputune.doctor("python gone.py")
    assert "launch-script" in [finding.code for finding in launched.findings]
    script = "import cputune; print(type(cputune.doctor()).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "Diagnosis\n"


def test_what_a_cell_shows_has_ten_lines_at_most(simulated: Path) -> None:
    facts = cputune.probe()
    report = cputune.diagnose(facts)
    many = replace(report, findings=report.findings * 20)
    result = tune_small(budget=2)
    space = cputune.search_space(facts, result.workload)
    files = cputune.emit(result, "torchrun")
    shown = (facts, report, many, result, *files, result.workload, space)
    for record in shown:
        assert len(repr(record).splitlines()) <= 10
        assert len(repr(record)) < 1500
    assert report._repr_html_().count("<tr>") == len(report.findings)
    hostile = replace(report.findings[0], title="<script>alert(1)</script>", evidence="<b>")
    assert "<script" not in replace(report, findings=(hostile,))._repr_html_()


PAGES = [HERE.parent / "docs" / name for name in ("library.md", "emit.md", "verify.md")]
PROGRAMS = [
    pytest.param(program, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, program in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]
FUNCTIONS = [
    name
    for name in cputune.__all__
    if not isinstance(getattr(cputune, name), type) and name.islower()
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_pages_runs(simulated: Path, program: str) -> None:
    """As it is shown; `verify` starts nothing here, and there is no node1."""
    result = cputune.tune("bert-mini", budget=3, max_time="2m")
    result.save("cputune.json")
    for file in cputune.emit(result, "torchrun"):
        Path("launch").mkdir(exist_ok=True)
        (Path("launch") / file.name).write_text(file.text)
    program = program.replace("steps=12", "run=False").replace("seconds=20", "seconds=2")
    exec(compile(program, "a page", "exec"), {})


def test_every_public_function_has_an_example_that_runs() -> None:
    shown = "\n".join(str(parameter.values[0]) for parameter in PROGRAMS)
    assert set(FUNCTIONS) >= {"tune", "doctor", "emit", "compare"}
    assert [name for name in FUNCTIONS if f"cputune.{name}(" not in shown] == []
