"""How a plan is spelled on the command line of a Trainer script, version by version.

The variables of ``Plan.environment()`` reach every script; what only a flag can say is
said here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from cputune.knobs import plan_arguments
from cputune.knobs.accumulation import accumulation_of
from cputune.plan import Plan
from cputune.stack import Versions, backend_flags, cpu_flag, takes
from cputune.workload import Workload


def training_flags(workload: Workload, plan: Plan, versions: Mapping[str, str]) -> tuple[str, ...]:
    """The TrainingArguments flags that carry a plan, to be appended to the script's own.

    ``versions`` maps distribution names (torch, transformers, accelerate, ...) to version
    strings; one that is missing or unreadable is taken to be today's. They come last, and
    the last spelling of a flag wins, so a ``--bf16`` of the user gives way to a plan of
    fp32. fp16 has no flag: ``--fp16`` trains in fp32 on a CPU, without a word.

    Raises ValueError where the global batch cannot be divided over the ranks.
    """
    stack = Versions.from_names(versions)
    flags = (cpu_flag(stack), *_knob_flags(workload, plan, stack))
    return (*flags, *batch_flags(workload, plan))


def _knob_flags(workload: Workload, plan: Plan, versions: Versions) -> Iterator[str]:
    """The arguments of every knob, as far as this transformers takes them."""
    for name, value in plan_arguments(plan).items():
        if value is None:
            continue
        if name == "ddp_backend":  # it had another name, and not every backend
            yield from backend_flags(versions, str(value))
        elif not takes(versions, name):
            continue
        elif isinstance(value, bool):
            yield from _switch(workload, f"--{name}", on=value)
        else:
            yield from (f"--{name}", str(value))
        if name == "bf16" and workload.argument("--fp16") is not None:
            yield from ("--fp16", "False")  # both is a ValueError; it means nothing on a CPU


def batch_flags(workload: Workload, plan: Plan) -> tuple[str, ...]:
    """The batch of one rank, in as many accumulation steps as the plan or the script says.

    A step of the optimizer takes batch × accumulation steps from each rank. Where those
    do not divide that, the largest common divisor does.
    """
    samples = workload.samples_per_rank(plan.world_size)
    if samples is None:
        return ()
    if workload.batch_per_rank is not None:
        return ("--per_device_train_batch_size", str(samples))
    asked = workload.argument("--gradient_accumulation_steps") or "1"
    wanted = max(1, int(asked)) if re.fullmatch(r"[0-9]{1,9}", asked) else 1
    wanted = workload.accumulation or wanted  # a configuration file may have said it
    steps = math.gcd(accumulation_of(plan) or wanted, samples)
    flags: tuple[str, ...] = ("--per_device_train_batch_size", str(samples // steps))
    if steps != wanted:
        flags += ("--gradient_accumulation_steps", str(steps))
    return flags


def _switch(workload: Workload, flag: str, *, on: bool) -> tuple[str, ...]:
    """``flag True`` or ``flag False``, whatever the script has by default.

    TRL has bf16 on by default, and its parser wants the word. A recipe has all of it off,
    and takes a bare flag.
    """
    if workload.recipe is not None:
        return (flag,) if on else ()
    return (flag, str(on))
