"""What ``emit`` and ``run`` launch: a tuned result, and a script after ``--``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from cputune.cli._output import tell
from cputune.emitters.machine import machine_difference, missing_cpus
from cputune.errors import ResultError, UsageError
from cputune.facts import HostFacts
from cputune.result import Result
from cputune.script import read_typed, require_trainable
from cputune.workload import DEFAULT_RECIPE, Workload

DEFAULT_RESULT = Path("cputune.json")
_SCRIPT = "cputune.script"


class WithScript(click.Command):
    """Everything after ``--`` is the user's script, untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            ctx.meta[_SCRIPT] = tuple(args[cut + 1 :])
            args = args[:cut]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SCRIPT ARGS...]"]


def script_of(ctx: click.Context) -> tuple[str, ...] | None:
    """The words after ``--``; None where there was none."""
    words: tuple[str, ...] | None = ctx.meta.get(_SCRIPT)
    return words


def say(text: str) -> None:
    """A note on stderr."""
    tell(f"note: {text}")


def facts_of(root: str | None = None) -> HostFacts:
    """The facts of this machine, or of a recorded one."""
    from cputune.host import RecordedHost
    from cputune.probing import probe

    return probe(None if root is None else RecordedHost(root))


def tuned(path: Path | None, facts: HostFacts, *, other_machine: bool) -> Result | None:
    """The result to launch, of this machine; None, and a note, where nothing was tuned yet."""
    if path is None:
        # What lies here was measured on this machine, and not on a recorded one.
        if facts.recorded or not DEFAULT_RESULT.exists():
            say(
                "nothing was measured: this is the guides' default plan for this machine "
                "(`cputune tune` measures)"
            )
            return None
        path = DEFAULT_RESULT
    else:
        from cputune.history import result_path

        path = result_path(str(path))
    result = Result.load(path)
    difference = machine_difference(result.host, facts)
    missing = missing_cpus(result.best.plan, facts)
    if missing and not difference:
        difference = f"its plan uses CPUs {missing}, which are not allowed here"
    if difference and not other_machine:
        raise ResultError(
            f"{path} was measured on another machine: {difference}",
            hint="tune here, or give --other-machine to take it all the same",
        )
    if difference:
        say(f"the plan was measured on another machine: {difference}")
    return result


def launched(
    result: Result | None,
    script: tuple[str, ...] | None,
    batch_per_rank: int | None = None,
    global_batch_size: int | None = None,
    *,
    nodes: int = 1,
) -> Workload:
    """What is launched: the words after ``--``, else what was tuned, else the default recipe.

    Of a script that was tuned it is known what the trials have shown, whatever its arguments.
    In a loop of the script's own no batch can be set; on several nodes the user says what it
    has there.
    """
    if script is not None:
        known = result.workload if result is not None else None
        for note in read_typed(script).notes:
            say(note)
        workload = Workload.script(script)
        if os.path.exists(workload.argv[0]):  # what is launched may lie on another machine
            require_trainable(workload.argv)
        if known is not None and known.program == workload.program:
            if batch_per_rank is None and global_batch_size is None:
                _refuse_other_batch(known, workload)
            workload = replace(
                known,
                argv=workload.argv,
                secrets=workload.secrets,
                launch=workload.launch,
                launch_ranks=workload.launch_ranks,
                variables=workload.variables,
            )
    elif result is not None:
        workload = result.workload
    else:
        workload = Workload.from_recipe(DEFAULT_RECIPE)
    return _with_batch(workload, batch_per_rank, global_batch_size, nodes)


BATCH_FLAGS = (
    "--per_device_train_batch_size",
    "--per_gpu_train_batch_size",
    "--gradient_accumulation_steps",
)
"""Words that say how many samples a rank takes."""


def _refuse_other_batch(known: Workload, typed: Workload) -> None:
    """Raise UsageError where the words that are launched ask for another batch than was tuned.

    The launch would keep the tuned global batch, whatever they say.
    """
    for flag in BATCH_FLAGS:
        before, now = known.argument(flag), typed.argument(flag)
        if now is not None and now != before and known.global_batch_size is not None:
            tuned = "without it" if before is None else f"with {before}"
            raise UsageError(
                f"{flag} {now} is another batch than was tuned: {known.name} was tuned {tuned}, "
                f"and {known.global_batch_size} samples in a step of all ranks",
                hint="--global-batch-size N says how many samples all ranks take, "
                "--batch-per-rank N how many each",
            )


def _with_batch(
    workload: Workload, batch_per_rank: int | None, global_batch_size: int | None, nodes: int
) -> Workload:
    """The workload with the batch that the user asks for. Raises UsageError."""
    if batch_per_rank is not None and global_batch_size is not None:
        raise UsageError(
            "--batch-per-rank and --global-batch-size exclude each other", hint="give one of them"
        )
    if global_batch_size is not None:
        if workload.framework == "pytorch":
            raise UsageError(
                f"{workload.name} trains by a loop of its own, in which no batch can be set",
                hint="leave out --global-batch-size, and change the script's own batch",
            )
        return replace(workload, global_batch_size=global_batch_size, batch_per_rank=None)
    if batch_per_rank is not None:
        if workload.framework == "pytorch" and nodes == 1:
            raise UsageError(
                f"{workload.name} trains by a loop of its own, in which no batch can be set",
                hint="leave out --batch-per-rank, and change the script's own batch",
            )
        workload = replace(workload, batch_per_rank=batch_per_rank)
    return workload
