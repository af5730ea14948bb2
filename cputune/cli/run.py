"""A tuned plan put to use here: ``run`` trains with it now, ``apply`` writes it into settings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import click
import yaml

from cputune.cli.given import (
    choose_python,
    complete_result,
    facts_of,
    launched,
    python_option,
    say,
    tuned,
)
from cputune.cli.output import tell
from cputune.cli.settings import ConfiguredCommand, option, script_of
from cputune.documents import parse
from cputune.emitters.apply import TARGETS
from cputune.emitters.command import rank_script
from cputune.errors import CannotError, MissingPackageError, ResultError, UsageError
from cputune.host import read_document, write_atomically
from cputune.host.interpreter import has_module, training_python
from cputune.layout import baseline_plan, guide_plan
from cputune.plan import Plan
from cputune.result import Result
from cputune.text import visible


@click.command(name="run", cls=ConfiguredCommand, takes_script=True)
@click.argument(
    "result", required=False, type=click.Path(path_type=Path), shell_complete=complete_result
)
@option(
    "--plan",
    metavar="PLAN",
    default="best",
    show_default=True,
    folder=True,
    help="best, baseline, or the number of a trial.",
)
@option("--other-machine", is_flag=True, help="Take a result of another machine.")
@python_option
@click.pass_context
def command(
    ctx: click.Context, result: Path | None, plan: str, other_machine: bool, python: str | None
) -> None:
    """Train with the best plan on this machine, now, in the foreground.

    RESULT is what `cputune tune` wrote (cputune.json), or an id of `cputune history`. Output,
    signals and exit code are those of the training; nothing is measured and nothing is written
    beside it.

    \b
    cputune run
    cputune run --plan 3
    cputune run -- run_qa.py --model_name_or_path bert-base-uncased --do_train
    """
    from cputune.ranks import foreground
    from cputune.steps import Infeasible

    choose_python(python, script_of(ctx) or ())
    facts = facts_of()
    if not has_module("torch"):
        raise MissingPackageError(
            f"{training_python()} has no torch, so nothing can be trained",
            hint="--python ENV names the environment that has it",
        )
    found = tuned(result, facts, other_machine=other_machine)
    workload = launched(found, script_of(ctx))
    if found is None:
        chosen = baseline_plan(facts) if plan == "baseline" else guide_plan(facts, workload)
        if plan not in ("best", "baseline"):
            raise UsageError(f"there is no trial {plan}: nothing was tuned", hint="cputune tune")
    else:
        chosen = _chosen(found, plan)
    if chosen.nodes > 1:
        raise UsageError(
            f"the plan is for {chosen.nodes} nodes, and run starts ranks on this machine alone",
            hint="cputune emit --format mpirun writes its launch; --plan takes another trial",
        )
    if chosen.as_found:
        chosen = replace(chosen, processes_per_node=1, cpus=chosen.cpus[:1])
    say(f"training with {chosen.describe()}")
    try:
        code = foreground.run(workload, chosen, facts, rank_script=rank_script())
    except ValueError as error:
        raise UsageError(str(error), hint="--plan takes the number of another trial") from error
    except (Infeasible, OSError) as error:
        raise CannotError(
            f"the plan cannot run here: {error}", hint="`cputune doctor` looks the machine over"
        ) from error
    ctx.exit(code)


def _chosen(result: Result, plan: str) -> Plan:
    if plan in ("best", "baseline"):
        return result.best.plan if plan == "best" else result.baseline.plan
    numbers = [trial.number for trial in result.trials]
    if not re.fullmatch(r"[0-9]{1,6}", plan) or int(plan) not in numbers:
        raise UsageError(
            f"there is no trial {plan!r}",
            hint=f"best, baseline, or a number up to {max(numbers, default=0)}",
        )
    return next(trial.plan for trial in result.trials if trial.number == int(plan))


@click.command(name="apply", cls=ConfiguredCommand)
@click.argument(
    "result", required=False, type=click.Path(path_type=Path), shell_complete=complete_result
)
@option(
    "--to",
    "kind",
    type=click.Choice(tuple(TARGETS)),
    default="env",
    show_default=True,
    help="What is written: .env, TrainingArguments, accelerate's config, compose.",
)
@option(
    "--file",
    metavar="FILE",
    help="Where; the usual place by default.",
    why_not="it names a file that is written",
)
@option("--service", metavar="NAME", help="Of a compose file: the one that trains.")
@option("--yes", is_flag=True, help="Write without asking.", why_not="it writes")
@option("--undo", is_flag=True, help="Put back what was there before.", why_not="it writes")
@option("--other-machine", is_flag=True, help="Take a result of another machine.")
def apply(
    result: Path | None,
    kind: str,
    file: str | None,
    service: str | None,
    yes: bool,
    undo: bool,
    other_machine: bool,
) -> None:
    """Write the best plan into settings that you keep, after a diff.

    RESULT is what `cputune tune` wrote (cputune.json), or an id of `cputune history`. The diff
    is on stdout; without --yes, and where nobody can be asked, nothing is written.

    \b
    cputune apply
    cputune apply --to arguments --file training_args.json --yes
    cputune apply --to compose --service train
    """  # fmt: skip
    target = TARGETS[kind]
    place = file or target.file
    if place is None:
        raise UsageError(
            f"--to {kind} needs a file", hint=f"cputune apply --to {kind} --file training_args.json"
        )
    if kind == "accelerate" and file is None and os.environ.get("HF_HOME"):
        place = os.path.join(os.environ["HF_HOME"], "accelerate", "default_config.yaml")
    path = Path(os.path.realpath(os.path.expanduser(place)))
    before = _held(path)
    if undo:
        after, first = _before(path, before), None
    else:
        found = tuned(result, facts_of(), other_machine=other_machine)
        if found is None:
            raise ResultError("nothing was tuned yet", hint="cputune tune")
        if found.best.plan.as_found:
            tell("nothing to apply: the launch that you have is as fast as any that was tried")
            return
        try:
            after = target.write(found, before or "", path, service)
        except (ValueError, yaml.YAMLError) as error:
            raise UsageError(
                f"{path} cannot be read: {error}", hint="--file names another"
            ) from error
        first = before
        tell(f"note: {place} cannot carry {target.leaves}: cputune run does")
    if after == before:
        tell(f"nothing to change: {place} says so already")
        return
    names = (place, place if after is not None else os.devnull)
    old, new = ((text or "").splitlines(keepends=True) for text in (before, after))
    sys.stdout.writelines(
        visible(line.rstrip("\n")) + "\n" for line in unified_diff(old, new, *names)
    )
    if not yes and not (sys.stdin.isatty() and click.confirm("Write it?", err=True)):
        tell("nothing was written; --yes writes it")
        return
    _replace(path, after, first, undo=undo)
    tell(f"wrote {place}" + ("" if undo else f"; cputune apply --to {kind} --undo takes it back"))


def _undo_file(path: Path) -> Path:
    return path.with_name(path.name + ".cputune-undo")


def _held(path: Path) -> str | None:
    try:
        return read_document(path) if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="--file names another") from error


def _before(path: Path, now: str | None) -> str | None:
    """What was there before the plan was applied. Raises UsageError where that is not known."""
    kept = _held(_undo_file(path))
    try:
        known = parse(kept or "{}")
        before, after = known["before"], known["after"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"there is nothing to undo at {path}", hint="--file names another"
        ) from None
    if now != after:
        raise UsageError(
            f"{path} was changed after the plan was applied",
            hint=f"what was there before stands in {_undo_file(path)}",
        )
    return before if isinstance(before, str) else None


def _replace(path: Path, after: str | None, first: str | None, *, undo: bool) -> None:
    """Write or remove the file; what was there before cputune stands beside it until undone."""
    remembered = _undo_file(path)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    if undo:
        if after is None:
            path.unlink()
        else:
            write_atomically(path, after, force=True, mode=mode)
        remembered.unlink()
        return
    with contextlib.suppress(UsageError):  # applied twice: --undo goes back to the first text
        first = _before(path, first)
    path.parent.mkdir(parents=True, exist_ok=True)
    words = json.dumps({"before": first, "after": after}, indent=2)
    write_atomically(remembered, words + "\n", force=True, mode=0o600)
    write_atomically(path, after or "", force=True, mode=mode)
