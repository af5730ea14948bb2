"""What the user typed and a plan turns off, with the reason if the machine has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cputune.host.facts import HostFacts
from cputune.launch.launch import launch_of
from cputune.plans.carrier.command import Carried
from cputune.plans.knobs.backend import BACKEND
from cputune.plans.knobs.kernels import IPEX
from cputune.plans.knobs.precision import PRECISION
from cputune.plans.knobs.record import Ask
from cputune.plans.workload import Workload
from cputune.stack import Versions
from cputune.stack.uses import Fate, vocabulary

OFF_HERE = " off here"

IN_FP32 = "in fp32"
MEANT: Mapping[str, Mapping[str, str]] = {
    "--bf16": {"true": "in bf16", "": IN_FP32},
    "--fp16": {"true": "in fp16", "": ""},
    "--use_ipex": {"true": "with IPEX", "": "without IPEX"},
    "--ddp_backend": {"": "over {}"},
    "--optim": {"": "with the optimizer {}"},
    "--dataloader_num_workers": {"": "with {} loader processes"},
    "--torch_compile": {"true": "with torch.compile", "": "without torch.compile"},
    "--group_by_length": {"": "with samples in random order"},
    "--mixed_precision": {"no": IN_FP32, "": "in {}"},
    "--ipex": {"": "without IPEX"},
}
"""What the plan trains with, by a flag and the value that it has; the empty one is of all others.
Of fp16 the flag of bf16 says it."""

OF_BATCH = ("--per_device_train_batch_size", "--gradient_accumulation_steps")
"""Flags that say the same batch, divided over other ranks: nothing is off."""

KNOB_OF = {
    "--bf16": "precision=bf16",
    "--fp16": "precision=fp16",
    "--use_ipex": "ipex=yes",
    "--ipex": "ipex=yes",
    "--ddp_backend": "backend={}",
    "--mixed_precision": "precision={}",
}
"""The value of a knob that a flag asks for."""


def reasons(facts: HostFacts | None, workload: Workload) -> dict[str, str]:
    """Why this machine does not have the values of knobs that flags ask for."""
    if facts is None:
        return {}
    ask = Ask(workload=workload)
    choices = [knob.choices(facts, ask) for knob in (PRECISION, BACKEND, IPEX)]
    return {out.what: out.why for found in choices for out in found.left_out}


def turned_off(workload: Workload, way: Carried, why: Mapping[str, str]) -> list[str]:
    """What was typed and has no effect, because the plan sets something else later; and why.

    The first note has room in a header. ``why`` has the reasons why values of knobs are not
    possible here.
    """
    off: dict[str, None] = {}
    trains: dict[str, None] = {}
    because: dict[str, None] = {}
    for flag, typed, value in _changed(workload, way):
        meant = MEANT.get(flag, {"": f"with {flag} {{}}"})
        shown = flag if typed.lower() in ("", "true") else f"{flag} {typed}"
        off[shown] = None
        trains[meant.get(value.lower(), meant[""]).format(value) or IN_FP32] = None
        reason = why.get(KNOB_OF.get(flag, "").format(typed))
        if reason is not None:
            because[reason] = None
    if not off:
        return []
    verb = "is" if len(off) == 1 else "are"
    notes = [f"your {_listed(off)} {verb}{OFF_HERE}: the plan trains {_listed(trains)}"]
    if because:
        notes.append(f"that is{OFF_HERE} because {'; '.join(because)}")
    return notes


def without_refused(
    words: Sequence[str], flags: Sequence[str], versions: Versions
) -> tuple[str, ...]:
    """The typed words without values that these versions refuse, if the plan has another one.

    argparse also refuses a value that a later one replaces: ``--ddp_backend ccl`` since 5.1.
    """
    refused = [word.spelling for word in vocabulary(versions) if word.state is Fate.REFUSED]
    found: list[str] = []
    at = 0
    while at < len(words):
        flag, _, value = words[at].partition("=")
        apart = not value and at + 1 < len(words)
        if apart:
            value = words[at + 1]
        if flag in flags and f"{flag} {value}" in refused:
            at += 2 if apart else 1
        else:
            found.append(words[at])
            at += 1
    return tuple(found)


def _listed(words: Mapping[str, None]) -> str:
    *others, last = words
    if not others:
        return last
    return f"{', '.join(others)} and {last}"


def _changed(workload: Workload, way: Carried) -> Iterator[tuple[str, str, str]]:
    """Flags that were typed, with their value and that of the plan, if it is another."""
    planned = dict(_set_by(way))
    for flag, value in planned.items():
        typed = workload.argument(flag)
        if typed is None or flag in OF_BATCH:
            continue
        if (typed or "true").lower() != value.lower():
            yield flag, typed, value
    # Those of another name: of a script of its own, and of the launcher.
    launch = launch_of(workload.launch)
    precision = way.variables.get("ACCELERATE_MIXED_PRECISION", "no")
    flag = "--mixed_precision"
    for typed in (workload.argument(flag), launch.option(flag) if launch else None):
        if typed is not None and typed.lower() not in ("", precision):
            yield flag, typed, precision
    if launch and launch.option("--ipex") is not None and planned.get("--use_ipex") == "False":
        yield "--ipex", "", "False"


def _set_by(way: Carried) -> Iterator[tuple[str, str]]:
    """The flags of a plan with their values, also if code sets them."""
    for at, flag in enumerate(way.flags):
        following = "--"
        if at + 1 < len(way.flags):
            following = way.flags[at + 1]
        if flag.startswith("--"):
            yield flag, "True" if following.startswith("--") else following
    if way.force is not None:
        for name, value in way.force.arguments.items():
            yield f"--{name}", str(value)
