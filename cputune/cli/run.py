"""``run``: train with a tuned plan here, now."""

from __future__ import annotations

from dataclasses import replace

import click

from cputune.cli.given import (
    choose_python,
    facts_of,
    launched,
    python_option,
    say,
    tuned,
)
from cputune.cli.settings import ConfiguredCommand, script_of
from cputune.errors import CannotError, MissingPackageError, UsageError
from cputune.host.interpreter import has_module, training_python
from cputune.layout import baseline_plan, guide_plan


@click.command(name="run", cls=ConfiguredCommand, takes_script=True)
@click.argument("result", required=False, metavar="[RESULT] [-- SCRIPT ARGS...]")
@click.option(
    "--plan",
    type=click.Choice(["best", "baseline"]),
    default="best",
    show_default=True,
    help="The plan that is recommended, or today's launch.",
)
@click.option("--other-machine", is_flag=True, help="Take a result of another machine.")
@python_option
@click.pass_context
def command(
    ctx: click.Context, result: str | None, plan: str, other_machine: bool, python: str | None
) -> None:
    """Train with the best plan on this machine, now, in the foreground.

    RESULT is what `cputune tune` wrote (cputune.json), or an id of `cputune history`. Output,
    signals and exit code are those of the training; nothing is measured and nothing is written
    beside it.

    \b
    cputune run
    cputune run --plan baseline
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
    else:
        chosen = found.best.plan if plan == "best" else found.baseline.plan
    if chosen.nodes > 1:
        raise UsageError(
            f"the plan is for {chosen.nodes} nodes, and run starts ranks on this machine alone",
            hint="cputune emit --format mpirun writes its launch",
        )
    if chosen.as_found:
        chosen = replace(chosen, processes_per_node=1, cpus=chosen.cpus[:1])
    say(f"training with {chosen.describe()}")
    try:
        code = foreground.run(workload, chosen, facts)
    except ValueError as error:
        raise UsageError(str(error), hint="--plan baseline trains as before") from error
    except (Infeasible, OSError) as error:
        raise CannotError(
            f"the plan cannot run here: {error}", hint="`cputune doctor` looks the machine over"
        ) from error
    ctx.exit(code)
