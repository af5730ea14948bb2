"""What carries a plan into a training script: variables, flags, and what only code can set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cputune.carrier.environment import plan_variables
from cputune.carrier.flags import batch_flags, training_flags
from cputune.inside import carry_script, recipe_script
from cputune.inside.carry import Force
from cputune.knobs import plan_arguments, plan_in_torch
from cputune.knobs.accumulation import accumulation_of
from cputune.plan import Plan
from cputune.workload import Workload

TRIAL_SAMPLES = 2048
"""Examples of a recipe's real data set that trials tokenize: enough for 100 steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A plan on its way into a script, the same in trials and in emitted launches.

    Attributes:
        variables: of every rank.
        flags: appended to the script's own words.
        force: what is set in torch and, for a script that takes no flags, in the script's
            objects (``cputune.inside.carry``); None where variables and flags say it all.
        world_size: ranks of the job.
    """

    variables: Mapping[str, str]
    flags: tuple[str, ...] = ()
    force: Force | None = None
    world_size: int = 1

    @property
    def sets_objects(self) -> bool:
        """Whether code sets the plan in the script's own objects, which takes no flags."""
        return self.force is not None and self.force.world_size > 0

    @property
    def carry(self) -> str | None:
        """What ``carry.py`` is told in front of a script; None where the script needs none of it.

        It also ends the ranks of a script together.
        """
        if self.force is not None:
            return self.force.to_json()
        return "{}" if self.world_size > 1 else None


def carried(
    workload: Workload, plan: Plan, versions: Mapping[str, str], *, by_flags: bool = False
) -> Carried:
    """How this plan gets into this workload, beside these versions of the distributions.

    A script is given flags where it was seen to train with the TrainingArguments that it
    parses; in all others, and in those that were never run, the plan is set by code. A
    loop over torch alone gets variables, and a script that is run as found gets nothing.
    ``by_flags``: flags even for a script that was never run. Raises ValueError where the
    global batch cannot be divided over the ranks.
    """
    variables = {**workload.variables, **plan_variables(plan, versions)}
    if plan.as_found:
        flags = batch_flags(workload, plan) if workload.recipe is not None else ()
        return Carried(variables=variables, flags=flags)
    in_torch = plan_in_torch(plan, by_arguments=trains_by_arguments(workload))
    torch_alone = Force(torch=in_torch) if in_torch else None
    if workload.framework == "pytorch":  # the rest is the script's own; see knobs.owned
        return Carried(variables=variables, force=torch_alone, world_size=plan.world_size)
    never_run = workload.parses_arguments is None and workload.framework is None
    if workload.takes_flags or (by_flags and never_run):
        flags = training_flags(workload, plan, versions)
        return Carried(
            variables=variables, flags=flags, force=torch_alone, world_size=plan.world_size
        )
    force = Force(
        world_size=plan.world_size,
        # fp16 beside bf16 is a ValueError, and means nothing on a CPU.
        arguments={"use_cpu": True, "fp16": False, **plan_arguments(plan)},
        samples_per_rank=workload.samples_per_rank(plan.world_size),
        batch_per_rank=workload.batch_per_rank,
        accumulation=accumulation_of(plan)
        if workload.framework == "trainer"
        else workload.accumulation,
        torch=in_torch,
    )
    return Carried(variables=variables, force=force, world_size=plan.world_size)


def trains_by_arguments(workload: Workload) -> bool:
    """Whether TrainingArguments say how this workload trains, as far as is known."""
    return workload.recipe is not None or workload.framework == "trainer"


def launch_command(workload: Workload, carried: Carried) -> tuple[str, ...]:
    """What python runs to train with a plan, nothing measured and nothing led elsewhere.

    The ranks of a script end together (``carry.end_together``); a recipe's do by themselves.
    """
    if workload.recipe is not None:
        recipe = json.dumps(workload.recipe.to_json(), ensure_ascii=False)
        words: tuple[str, ...] = (
            str(recipe_script()), recipe, "--output_dir", "out", *carried.flags,
        )  # fmt: skip
        carry = None if carried.force is None else carried.carry
    else:
        words, carry = (*workload.argv, *carried.flags), carried.carry
    return words if carry is None else (str(carry_script()), carry, *words)


def trial_command(workload: Workload, carried: Carried) -> tuple[str, ...]:
    """What python runs in a trial of a plan; ``tune --dry-run`` shows the same.

    A recipe goes to its script as text, so that the command needs no file beside it.
    """
    if workload.recipe is None:
        return (*workload.argv, *carried.flags)
    return (
        str(recipe_script()),
        json.dumps(workload.recipe.to_json(), ensure_ascii=False),
        *("--output_dir", "out"),  # a trial writes nothing there: its hooks lead it elsewhere
        *("--max_train_samples", str(TRIAL_SAMPLES)),
        *carried.flags,
    )
