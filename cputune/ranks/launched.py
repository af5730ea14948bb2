"""Run launches as they are and listen to their ranks; nothing of them is left afterwards.

The ranks are made to report by environment variables alone (``cputune.inside``): a directory
that comes first on PYTHONPATH, and a socket. The artefact is not edited.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cputune.equivalence import Training
from cputune.host import Command
from cputune.inside import SCRATCH_VARIABLE, SHOW_VARIABLE, SOCKET_VARIABLE
from cputune.ranks.engines import on_python_path
from cputune.ranks.job import Job, Rank
from cputune.ranks.listen import Post
from cputune.ranks.supervisor import Supervisor, tail_of
from cputune.ranks.supervisor_main import RankCommand
from cputune.ranks.work_folder import WorkFolder
from cputune.steps import Step

GRACE_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How a launch went.

    Attributes:
        ranks: what each rank has told, in order; those that have told nothing are left out.
        steps: the steps of the whole job.
        training: what its first steps train; None where not every rank has told it.
        returncode: the first that was not 0, else 0; None where the launch had to be
            ended, after the last step that was asked for (``enough``) or at its time limit.
            A command that fails ends the others, which would wait for its ranks.
        output: the tail of what it wrote.
    """

    ranks: tuple[Rank, ...]
    steps: tuple[Step, ...] = ()
    training: Training | None = None
    returncode: int | None
    enough: bool
    timed_out: bool
    seconds: float
    output: str


Begin = Sequence[Command] | Callable[[Mapping[str, str]], Sequence[RankCommand]]
"""The commands of a launch; or a function that makes them, given the variables by which ranks
report."""


def observe(
    commands: Begin,
    *,
    ranks: int,
    steps: int,
    timeout_seconds: float,
    logs: Sequence[Path] = (),
    show: Iterable[str] = (),
    host: str | None = None,
) -> Launched:
    """Start the commands together and listen until every rank has made its steps.

    ``ranks`` is how many are waited for. A launch that starts fewer is listened to until it ends by
    itself, or the time is up. ``logs`` are further files with its output. ``show`` names variables
    that the ranks report beside the usual ones. ``host`` is an address of this machine at which
    ranks of other hosts reach it. What the script would have written goes to a temporary folder.
    Raises TrialError where the launch cannot be watched.
    """
    with WorkFolder() as work:
        scratch = work.path / "scratch"
        scratch.mkdir()
        supervisor = Supervisor(os.environ, (), work)
        post = Post(work.path, host=host)
        started = time.monotonic()
        deadline = started + timeout_seconds
        job = Job(supervisor, post, ranks=ranks, grace_seconds=GRACE_SECONDS)
        try:
            told = {
                SOCKET_VARIABLE: post.address,
                SCRATCH_VARIABLE: str(scratch),
                SHOW_VARIABLE: ",".join(show),
            }
            job.start(
                commands(told) if callable(commands) else [_command(one, told) for one in commands],
                # slurmd starts the ranks of a batch script, not whoever has submitted it.
                mark=(SOCKET_VARIABLE, post.address),
            )
            whole: list[Step] = []
            enough = False
            while not (job.is_over or enough or time.monotonic() >= deadline):
                whole += job.hear(deadline - time.monotonic())
                enough = sum(len(rank.steps) >= steps for rank in job.ranks.values()) >= ranks
                if any(exit_["status"] for exit_ in job.exits):  # the others would wait for it
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            over = job.is_over
            if over:
                whole += job.hear_out(0.0)
            seconds = time.monotonic() - started
            tails = [exit_["tail"] for exit_ in job.exits]
        finally:
            tails_of_ended = job.end()
        tails += () if over else tails_of_ended.values()
        tails += [tail_of(log, job.cleaned) for log in logs]
        failed = next((exit_["status"] for exit_ in job.exits if exit_["status"]), None)
        heard = sorted(job.ranks.values(), key=lambda rank: rank.number)
        return Launched(
            ranks=tuple(rank for rank in heard if rank.state or rank.steps or rank.trouble),
            steps=tuple(whole),
            training=job.training(),
            returncode=0 if over and failed is None else failed,
            enough=enough,
            timed_out=not (over or enough or failed),
            seconds=seconds,
            output="\n".join(filter(str.strip, dict.fromkeys(tails))),
        )


def _command(asked: Command, told: Mapping[str, str]) -> RankCommand:
    environment = on_python_path({**(asked.environment or os.environ), **told})
    return {"argv": list(asked.argv), "env": environment, "cwd": asked.cwd}
