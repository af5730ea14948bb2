"""Applying a plan to a training script: variables, flags, and what only code can set."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cputune.inside import carry_script, recipe_script
from cputune.inside.carry.force import Force
from cputune.launch.launch import launch_of
from cputune.launch.script import batch_of
from cputune.plans.carrier.environment import plan_variables
from cputune.plans.knobs import plan_arguments, plan_in_torch
from cputune.plans.knobs.batches import accumulation_of
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.stack import Versions, backend_flags, cpu_flag, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A plan as it is applied to a script, the same in trials and in emitted launches.

    Attributes:
        variables: of every rank.
        flags: appended to the script's arguments.
        force: what is set in torch and, if the script takes no flags, in its objects
            (``cputune.inside.carry``); None if variables and flags are enough.
        world_size: ranks of the job.
    """

    variables: Mapping[str, str]
    flags: tuple[str, ...] = ()
    force: Force | None = None
    world_size: int = 1

    @property
    def sets_objects(self) -> bool:
        """Whether the plan is set in the script's objects, because the script takes no flags."""
        return self.force is not None and self.force.world_size > 0 and not self.force.by_flags

    @property
    def carry(self) -> str | None:
        """The arguments of ``carry.py``, which runs before the script; None if it is not needed.

        It also ends the ranks of a script together.
        """
        if self.force is not None:
            return self.force.to_json()
        if self.world_size > 1:
            return "{}"
        return None


def carried(workload: Workload, plan: Plan, versions: Mapping[str, str]) -> Carried:
    """How this plan is applied to this workload with these versions of the distributions.

    A script gets flags if it was seen to train with TrainingArguments that it parses. In all other
    scripts, and in those that never ran, code sets the plan. A loop over torch alone gets variables
    only; a plan that runs as typed gets nothing. Raises ValueError if the global batch cannot be
    divided over the ranks.
    """
    variables = plan_variables(plan, versions)
    if plan.as_found:
        if workload.recipe is not None:
            batch = batch_flags(workload, plan)
        else:
            batch = ()
        return Carried(variables=variables, flags=batch)
    by_arguments = workload.recipe is not None or workload.framework == "trainer"
    in_torch = plan_in_torch(plan, by_arguments=by_arguments)
    torch_alone = None
    if in_torch:
        torch_alone = Force(torch=in_torch)
    if workload.framework == "pytorch":  # the rest is the script's own; see OWNED of knobs
        return Carried(variables=variables, force=torch_alone, world_size=plan.world_size)
    force: Force | None
    whole = Force(
        world_size=plan.world_size,
        samples_per_rank=workload.samples_per_rank(plan.world_size),
        batch_per_rank=workload.batch_per_rank,
        torch=in_torch,
        typed_ranks=workload.launch_ranks,
        loader=0 if workload.training is None else workload.training.loader,
        find_unused=workload.training is not None and workload.training.unused,
        loop_alone=workload.framework == "accelerate",
    )
    flags: tuple[str, ...] = ()
    if workload.takes_flags:
        flags = training_flags(workload, plan, versions)
        wanted, steps = _accumulation(workload, plan)
        same = workload.recipe is not None  # it trains the same by itself
        same |= not whole.other_ranks and wanted == steps
        by_flags = replace(whole, by_flags=True, typed_accumulation=wanted)
        if same:
            force = torch_alone
        else:
            force = by_flags
    else:
        accumulation = workload.accumulation
        if workload.framework == "trainer":
            accumulation = accumulation_of(plan)
        force = replace(
            whole,
            # fp16 beside bf16 is a ValueError, and means nothing on a CPU.
            arguments={"use_cpu": True, "fp16": False, **plan_arguments(plan)},
            accumulation=accumulation,
        )
    return Carried(variables=variables, flags=flags, force=force, world_size=plan.world_size)


def as_typed(
    workload: Workload, plan: Plan, versions: Mapping[str, str], *, found: Plan
) -> Carried | None:
    """How the launch as typed is written down; None if something has to be set for it.

    ``plan`` is what its ranks showed, to be bound, and ``found`` the same as it ran. Its script
    and words decide all that it trains, so variables are enough. accelerate and deepspeed pass
    more to a loop than a plan has (``ACCELERATE_GRADIENT_ACCUMULATION_STEPS``).
    """
    if not found.as_found or workload.recipe is not None:
        return None
    alike = plan.world_size == found.world_size and plan.nodes == found.nodes
    launch = launch_of(workload.launch)
    passes_more = launch is not None and launch.launcher in ("accelerate", "deepspeed")
    if not alike or (passes_more and workload.framework != "trainer"):
        return None
    return Carried(variables=plan_variables(plan, versions), world_size=plan.world_size)


