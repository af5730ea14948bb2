"""``run``: trains with the best known plan for this machine and command, here and now."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from cputune.cli import completing
from cputune.cli.inputs import (
    DEFAULT_RESULT,
    choose_python,
    facts_of,
    launched,
    mpirun_here,
    opened,
    print_note,
    python_option,
    secret_option,
    tuned,
)
from cputune.cli.option_defaults import ConfiguredCommand, script_of
from cputune.cli.output import print_line
from cputune.errors import CannotError, MissingPackageError, UsageError
from cputune.host.facts import HostFacts
from cputune.host.interpreter import Interpreter
from cputune.host.process import keep_secrets
from cputune.launch.launch import launch_of
from cputune.plans.layout import baseline_plan, guide_plan, mild_plan
from cputune.plans.training_command import require_trainable
from cputune.plans.workload import Workload
from cputune.records.options import KEEP
from cputune.records.steps import HostLost, Infeasible
from cputune.text import cpulist

if TYPE_CHECKING:
    from cputune.plans.plan import Plan
    from cputune.ranks.hosts import RankHosts
    from cputune.records.result import Result


@click.command(name="run", cls=ConfiguredCommand, takes_script=True)
@click.argument(
    "result",
    required=False,
    metavar="[RESULT] [-- SCRIPT ARGS...]",
    shell_complete=completing.results,
)
@click.option(
    "--plan",
    default="best",
    show_default=True,
    metavar="WHICH",
    help="best, baseline (your current launch), or the number of a trial.",
    shell_complete=completing.PLANS,
)
@click.option(
    "--keep",
    type=click.Choice(KEEP[:2]),
    help="Leave out changes that keep less of the training: numbers or mathematics.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
@click.option("--no-guard", is_flag=True, help="Do not compare the ranks while they train.")
@click.option("--other-machine", is_flag=True, help="Accept a result of another machine.")
@secret_option
@python_option
@click.pass_context
def command(
    ctx: click.Context,
    result: str | None,
    plan: str,
    keep: str | None,
    dry_run: bool,
    no_guard: bool,
    other_machine: bool,
    secret: tuple[str, ...],
    python: str | None,
) -> None:
    """Train with the best plan, now, in the foreground, on this machine or the measured hosts.

    RESULT is what `cputune tune` wrote (cputune.json), or an id of `cputune history`. Without it,
    your script starts with its plan for this machine, from cputune.json or the history. If there is
    no plan, your command starts with one bound thread per core and a faster allocator if one is
    installed, which does not change what it computes.

    A plan for several hosts is started on the hosts that measured it, through the same ssh, srun or
    mpirun. Output, signals and exit code are those of the training. Nothing is measured. Several
    ranks are compared now and then: if their weights or learning rates differ, all of them stop,
    with exit code 5.

    \b
    cputune run
    cputune run --plan baseline
    cputune run -- python train.py --epochs 3
    """
    from cputune.cli.known_plans import newest_of
    from cputune.records.ladder import keeping

    script = script_of(ctx)
    trains = choose_python(python, script or ())
    facts = facts_of(watched=False, python=trains)
    if not trains.has_module("torch"):
        raise MissingPackageError(
            f"{trains.executable} has no torch, so it cannot train",
            hint="--python ENV chooses an environment that has it",
        )
    unknown = False
    if result is None and script is not None and not other_machine:
        typed = Workload.script(script, secret=secret, python=trains)
        keep_secrets(script, secret=secret)
        if os.path.exists(typed.argv[0]):
            require_trainable(typed.argv, python=trains)
        result = newest_of(typed, facts, first=(DEFAULT_RESULT,))
        unknown = result is None
        if unknown and plan == "best":
            _train_as_typed(typed, facts, dry_run=dry_run)
            return
    measured, there = None, None
    if not unknown:
        there, facts = _hosts_of(result, script, plan, facts, trains)
        measured = tuned(result, facts, other_machine=other_machine)
    if measured is not None:
        measured = keeping(measured, keep)
    workload = launched(measured, script, secret=secret, python=trains)
    if not dry_run:
        _take_secrets(workload)
    chosen = _chosen(measured, plan, facts, workload, hosts=there)
    try:
        how = _how(measured, chosen, workload, facts)
        ctx.exit(
            _train(workload, chosen, facts, there, dry_run=dry_run, how=how, guard=not no_guard)
        )
    except ValueError as error:
        raise UsageError(
            str(error), hint="--plan baseline trains as your current launch"
        ) from error
    except (Infeasible, HostLost, OSError) as error:
        raise CannotError(
            f"the plan cannot run here: {error}", hint="run `cputune doctor` to examine the machine"
        ) from error


def _take_secrets(workload: Workload) -> None:
    """Ask on a terminal for secrets that a result does not contain and no variable has."""
    for name in workload.secrets:
        if name not in os.environ and sys.stdin.isatty():
            prompt = f"{name}, which the result does not contain"
            os.environ[name] = click.prompt(prompt, hide_input=True, err=True)


def _hosts_of(
    name: str | None,
    script: tuple[str, ...] | None,
    which: str,
    facts: HostFacts,
    python: Interpreter,
) -> tuple[RankHosts | None, HostFacts]:
    """The hosts on which a result was measured, if its plan needs several, and their facts.

    Else None, and the facts of this machine. Raises CannotError if a host cannot take part.
    """
    from cputune.host.remote.named import Node
    from cputune.host.remote.reach import find_reach

    if name is None and not DEFAULT_RESULT.exists():
        return None, facts
    result, _ = opened(name)
    plans = {str(trial.number): trial.plan for trial in result.trials}
    plan = {"best": result.best.plan, "baseline": result.baseline.plan}.get(which, plans.get(which))
    if plan is None or plan.nodes == 1 or result.through is None:
        return None, facts
    argv = shlex.split(result.through)
    if os.path.basename(argv[0]) == "srun":
        reach = find_reach("srun")
    elif os.path.basename(argv[0]) == "mpirun":
        reach = find_reach("mpirun", mpi=mpirun_here())
    else:
        reach = find_reach("ssh", ssh=result.through)
    from cputune.ranks.hosts import open_hosts

    nodes = [Node(name=host) for host in result.hosts]
    job = launched(result, script, python=python)
    hosts = open_hosts(nodes, reach, job, interpreter=python)
    return hosts, hosts.facts[0][1]


def _chosen(
    measured: Result | None,
    which: str,
    facts: HostFacts,
    workload: Workload,
    *,
    hosts: RankHosts | None = None,
) -> Plan:
    """The requested plan. Raises UsageError for a trial that does not exist."""
    if which not in ("best", "baseline"):
        numbered = {}
        if measured is not None:
            numbered = {str(trial.number): trial.plan for trial in measured.trials}
        if which not in numbered:
            numbers = ", ".join(numbered) or "none: there is no result"
            raise UsageError(f"there is no trial {which}", hint=f"best, baseline, or of {numbers}")
        plan = numbered[which]
    elif measured is None and which == "baseline":
        plan = baseline_plan(facts)
    elif measured is None:
        plan = guide_plan(facts, workload)
    elif which == "best":
        plan = measured.best.plan
    else:
        plan = measured.baseline.plan
    if plan.nodes > 1 and hosts is None:
        raise UsageError(
            f"the plan is for {plan.nodes} nodes, and run starts ranks only on this machine",
            hint="write its launch with cputune emit --format mpirun",
        )
    if plan.as_found:
        plan = replace(plan, processes_per_node=1, cpus=plan.cpus[:1])
    return plan


def _how(measured: Result | None, plan: Plan, workload: Workload, facts: HostFacts) -> str:
    from cputune.emitters.imported import digests
    from cputune.emitters.prepared import versions_of
    from cputune.host import LiveHost
    from cputune.records.claims import FASTER, ClaimContext, host_fingerprint
    from cputune.records.shared_texts import YOURS, between, times_as_fast

    if measured is None:
        return "not measured"
    if plan.as_found:
        return YOURS
    context = ClaimContext(
        workload=workload,
        host=host_fingerprint(facts),
        nodes=plan.nodes,
        versions=versions_of(facts),
        plan=plan,
        files=digests(workload.argv, LiveHost()),
    )
    claim = measured.claim.in_context(context)
    if not claim.applies:
        return claim.not_measured
    ratio = claim.ratio
    if ratio is not None and ratio.outcome == FASTER and ratio.narrow:
        speed = f"{times_as_fast(ratio)} as the previous launch, {between(ratio)}"
        return f"measured {claim.measured}: {speed}"
    return f"measured {claim.measured}, not found faster than the previous launch"


def _train_as_typed(workload: Workload, facts: HostFacts, *, dry_run: bool) -> None:
    """Start the command as typed, with settings that do not change its numbers."""
    from cputune.ranks import typed

    plan = mild_plan(facts)
    command = typed.typed_command(
        workload, plan, os.environ, facts.training_python, fill=not dry_run
    )
    line = typed.line_of(command, os.environ)
    for fault in _faults_of(workload, facts):
        print_line(fault)
    if dry_run:
        click.echo(line)
        return
    env = command["env"] or {}
    given = []
    for n in typed.MILD:
        if env.get(n) != os.environ.get(n):
            given.append(f"{n}={env[n]}")
    cpus = command.get("cpus")
    if cpus is not None:
        given.append(f"CPUs {cpulist.render(cpus)}")
    what = ", ".join(given) or "nothing, because all of it is set already"
    print_note(
        f"no plan is known for this command; set {what}; not measured (cputune tune measures)"
    )
    typed.become(command)


def _faults_of(workload: Workload, facts: HostFacts) -> Iterator[str]:
    """What is wrong in the words of a launcher that were typed, each with its remedy."""
    from cputune.doctor.typed_launch import faults_of_words

    if not workload.launch:
        return
    for finding in faults_of_words(workload.launch, facts):
        yield f"warning: {finding.title} ({finding.evidence}): {finding.command or finding.remedy}"


def _train(
    workload: Workload,
    plan: Plan,
    facts: HostFacts,
    hosts: RankHosts | None,
    *,
    dry_run: bool,
    how: str,
    guard: bool,
) -> int:
    """Start the ranks of a plan, on ``hosts`` if it needs several.

    A single rank replaces this process.
    """
    from cputune.ranks import foreground, typed

    note = f"training with {plan.describe()} ({how})"
    typed_launch = launch_of(workload.launch) if plan.as_found and workload.launch else None
    if typed_launch is not None:
        note = f"training with {how}: {typed_launch.program} {' '.join(typed_launch.options)}"
    if plan.nodes > 1 and hosts is not None:
        if dry_run:
            click.echo("\n".join(foreground.lines_on_hosts(workload, plan, hosts)))
            return 0
        print_note(f"{note} on {', '.join(hosts.names[: plan.nodes])}, through {hosts.reach.typed}")
        return foreground.run_on_hosts(workload, plan, hosts, guard=guard)
    if plan.world_size == 1:
        command = typed.alone(workload, plan, facts, filled=not dry_run)
        if not dry_run:
            print_note(note)
            typed.become(command)
        click.echo(typed.line_of(command, os.environ))
        return 0
    if not dry_run:
        print_note(note)
        return foreground.run(workload, plan, facts, guard=guard)
    for line in foreground.lines(workload, plan, facts, guard=guard):
        click.echo(line)
    return 0
