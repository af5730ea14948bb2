"""``cputune tune``: measure plans on this machine and find the fastest."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cputune.cli._asked import fixed_values, job_of, require_shareable, seconds_of
from cputune.cli._commands import again, print_space
from cputune.cli._hosts import chosen_hosts, host_options, reach_options
from cputune.cli._output import console, print_json, tell
from cputune.cli._places import refuse_overwriting, study_path
from cputune.cli._results import remember
from cputune.cli._signals import interrupted_by_any_signal
from cputune.errors import Interrupted, MissingPackageError, UsageError
from cputune.visible import visible
from cputune.workload import DEFAULT_RECIPE

if TYPE_CHECKING:
    from cputune.facts import HostFacts
    from cputune.nodes.reach import Manner
    from cputune.result import Result
    from cputune.workload import Workload

_NEEDED = ("torch", "optuna")
_NEEDED_BY_RECIPES = ("transformers", "accelerate")


@click.command(name="tune")
@click.option("--recipe", metavar="NAME", help=f"What to train; {DEFAULT_RECIPE} by default.")
@click.option("--budget", type=int, default=20, show_default=True, help="Trials of the study.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Same seed, same proposals.",
)
@click.option("--max-time", metavar="TIME", help="When to be done: 90s, 10m, 1h30m.")
@click.option("--knobs", metavar="A,B", help="Vary these alone, or, as +A, beside the usual ones.")
@click.option("--fix", multiple=True, metavar="NAME=VALUE", help="Hold a knob at a value.")
@click.option(
    "--steps-planned",
    type=int,
    metavar="N",
    help="Steps of your run: the time of +compile is spread over them.",
)
@click.option("--dry-run", is_flag=True, help="Print the space and the first command; run nothing.")
@click.option("--root", metavar="DIR", help="With --dry-run: plan for a recorded machine.")
@click.option(
    "--allow-slow-precision", is_flag=True, help="Try bf16 where the CPU only emulates it."
)
@click.option(
    "--batch-per-rank",
    type=int,
    metavar="N",
    help="Samples of each rank per step.",
)
@click.option("--global-batch-size", type=int, metavar="N", help="Samples per step of all ranks.")
@click.option("--study", metavar="FILE.db", help="Keep the study here (SQLite).")
@click.option(
    "--storage",
    metavar="ADDRESS",
    help="Share the study in a database: postgresql://USER@HOST/NAME.",
)
@click.option("--resume", is_flag=True, help="Go on with the study that was interrupted.")
@click.option(
    "--share-machine", is_flag=True, help="Measure even while another process measures here."
)
@click.option("--wait-quiet", metavar="TIME", help="Wait so long until nothing else computes here.")
@host_options
@reach_options
@click.option("-o", "--output", metavar="FILE", default="cputune.json", show_default=True)
@click.option("--force", is_flag=True, help="Replace FILE, and a study, where they exist.")
@click.option("--no-history", is_flag=True, help="Do not keep the result for `cputune history`.")
@click.option("--json", "as_json", is_flag=True, help="The result on stdout, nothing else.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]")
@click.pass_context
@interrupted_by_any_signal()
def command(
    ctx: click.Context,
    recipe: str | None,
    budget: int,
    seed: int,
    max_time: str | None,
    knobs: str | None,
    fix: tuple[str, ...],
    steps_planned: int | None,
    dry_run: bool,
    root: str | None,
    allow_slow_precision: bool,
    batch_per_rank: int | None,
    global_batch_size: int | None,
    study: str | None,
    storage: str | None,
    resume: bool,
    share_machine: bool,
    wait_quiet: str | None,
    hosts: str | None,
    hostfile: str | None,
    ssh: str | None,
    through: Manner | None,
    host_timeout: float,
    output: str,
    force: bool,
    no_history: bool,
    as_json: bool,
    script: tuple[str, ...],
) -> None:
    """Measure plans on this machine, or over several hosts, and find the fastest.

    \b
    cputune tune
    cputune tune --hosts node1,node2
    cputune tune --budget 10 --recipe distilbert-squad
    cputune tune -- run_qa.py --model_name_or_path bert-base-uncased --do_train
    """
    started = time.monotonic()
    if budget < 1:
        raise UsageError(f"a budget of {budget} trials finds nothing", hint="--budget 20")
    if steps_planned is not None and steps_planned < 1:
        raise UsageError(
            f"a run of {steps_planned} steps trains nothing", hint="--steps-planned 10000"
        )
    job = job_of(recipe, script, batch_per_rank, global_batch_size)
    options: dict[str, Any] = {
        "knobs": None if knobs is None else tuple(k.strip() for k in knobs.split(",") if k.strip()),
        "fix": fixed_values(fix),
        "allow_slow_precision": allow_slow_precision,
    }
    if storage is not None:
        require_shareable(ctx, storage, study)
    seconds = None if max_time is None else seconds_of(max_time)
    quiet_seconds = None if wait_quiet is None else seconds_of(wait_quiet)

    from cputune.cli._progress import Progress
    from cputune.host import RecordedHost
    from cputune.probing import probe
    from cputune.ranks.opened import open_hosts
    from cputune.tuner import search_space, tune

    if root is not None and not dry_run:
        raise UsageError(
            "nothing can be measured on a recorded machine", hint="give --dry-run beside --root"
        )
    named = chosen_hosts(
        hosts=hosts,
        hostfile=hostfile,
        through=through,
        ssh=ssh,
        host_timeout=host_timeout,
        allocation=False,  # a tune inside an allocation measures the node that it is on
    )
    if root is not None and named:
        raise UsageError("a recorded machine has no hosts beside it", hint="leave out --root")
    destination = None if output == "-" else Path(output)
    book = study_path(study, destination) if storage is None else None
    if not dry_run:
        refuse_overwriting(destination, book, force=force, resume=resume)
        _require_packages(job)
    opened = None
    if named is not None:
        way = open_hosts(named.nodes, named.reach, job, seconds=named.seconds)
        opened = ctx.with_resource(way)
        facts = opened.facts[0][1]
        options |= {"hosts": opened.facts, "interfaces": opened.interfaces}
    else:
        facts = probe(None if root is None else RecordedHost(root))
    if dry_run:
        space = search_space(facts, job, **options)
        print_space(space, budget=budget, most_seconds=seconds, as_json=as_json)
        return
    search_space(facts, job, **options)
    options["hosts"] = opened
    options.pop("interfaces", None)
    _say_beforehand(facts)
    if force and not resume and book is not None:
        from cputune.host.locks import study_lock

        with study_lock(book):
            book.unlink(missing_ok=True)
    result: Result | None = None
    try:
        with Progress(started, seconds) as progress:
            result = tune(
                job,
                facts=facts,
                budget=budget,
                seed=seed,
                max_time_seconds=seconds,
                study=book,
                storage=storage,
                resume=resume,
                share_machine=share_machine,
                started=started,
                wait_quiet_seconds=quiet_seconds,
                steps_planned=steps_planned,
                on_event=progress,
                **options,
            )
        if destination is not None:
            result.save(destination, force=True)
        if not no_history:
            remember(result, destination)
        _show(result, destination, facts, as_json=as_json or destination is None)
    except (Interrupted, KeyboardInterrupt) as error:  # the latter while all is put away
        found = getattr(error, "result", None) or result
        if found is not None and destination is not None:
            found.save(destination, force=True)
            tell(f"what was found so far is in {destination}")
        if found is not result and found is not None and not no_history:  # else it was kept
            remember(found, destination)
        raise Interrupted(
            str(error) or "interrupted", hint=f"go on with: {again(ctx, job, script)}"
        ) from None


def _require_packages(job: Workload) -> None:
    """A script may do without transformers; what it lacks it says itself."""
    needed = _NEEDED if job.recipe is None else (*_NEEDED, *_NEEDED_BY_RECIPES)
    lora = job.recipe is not None and job.recipe.lora is not None
    needed = (*needed, "peft") if lora else needed
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"tuning needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            "not installed",
            hint="pip install 'cputune[tune,lora]'" if lora else "pip install 'cputune[tune]'",
        )


def _say_beforehand(facts: HostFacts) -> None:
    """What the doctor finds that would make every trial fail or lie; and what cannot be tried."""
    from cputune.doctor import Severity, diagnose
    from cputune.doctor.checks.allocators import allocator_missing

    for finding in diagnose(facts).findings:
        more = f"(`cputune doctor --explain {finding.code}`)"
        if finding.severity is Severity.ERROR:
            tell(f"warning: {finding.title} {more}")
        elif finding.code == allocator_missing.code:
            command = f": `{finding.command}`" if finding.command else ""
            tell(f"note: {finding.title}{command} {more}")


def _show(result: Result, destination: Path | None, facts: HostFacts, *, as_json: bool) -> None:
    from cputune.emitters.job import usual_format
    from cputune.report.profile import profile_lines
    from cputune.report.tuning import measured_lines, result_table, sentence

    if as_json:
        print_json(result.to_json())
        return
    out = console()
    out.print(result_table(result, width=out.width))
    out.print()
    for line in (*measured_lines(result), *profile_lines(result)):
        out.print(visible(line))
    out.print(sentence(result), style="bold")
    for note in result.notes:
        out.print(visible(f"note: {note}"))
    out.print(
        f"The result is in {destination}. "
        f"Next: cputune emit --format {usual_format(facts)} {destination}"
    )
