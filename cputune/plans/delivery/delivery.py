"""Applying a plan to a training script: variables, flags, and what only code can set."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from cputune.inside import applying_script, recipe_script
from cputune.inside.applying.force import Force
from cputune.launch.located_words import without_options
from cputune.plans.delivery.environment import plan_variables
from cputune.plans.knobs import set_by
from cputune.plans.knobs.batches import accumulation_of
from cputune.plans.knobs.record import Argument
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.stack import Versions, backend_flags, cpu_flag, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A plan as it is applied to a script, the same in trials and in emitted launches.

    Attributes:
        variables: of every rank.
        flags: appended to the script's arguments.
        force: what is set in torch and, if the script takes no flags, in its objects
            (``cputune.inside.applying``); None if variables and flags are enough.
        world_size: ranks of the job.
        comparable: whether its ranks can be compared while they train: not if they differ in the
            launch as typed.
    """

    variables: Mapping[str, str]
    flags: tuple[str, ...] = ()
    force: Force | None = None
    world_size: int = 1
    comparable: bool = False

    @property
    def sets_objects(self) -> bool:
        """Whether the plan is set in the script's objects, because the script takes no flags."""
        return self.force is not None and self.force.world_size > 0 and not self.force.by_flags

    @property
    def apply_arguments(self) -> str | None:
        """The arguments of ``apply_plan.py``, which runs the script; None if it is not needed.

        It also ends the ranks of a script together.
        """
        if self.force is not None:
            return self.force.to_json()
        if self.world_size > 1:
            return "{}"
        return None


def delivery_of(workload: Workload, plan: Plan, versions: Mapping[str, str]) -> Delivery:
    """How this plan is applied to this workload with these versions of the distributions.

    A script gets flags if it was seen to train with TrainingArguments that it parses. In all other
    scripts, and in those that never ran, code sets the plan. A loop over torch alone gets variables
    only; a plan that runs as typed gets nothing. A distribution without a readable version counts
    as the newest of the tables. Raises ValueError if the global batch cannot be divided over the
    ranks.
    """
    variables = plan_variables(plan, versions)
    if plan.as_found and workload.recipe is None:
        return Delivery(variables=variables)
    arguments, in_torch = set_by(plan, by_arguments=workload.framework == "trainer")
    torch_alone = None
    if in_torch:
        torch_alone = Force(torch=in_torch)
    drifts = workload.training is not None and workload.training.drift
    delivery = Delivery(
        variables=variables,
        force=torch_alone,
        world_size=plan.world_size,
        comparable=plan.world_size > 1 and not drifts,
    )
    if workload.framework == "pytorch":  # the rest is the script's own; see OWNED of knobs
        return delivery
    share = _share(workload, plan)
    if plan.as_found:  # a recipe takes its batch from its flags
        return Delivery(variables=variables, flags=share.flags)
    force = Force(
        world_size=plan.world_size,
        samples_per_rank=share.samples,
        batch_per_rank=workload.batch_per_rank,
        torch=in_torch,
        typed_ranks=workload.launch_ranks,
        loader=0 if workload.training is None else workload.training.loader,
        find_unused=workload.training is not None and workload.training.unused,
        loop_alone=workload.framework == "accelerate",
    )
    if workload.takes_flags:
        stack = Versions.from_names(versions)
        flags = (cpu_flag(stack), *_knob_flags(workload, arguments, stack), *share.flags)
        # A recipe trains the same by itself.
        if workload.recipe is None and (force.rescales or share.typed != share.batches):
            by_flags = replace(force, by_flags=True, typed_accumulation=share.typed)
            return replace(delivery, flags=flags, force=by_flags)
        return replace(delivery, flags=flags)
    accumulation = workload.accumulation
    if workload.framework == "trainer":
        accumulation = share.planned
    by_objects = replace(
        force,
        # fp16 beside bf16 is a ValueError, and means nothing on a CPU.
        arguments={"use_cpu": True, "fp16": False, **arguments},
        accumulation=accumulation,
    )
    return replace(delivery, force=by_objects)


# Options of TrainingArguments that need a process group.
OF_SEVERAL = ("--ddp_backend", "--xpu_backend")


def trial_command(workload: Workload, delivery: Delivery) -> tuple[str, ...]:
    """The arguments of python in a trial of a plan; ``tune --dry-run`` shows the same.

    A recipe is passed to its script as text, so that the command needs no other file.
    """
    if workload.recipe is None:
        argv = workload.argv
        if delivery.world_size == 1 < workload.launch_ranks and workload.parses_arguments:
            argv = without_options(argv, OF_SEVERAL)  # for one process they are an error
        return (*argv, *delivery.flags)
    recipe = json.dumps(workload.recipe.to_json(), ensure_ascii=False)
    # A trial writes nothing to "out": its hooks lead it elsewhere.
    return (str(recipe_script()), recipe, "--output_dir", "out", *delivery.flags)


def launch_command(
    workload: Workload, delivery: Delivery, *, guard: bool = True
) -> tuple[str, ...]:
    """The arguments of python that train with a plan, without measuring.

    The ranks of a script end together (``inside.applying.ending``); those of a recipe do so by
    themselves. ``guard``: ranks are compared while they train.
    """
    command = trial_command(workload, delivery)
    apply_arguments = None
    if not (workload.recipe is not None and delivery.force is None):
        apply_arguments = delivery.apply_arguments
    if apply_arguments is None:
        return command
    if guard and delivery.comparable:
        apply_arguments = json.dumps({"guard": True, **json.loads(apply_arguments)})
    return (str(applying_script()), apply_arguments, *command)


def _knob_flags(
    workload: Workload, arguments: Mapping[str, Argument], versions: Versions
) -> Iterator[str]:
    """The arguments of every knob that this transformers accepts, as flags.

    The last spelling of a flag wins, so the user's ``--bf16`` yields to a plan in fp32. fp16 has no
    flag: on a CPU ``--fp16`` trains in fp32 without a message.
    """
    for name, value in arguments.items():
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


class _Share(NamedTuple):
    """What a rank takes of the samples of an optimizer step.

    ``samples``: None if the script decides. ``typed``: batches of a step of the script, ``planned``
    of the plan, if it says so, and ``batches`` those that are taken. ``flags`` say it.
    """

    samples: int | None
    typed: int
    planned: int | None
    batches: int
    flags: tuple[str, ...]


def _share(workload: Workload, plan: Plan) -> _Share:
    """The batch of one rank, in as many accumulation steps as the plan or the script says.

    An optimizer step takes batch × accumulation steps from each rank. If the steps do not divide
    that, their largest common divisor is used. Raises ValueError if the global batch cannot be
    divided over the ranks.
    """
    samples = workload.samples_per_rank(plan.world_size)
    typed = workload.typed_accumulation or 1
    planned = accumulation_of(plan)
    batches = typed
    flags: tuple[str, ...] = ()
    if samples is not None:
        if workload.batch_per_rank is None:
            batches = math.gcd(planned or typed, samples)
            samples_at_once = samples // batches
        else:
            samples_at_once = samples
        flags = ("--per_device_train_batch_size", str(samples_at_once))
        if batches != typed:
            flags += ("--gradient_accumulation_steps", str(batches))
    return _Share(samples, typed, planned, batches, flags)
