"""``cputune tune``: measures plans on this machine and finds the fastest."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cputune.cli import completing, help_groups
from cputune.cli.inputs import (
    batch_options,
    choose_python,
    chosen_hosts,
    facts_of,
    host_options,
    launched,
    python_option,
    secret_option,
)
from cputune.cli.option_defaults import (
    ConfiguredCommand,
    json_option,
    options_from,
    output_option,
    record_from_options,
)
from cputune.cli.output import console, print_json, print_line
from cputune.doctor.script_calls import require_possible
from cputune.errors import (
    CannotError,
    Interrupted,
    MissingPackageError,
    NotMeasurableError,
    NoValidTrialError,
    UsageError,
)
from cputune.host.interpreter import Interpreter, install_tuning
from cputune.host.remote.named import folded
from cputune.plans.training_command import require_trainable
from cputune.plans.workload import DEFAULT_RECIPE, Workload, left_out
from cputune.records.options import DEFAULT_LIMIT_SECONDS, TuneOptions, keywords
from cputune.records.shared_texts import RESUME, exactly
from cputune.text.documents import plain
from cputune.text.plain import count

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts
    from cputune.host.remote.named import Node
    from cputune.host.remote.reach import Reach
    from cputune.ranks.hosts import RankHosts
    from cputune.records.history import Saved
    from cputune.records.result import Result
    from cputune.tuner.space import SearchSpace
    from cputune.tuner.stores import StudyStore

_NEEDED_BY_RECIPES = ("transformers", "accelerate")


@click.command(
    name="tune",
    cls=ConfiguredCommand,
    groups=help_groups.TUNE,
    usual=help_groups.USUAL_TUNE,
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--recipe",
    metavar="NAME",
    help=f"Recipe to train. Default: {DEFAULT_RECIPE}.",
    shell_complete=completing.recipes,
)
@batch_options
@secret_option
@options_from(TuneOptions)
@python_option
@click.option("--dry-run", is_flag=True, help="Print the plans that would be tried; run nothing.")
@click.option(
    "--root",
    metavar="DIR",
    help="With --dry-run: plan for a recorded machine.",
    shell_complete=completing.folders,
)
@host_options
@output_option("The result; - is stdout.", "cputune.json")
@click.option(
    "--force", is_flag=True, help="Replace FILE in any case, and a study that was interrupted."
)
@click.option("--no-history", is_flag=True, help="Do not store the result for `cputune history`.")
@json_option
@click.argument(
    "script",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[-- SCRIPT ARGS...]",
    shell_complete=completing.files,
)
@click.pass_context
def command(ctx: click.Context, /, script: tuple[str, ...], **typed: Any) -> None:
    """Measure plans on this machine, or over several hosts, and find the fastest.

    Give your training after --, as you start it today. Without it, a small BERT is trained.

    \b
    cputune tune -- train.py --epochs 3
    cputune tune --keep mathematics -- torchrun --nproc-per-node 2 train.py
    cputune tune --hosts node1,node2 -- train.py
    cputune tune
    """
    started = time.monotonic()
    options = record_from_options(TuneOptions, typed)
    python = choose_python(typed["python"], script)
    job = _job_of(script, typed, python)

    from cputune.cli.progress import progress
    from cputune.tuner import tune
    from cputune.tuner.space import space_of
    from cputune.tuner.stores import store_of

    named = _named_hosts(typed)
    destination = None if typed["output"] == "-" else Path(typed["output"])
    usual = (destination or Path("cputune")).with_suffix(".db")
    options = replace(options, study=options.study or usual)
    store = store_of(options.study, options.study_name)
    assert store is not None, "a study is named"
    if not typed["dry_run"]:
        _require_packages(job, python)
        _require_room(destination, store, force=typed["force"], resume=options.resume)
    opened = None
    if named is not None:
        opened = _opened(*named, job, python, typed)
    facts = _facts(opened, typed["root"], python)
    space = space_of(options, facts, job, opened)
    if typed["dry_run"]:
        _show_space(space, as_json=typed["json"])
        return
    _print_warnings(job, facts)
    earlier = _earlier(job, facts, destination, typed)
    if not options.resume:
        _make_room(destination, store, force=typed["force"])
    result: Result | None = None
    history = not typed["no_history"]
    try:
        with progress(started, _print_limit(options)) as on_event:
            result = tune(
                job,
                facts=facts,
                hosts=opened,
                started=started,
                on_event=on_event,
                command=_typed_command(ctx, job),
                earlier=earlier,
                **keywords(options),
            )
        saved = _saved(result, destination, history=history, ended=store)
        _show(result, saved.name, facts, as_json=typed["json"] or destination is None)
        if saved.failure is not None:
            raise saved.failure
        if result.speedup is None and not result.disturbed:  # --share-machine accepts the latter
            sys.exit(NoValidTrialError.exit_code)
    except (Interrupted, KeyboardInterrupt, NotMeasurableError) as error:
        partial_result = (
            getattr(error, "result", None) or result
        )  # Ctrl-C while a whole result was saved
        if partial_result is not None and (destination is not None or partial_result is not result):
            _save_partial(
                partial_result, destination, history=history and partial_result is not result
            )
        if isinstance(error, NotMeasurableError):
            raise
        raise Interrupted(str(error) or "interrupted", hint=f"{RESUME} continues it") from None


def _opened(
    nodes: Sequence[Node],
    reach: Reach,
    job: Workload,
    python: Interpreter,
    typed: Mapping[str, Any],
) -> RankHosts:
    """The hosts, examined, and the rate of what is sent between them."""
    from cputune.ranks.hosts import open_hosts, with_rate

    seconds = typed["host_timeout"]
    print_line(
        f"examining {', '.join(folded([node.name for node in nodes]))} through {reach.typed}"
    )
    opened = open_hosts(nodes, reach, job, interpreter=python, seconds=seconds)
    if not typed["dry_run"] and opened.interface is not None:
        opened = with_rate(opened, python, seconds=seconds)
        if isinstance(opened.rate, str):
            print_line(f"the rate between the hosts could not be measured: {opened.rate}")
        elif opened.rate is not None:
            print_line(opened.rate.words)
    return opened


def _earlier(
    job: Workload, facts: HostFacts, destination: Path | None, typed: Mapping[str, Any]
) -> Result | None:
    """The newest result of this command on this machine, unless it recommends your launch."""
    from cputune.cli.known_plans import newest_of
    from cputune.records.history import result_path
    from cputune.records.result import Result

    if typed["no_history"] or typed["resume"]:
        return None
    name = newest_of(job, facts, first=() if destination is None else (destination,))
    if name is None:
        return None
    result = Result.load(result_path(name))
    if result.best.plan.as_found or result.speedup is None:
        return None
    date = (result.created or "")[:10]
    print_line(f"the plan of your result of {date} is tried first: {result.best.plan.describe()}")
    return result


def _print_limit(options: TuneOptions) -> float:
    most = options.max_time_seconds or DEFAULT_LIMIT_SECONDS
    if most < math.inf:
        print_line(f"this takes at most {exactly(most)} (--max-time)")
    return most


# Parameters that are left out of the command to continue the study.
_NOT_REPEATED = ("script", "resume", "force", "json", "dry_run", "max_time_seconds")


def _typed_command(ctx: click.Context, job: Workload) -> tuple[str, ...]:
    """The command as typed, without values of secrets and without a time limit."""
    from cputune.tuner.stores import without_credentials

    typed = ["cputune", "tune"]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if ctx.get_parameter_source(name) != ParameterSource.COMMANDLINE or name in _NOT_REPEATED:
            continue
        if name not in ctx.params:  # -v and -q are options of every command
            continue
        value = ctx.params[name]
        flag = max(parameter.opts, key=len)
        if value is True:
            typed.append(flag)
            continue
        values = value
        if not isinstance(value, tuple):
            values = (value,)
        for each in values:
            text = str(each)
            if name == "study":
                text = without_credentials(text)
            typed += [flag, text]
    if job.recipe is None:
        typed.append("--")
        typed += job.launch or ("python", *job.argv)
    return tuple(typed)


def _job_of(script: tuple[str, ...], typed: Mapping[str, Any], python: Interpreter) -> Workload:
    if script and typed["recipe"] is not None:
        raise UsageError("give a recipe or a script, not both", hint="cputune tune -- train.py")
    batch = typed["batch_per_rank"], typed["global_batch_size"]
    recipe, secret = typed["recipe"], typed["secret"]
    job = launched(None, script or None, *batch, recipe=recipe, secret=secret, python=python)
    if script:
        require_trainable(job.argv, python=python)
    if job.secrets:
        print_line(f"note: {left_out(job.secrets)}")
    return job


def _facts(hosts: RankHosts | None, root: str | None, python: Interpreter) -> HostFacts:
    """The facts of the first host, or of this machine or a recorded one."""
    if hosts is None:
        return facts_of(root, python=python)
    return hosts.facts[0][1]


def _named_hosts(typed: Mapping[str, Any]) -> tuple[tuple[Node, ...], Reach] | None:
    root = typed["root"]
    if root is not None and not typed["dry_run"]:
        raise UsageError(
            "nothing can be measured on a recorded machine", hint="add --dry-run to --root"
        )
    named = chosen_hosts(typed, allocation=root is None)
    if root is not None and named:
        raise UsageError("--root cannot be combined with hosts", hint="remove --root")
    return named


def _save_partial(partial_result: Result, destination: Path | None, *, history: bool) -> None:
    saved = _saved(partial_result, destination, history=history)
    if saved.failure is not None:
        print_line(f"warning: {saved.failure}; {saved.failure.hint}")
    elif destination is not None:
        print_line(f"the result so far is in {destination}; it says why it is provisional")


def _saved(
    result: Result,
    destination: Path | None,
    *,
    history: bool,
    ended: StudyStore | None = None,
) -> Saved:
    """Save the result. ``ended`` is its study, if it was not interrupted."""
    from cputune.records.history import save

    now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    saved = save(result, destination, history=history, now=now)
    if ended is not None and result.not_compared is None:
        ended.finish()  # not without a ratio: then the next step is --resume
    return saved


def _require_room(
    destination: Path | None, store: StudyStore, *, force: bool, resume: bool
) -> None:
    """Raise CputuneError now for an output that could not be written hours later."""
    from cputune.host.files import require_writable
    from cputune.records.history import require_result
    from cputune.tuner.stores import StudyFile

    study = None
    if isinstance(store, StudyFile):
        study = store.path
    for path in (destination, study):
        if path is not None:
            require_writable(path)
    if force and not resume:
        return
    there = store.holds_study()
    if resume:
        if not there:
            problem = f"there is no study {store.shown} to resume"
            raise CannotError(problem, hint="remove --resume")
        return
    if destination is not None and destination.exists():
        require_result(destination)


def _make_room(destination: Path | None, store: StudyStore, *, force: bool) -> None:
    """Move aside what an earlier tune left, and say how to see it. Raises CputuneError."""
    from cputune.records.history import keep_earlier

    if force:
        with store.lock():
            store.remove()
        return
    if destination is not None and destination.exists():
        kept = keep_earlier(destination)
        print_line(f"note: {destination} had an earlier result, which is now: cputune show {kept}")
    if store.holds_study():
        moved = store.make_room()
        if moved is not None:
            print_line(
                f"note: a study without a verdict, of {count(moved.trials, 'trial')}, is now "
                f"{moved.name}: the same command with --resume {moved.option} continues it"
            )


def _print_warnings(job: Workload, facts: HostFacts) -> None:
    """Warn about findings with which every trial fails or misleads, and note what cannot be
    tried. Raises CannotError if the script certainly fails with the installed versions.
    """
    if job.recipe is None:
        require_possible(job.argv, facts)
    from cputune.doctor import Severity, diagnose
    from cputune.doctor.checks.libraries import allocator_missing

    for finding in {finding.code: finding for finding in diagnose(facts).findings}.values():
        kind = "note"
        if finding.severity is Severity.ERROR:
            kind = "warning"
        if kind == "warning" or finding.code == allocator_missing.code:
            print_line(f"{kind}: {finding.title}:")
            print_line(f"  cputune doctor --explain {finding.code}")


def _show(result: Result, file: str | None, facts: HostFacts, *, as_json: bool) -> None:
    from cputune.report.answer import end_blocks
    from cputune.report.show import ResultToShow
    from cputune.report.writing import print_blocks

    if as_json:
        print_json(result.to_json())
        return
    shown = ResultToShow(result=result, file=file or "", facts=facts)
    print_blocks(end_blocks(shown), console())


def _require_packages(job: Workload, python: Interpreter) -> None:
    """Raise MissingPackageError for what every trial needs. A script reports its own needs."""
    lora = job.recipe is not None and job.recipe.lora is not None
    needed = ["torch"]
    if job.recipe:
        needed += _NEEDED_BY_RECIPES
    if lora:
        needed.append("peft")
    missing = [name for name in needed if not python.has_module(name)]
    names = list(missing)
    if find_spec("optuna") is None:
        names.append("optuna")
    if not names:
        return
    hint = install_tuning(stack=bool(missing))
    if missing and not python.is_ours:
        hint = shlex.join([python.executable, "-m", "pip", "install"] + list(missing))
    elif missing:
        if lora:
            hint = hint.replace("[tune]", "[tune,lora]")
        hint += ", or choose another environment with --python ENV"
    raise MissingPackageError(f"tuning needs {', '.join(names)}, not installed", hint=hint)


def _show_space(space: SearchSpace, *, as_json: bool) -> None:
    from cputune.report.study_table import space_blocks
    from cputune.report.writing import print_blocks

    if as_json:
        print_json(
            {
                "schema": "cputune.space/1",
                "plans": [plan.to_json() for plan in space.plans()],
                "knobs": {knob.name: list(knob.values) for knob in space.knobs},
                "left_out": plain(space.left_out),
            }
        )
    else:
        print_blocks(space_blocks(space), console())