def trial_command(workload: Workload, carried: Carried) -> tuple[str, ...]:
    """The arguments of python in a trial of a plan; ``tune --dry-run`` shows the same.

    A recipe is passed to its script as text, so that the command needs no other file.
    """
    if workload.recipe is None:
        return (*workload.argv, *carried.flags)
    recipe = json.dumps(workload.recipe.to_json(), ensure_ascii=False)
    # A trial writes nothing to "out": its hooks lead it elsewhere.
    return (str(recipe_script()), recipe, "--output_dir", "out", *carried.flags)


def launch_command(workload: Workload, carried: Carried, *, guard: bool = True) -> tuple[str, ...]:
    """The arguments of python that train with a plan, without measuring.

    The ranks of a script end together (``inside.carry.ending``); those of a recipe do so by
    themselves. ``guard``: ranks are compared while they train.
    """
    command = trial_command(workload, carried)
    carry = None
    if not (workload.recipe is not None and carried.force is None):
        carry = carried.carry
    if carry is None:
        return command
    if guard and is_guarded(workload, carried):
        carry = json.dumps({"guard": True, **json.loads(carry)})
    return (str(carry_script()), carry, *command)


def is_guarded(workload: Workload, carried: Carried) -> bool:
    """Whether the ranks of a launch can be compared: not if they differ in the typed launch."""
    drifts = workload.training is not None and workload.training.drift
    return carried.world_size > 1 and not drifts


def training_flags(workload: Workload, plan: Plan, versions: Mapping[str, str]) -> tuple[str, ...]:
    """The TrainingArguments flags of a plan, to be appended to the script's arguments.

    ``versions`` maps distribution names (torch, transformers, accelerate, ...) to version strings;
    a missing or unreadable one counts as the newest of the tables. The last spelling of a flag
    wins, so the user's ``--bf16`` yields to a plan in fp32. fp16 has no flag: on a CPU ``--fp16``
    trains in fp32 without a message.

    Raises ValueError if the global batch cannot be divided over the ranks.
    """
    stack = Versions.from_names(versions)
    flags = (cpu_flag(stack), *_knob_flags(workload, plan, stack))
    return (*flags, *batch_flags(workload, plan))


def _knob_flags(workload: Workload, plan: Plan, versions: Versions) -> Iterator[str]:
    """The arguments of every knob that this transformers accepts."""
    for name, value in plan_arguments(plan).items():
        if value is None:
            continue
        if name == "ddp_backend":  # it had another name, and not every backend
            yield from backend_flags(versions, str(value))
        elif not takes(versions, name):
            continue
        elif value is True and workload.recipe is not None:
            yield f"--{name}"
        # TRL has bf16 on by default, and its parser wants the word. A recipe has all of it off.
        elif value is not False or workload.recipe is None:
            yield from (f"--{name}", str(value))
        if name == "bf16" and workload.argument("--fp16") is not None:
            yield from ("--fp16", "False")  # both is a ValueError; it means nothing on a CPU


def batch_flags(workload: Workload, plan: Plan) -> tuple[str, ...]:
    """The batch of one rank, in as many accumulation steps as the plan or the script says.

    An optimizer step takes batch × accumulation steps from each rank. If the steps do not divide
    that, their largest common divisor is used.
    """
    samples = workload.samples_per_rank(plan.world_size)
    if samples is None:
        return ()
    if workload.batch_per_rank is not None:
        return ("--per_device_train_batch_size", str(samples))
    wanted, steps = _accumulation(workload, plan)
    flags: tuple[str, ...] = ("--per_device_train_batch_size", str(samples // steps))
    if steps != wanted:
        flags += ("--gradient_accumulation_steps", str(steps))
    return flags


def _accumulation(workload: Workload, plan: Plan) -> tuple[int, int]:
    """Batches of an optimizer step: of the script, and of the plan."""
    # A configuration file may have said it.
    wanted = workload.accumulation or batch_of(workload.argv).accumulation or 1
    samples = workload.samples_per_rank(plan.world_size)
    if samples is None or workload.batch_per_rank is not None:
        return wanted, wanted
    return wanted, math.gcd(accumulation_of(plan) or wanted, samples)
