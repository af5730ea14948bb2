"""How a plan is spelled on the command line of a Trainer script, version by version.

The variables of ``Plan.environment()`` reach every script; what only a flag can say is
said here. The version ranges are those of the transformers wheels on PyPI, read in
``transformers/training_args.py``; ``doctor/stack.toml`` holds the same rows with sources.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from packaging.version import Version

from cputune.plan import Plan
from cputune.workload import Workload

# First and last transformers release (major, minor) that takes each spelling.
USE_CPU_FROM = (4, 32)
BF16_FROM = (4, 13)
USE_IPEX = ((4, 20), (4, 56))
DDP_BACKEND_FROM = (4, 29)
DDP_BACKEND_CCL_UNTIL = (5, 0)
XPU_BACKEND = ((4, 11), (4, 28))
"""The older name of ``--ddp_backend``; it stayed beside it until 4.31."""
XPU_BACKEND_GLOO_FROM = (4, 24)
ACCELERATE_CCL_UNTIL = (1, 12)

TODAY = (10**6, 0)
"""Stands for a version that is not known: it is taken to be newer than all we know."""


def training_flags(workload: Workload, plan: Plan, versions: Mapping[str, str]) -> tuple[str, ...]:
    """The TrainingArguments flags that carry a plan, to be appended to the script's own.

    ``versions`` maps distribution names (torch, transformers, accelerate, ...) to version
    strings; one that is missing or unreadable is taken to be today's. They come last, and
    the last spelling of a flag wins, so a ``--bf16`` of the user gives way to a plan of
    fp32. fp16 has no flag: ``--fp16`` trains in fp32 on a CPU, without a word.

    Empty for a script that does not parse TrainingArguments; one that was not seen yet is
    taken to parse them, save in the run as found, which must not be disturbed.
    Raises ValueError where the global batch cannot be divided over the ranks.
    """
    parses = workload.parses_arguments
    if parses is False or workload.framework == "accelerate":
        return ()
    if plan.as_found:
        return _batch_flags(workload, plan) if parses else ()
    transformers = release(versions.get("transformers"))
    flags = ["--use_cpu" if transformers >= USE_CPU_FROM else "--no_cuda"]
    flags += _precision_flags(workload, plan, transformers)
    if _between(transformers, USE_IPEX):
        flags += _switch(workload, "--use_ipex", on=plan.ipex)
    if plan.world_size > 1:
        accelerate = release(versions.get("accelerate"))
        flags += _backend_flags(plan.backend, transformers, accelerate)
    return (*flags, *_batch_flags(workload, plan))


def release(version: str | None) -> tuple[int, int]:
    """(major, minor) of a version string, ``TODAY`` where there is none or it is unreadable."""
    try:
        parts = Version(version or "").release
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return TODAY
    return parts[0], parts[1] if len(parts) > 1 else 0


def _between(version: tuple[int, int], span: tuple[tuple[int, int], tuple[int, int]]) -> bool:
    return span[0] <= version <= span[1]


def _precision_flags(
    workload: Workload, plan: Plan, transformers: tuple[int, int]
) -> tuple[str, ...]:
    if transformers < BF16_FROM:
        return ()
    # Both at once is a ValueError, and --fp16 alone means nothing on a CPU.
    fp16_off = _switch(workload, "--fp16", on=False)
    return (*_switch(workload, "--bf16", on=plan.precision == "bf16"), *fp16_off)


def _backend_flags(
    backend: str, transformers: tuple[int, int], accelerate: tuple[int, int]
) -> tuple[str, ...]:
    """``--ddp_backend``, where this backend can be named and exists.

    A backend in a run of one process is a ValueError, so only larger worlds ask for it.
    """
    if backend == "ccl" and accelerate > ACCELERATE_CCL_UNTIL:
        return ()
    if transformers >= DDP_BACKEND_FROM:
        if backend == "ccl" and transformers > DDP_BACKEND_CCL_UNTIL:
            return ()
        return ("--ddp_backend", backend)
    if _between(transformers, XPU_BACKEND):
        if backend == "gloo" and transformers < XPU_BACKEND_GLOO_FROM:
            return ()
        return ("--xpu_backend", backend)
    return ()


def _batch_flags(workload: Workload, plan: Plan) -> tuple[str, ...]:
    """The batch of one rank, in as many accumulation steps as the user asked for.

    A step of the optimizer takes batch × accumulation steps from each rank. Where the
    user's accumulation steps do not divide that, the largest common divisor does.
    """
    samples = workload.samples_per_rank(plan.world_size)
    if samples is None:
        return ()
    asked = _value(workload, "--gradient_accumulation_steps") or "1"
    wanted = max(1, int(asked)) if re.fullmatch(r"[0-9]{1,9}", asked) else 1
    if workload.batch_per_rank is not None:
        return ("--per_device_train_batch_size", str(samples))
    steps = math.gcd(wanted, samples)
    flags: tuple[str, ...] = ("--per_device_train_batch_size", str(samples // steps))
    if steps != wanted:
        flags += ("--gradient_accumulation_steps", str(steps))
    return flags


def _switch(workload: Workload, flag: str, *, on: bool) -> tuple[str, ...]:
    """The flag where it is wanted; ``flag False`` where the user's own arguments set it."""
    if on:
        return (flag,)
    return (flag, "False") if _value(workload, flag) is not None else ()


def _value(workload: Workload, flag: str) -> str | None:
    """The value that the user's arguments give a flag last; "" for a bare flag."""
    found = None
    for position, argument in enumerate(workload.argv):
        name, _, value = argument.partition("=")
        # HfArgumentParser takes --per-device-... for --per_device_... too.
        if "--" + name[2:].replace("-", "_") != flag:
            continue
        following = workload.argv[position + 1 : position + 2]
        if not value and following and not following[0].startswith("--"):
            value = following[0]
        found = value
    return found
