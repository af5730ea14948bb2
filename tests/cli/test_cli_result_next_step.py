"""Every "Do now" of a result runs as it is printed: from `cputune show`, typed in bash."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confirmed import BUSY, UNCOMPARED
from in_process import Run, typed
from report.result_cases import tuned, with_best
from rows import like_others

from cputune import Result, Workload, probe
from cputune.host import LiveHost
from cputune.records.claims import Speedup, host_fingerprint
from cputune.records.next_command import QUIET, NextStep

SCRIPT = "import argparse\nargparse.ArgumentParser().parse_known_args()\n"


def here() -> Result:
    """A result of this machine: the best plan is faster."""
    facts = probe()
    cpus = (facts.topology.allowed,)
    plan = replace(tuned().best.plan, processes_per_node=1, cpus=cpus)
    return replace(
        with_best(tuned(), plan),
        host=host_fingerprint(facts),
        versions={},
        resumable=True,
        command=("cputune", "tune", "--budget", "3"),
    )


def kept(speedup: Speedup | None = None, step: NextStep | None = None, **more: object) -> Result:
    """A result whose recommendation is the current launch."""
    result = here()
    fields: dict[str, object] = {**UNCOMPARED} if speedup is None else {"speedup": speedup}
    return replace(result, best=result.baseline, next_step=step, **fields, **more)


def of_a_script(result: Result, *command: str) -> Result:
    job = Workload.script(["train.py", "--lr", "3e-5", "--note", "two words"])
    return replace(result, workload=job, command=command)


UNDECIDED = Speedup(ratio=1.1, low=0.83, high=1.51, pairs=4)
EQUIVALENT = Speedup(ratio=1.0, low=0.97, high=1.03, pairs=5)
SLOWER = Speedup(ratio=0.8, low=0.75, high=0.85, pairs=5)
SCRIPT_WORDS = "-- python train.py --lr 3e-5 --note 'two words'"
CASES: dict[str, tuple[Callable[[], Result], str]] = {
    "faster": (here, "Do now: cputune run cputune.json"),
    "faster, on two nodes": (
        lambda: two_nodes(here()),
        "Do now: cputune emit --format torchrun -o launch cputune.json",
    ),
    "equivalent": (lambda: kept(EQUIVALENT), "Do now: nothing: keep the launch"),
    "slower": (lambda: kept(SLOWER), "Do now: nothing: keep the launch"),
    "undecided": (
        lambda: kept(UNDECIDED, NextStep(seconds=500.0)),
        "Do now: cputune tune --budget 3 --resume --max-time 9m",
    ),
    "undecided, and time would not tell": (
        lambda: kept(UNDECIDED, NextStep(kind="keep")),
        "Do now: nothing: keep the launch",
    ),
    "undecided on a busy machine": (
        lambda: kept(UNDECIDED, NextStep(when=QUIET), busy=("make (process 7) 98 % of a CPU",)),
        "When the machine is quiet: cputune tune --budget 3 --resume",
    ),
    "interrupted": (lambda: kept(None, NextStep()), "Do now: cputune tune --budget 3 --resume"),
    "out of time": (
        lambda: kept(None, NextStep(seconds=700.0)),
        "Do now: cputune tune --budget 3 --resume --max-time 12m",
    ),
    "out of time, of a script": (
        lambda: of_a_script(kept(None, NextStep(seconds=700.0))),
        f"Do now: cputune tune --budget 12 --resume --max-time 12m {SCRIPT_WORDS}",
    ),
    "out of time, and a time was typed": (
        lambda: of_a_script(
            kept(None, NextStep(seconds=700.0)),
            *("cputune", "tune", "--study", "mine.db", "--keep", "mathematics"),
            *("--", "python", "train.py", "--lr", "3e-5"),
        ),
        "Do now: cputune tune --study mine.db --keep mathematics --resume --max-time 12m "
        "-- python train.py --lr 3e-5",
    ),
    "out of time, from Python": (
        lambda: replace(kept(None, NextStep(seconds=700.0)), resumable=False, command=()),
        "Do now: cputune tune --budget 12 --max-time 12m",
    ),
    "from Python, with options": (
        lambda: replace(
            kept(None, NextStep(kind="tune", budget=20)),
            command=(),
            asked={"fix": {"precision": "fp32"}, "knobs": ("threads",), "keep": "numbers"},
        ),
        "Do now: cputune tune --knobs threads --fix precision=fp32 --keep numbers --budget 20",
    ),
    "CPUs were taken away": (
        lambda: kept(None, NextStep(when="when the CPUs are available again")),
        "When the CPUs are available again: cputune tune --budget 3 --resume",
    ),
    "one plan alone": (
        lambda: kept(None, NextStep(kind="tune", budget=20)),
        "Do now: cputune tune --budget 20",
    ),
    "the launch fails": (
        lambda: of_a_script(kept(None, NextStep(kind="check"))),
        f"Do now: cputune doctor {SCRIPT_WORDS}",
    ),
    "every other plan fails": (
        lambda: kept(None, NextStep(kind="keep")),
        "Do now: nothing: keep the launch",
    ),
    "disturbed": (
        lambda: replace(here(), next_step=NextStep(when=QUIET), **BUSY),
        "When the machine is quiet: cputune tune --budget 3 --resume",
    ),
    "disturbed, on a machine that was shared": (
        lambda: of_a_script(
            replace(here(), next_step=NextStep(when=QUIET), **BUSY),
            *("cputune", "tune", "--share-machine", "--budget", "4"),
            *("--", "python", "train.py", "--lr", "3e-5"),
        ),
        "When the machine is quiet: cputune tune --budget 4 --resume -- python train.py --lr 3e-5",
    ),
    "another machine": (
        lambda: of_a_script(replace(here(), host=tuned().host)),
        f"Do now: cputune tune --budget 12 {SCRIPT_WORDS}",
    ),
    "another torch": (
        lambda: replace(here(), versions={"torch": "1.13.1"}),
        "Do now: cputune tune --budget 3",
    ),
}


def two_nodes(result: Result) -> Result:
    plan = replace(result.best.plan, nodes=2)
    return replace(with_best(result, plan), hosts=("node1", "node2"))


@pytest.fixture(autouse=True)
def _no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have an MPI, which several nodes are then started by."""
    found = LiveHost.which

    def which(host: LiveHost, program: str) -> str | None:
        return None if program in ("mpirun", "mpiexec") else found(host, program)

    monkeypatch.setattr(LiveHost, "which", which)


REHEARSED = ("the launch fails",)
"""The doctor starts the script, as it does for a launch in test_cli_next_step."""
QUICK = [name for name in CASES if name not in REHEARSED]


@pytest.mark.parametrize("name", [*QUICK, *like_others(REHEARSED)])
def test_what_to_do_now_runs_as_it_is_printed(
    cputune: Run, workdir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, expected = CASES[name]
    make().save("cputune.json")
    Path("train.py").write_text(SCRIPT)
    program = workdir / "bin" / "cputune"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cputune "$@"\n')
    program.chmod(0o755)
    ended = cputune("show")
    line, command = what_to_do(ended.out)
    assert line.startswith(expected)
    if command.startswith("nothing: "):
        return
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "CPUTUNE_TUNE_DRY_RUN": "1",
        "CPUTUNE_RUN_DRY_RUN": "1",
        "CPUTUNE_DOCTOR_FAIL_ON": "never",
    }
    done = typed(command, cputune, monkeypatch, cwd=workdir, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def what_to_do(text: str) -> tuple[str, str]:
    """``Do now: COMMAND``, or ``When the machine is quiet: COMMAND``; and the command."""
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if re.match(r"Do(?: now)?  ", line))
    label, _, value = lines[at].partition("  ")
    if label == "Do now" or value.strip().startswith("nothing"):
        return f"Do now: {value.strip()}", value.strip()
    command = lines[at + 1].removeprefix("$").strip()
    when = value.strip()
    return f"{when[:1].upper()}{when[1:]} {command}", command


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize("name", CASES)
def test_the_commands_show_what_is_on_the_screen(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Not another result: cputune.json is an older one."""
    monkeypatch.setenv("COLUMNS", "200")
    made = CASES[name][0]()
    replace(made, created="2025-01-01T00:00:00Z").save("cputune.json")
    replace(made, created="2026-02-02T00:00:00Z").save("my run.json")
    text = cputune("show", "my run.json").out
    commands = re.findall(r"cputune ((?:show|report|run|emit|compare)\b.*?)(?:   #|$)", text, re.M)
    assert {command.split()[0] for command in commands} >= {"show", "report"}
    assert [command for command in commands if not command.endswith("'my run.json'")] == []
    whole = next(command for command in commands if command.startswith("show"))
    assert "2026-02-02" in cputune(*shlex.split(whole)).out
