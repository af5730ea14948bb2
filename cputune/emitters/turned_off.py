"""What the user typed and a plan turns off, with the reason if the machine has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from cputune.doctor.files.arguments import asks_for_tf32
from cputune.doctor.files.context import Context
from cputune.doctor.files.judge import faulty_words
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.host.facts import HostFacts
from cputune.launch.launch import launch_of
from cputune.plans.delivery.delivery import Delivery
from cputune.plans.knobs.backend import BACKEND
from cputune.plans.knobs.kernels import IPEX
from cputune.plans.knobs.precision import PRECISION
from cputune.plans.knobs.record import Ask
from cputune.plans.workload import Workload
from cputune.stack.uses import Fate, Word

OFF_HERE = " off here"

IN_FP32 = "in fp32"
# What the plan trains with, by a flag and the value that it has; the empty one is of all others.
# Of fp16 the flag of bf16 says it.
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

# Flags that say the same batch, divided over other ranks: nothing is off.
OF_BATCH = ("--per_device_train_batch_size", "--gradient_accumulation_steps")

OF_CPU = ("--no_cuda", "--use_cpu")
# Flags of which a plan has the spelling that the target accepts.
OF_BACKEND = ("--ddp_backend", "--xpu_backend")

# The value of a knob that a flag asks for.
KNOB_OF = {
    "--bf16": "precision=bf16",
    "--fp16": "precision=fp16",
    "--use_ipex": "ipex=yes",
    "--ipex": "ipex=yes",
    "--ddp_backend": "backend={}",
    "--mixed_precision": "precision={}",
}


def _reasons(facts: HostFacts, workload: Workload) -> dict[str, str]:
    """Why this machine does not have the values of knobs that flags ask for."""
    ask = Ask(workload=workload)
    reasons = {}
    for knob in (PRECISION, BACKEND, IPEX):
        for out in knob.choices(facts, ask).left_out:
            reasons[out.what] = out.why
    return reasons


def turned_off(
    workload: Workload,
    delivery: Delivery,
    target: HostFacts,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """What was typed and has no effect, and why: the plan sets something else, or it is left out.

    The first note has room in a header. ``target`` is the machine that runs the launch, and
    ``refused`` is of ``refused_unneeded``.
    """
    notes, changed = _set_otherwise(workload, delivery, target)
    for flag, reason in refused.items():
        if flag not in changed:
            shown = _shown(flag, workload.argument(flag) or "")
            notes.append(f"your {shown} is{OFF_HERE}: {reason}")
    return notes


def _set_otherwise(
    workload: Workload, delivery: Delivery, target: HostFacts
) -> tuple[list[str], set[str]]:
    """The notes about flags that the plan sets to something else, and those flags."""
    off: dict[str, None] = {}
    trains: dict[str, None] = {}
    wanted: list[str] = []
    changed: set[str] = set()
    for flag, typed, value in _changed(workload, delivery):
        changed.add(flag)
        meant = MEANT.get(flag, {"": f"with {flag} {{}}"})
        off[_shown(flag, typed)] = None
        trains[meant.get(value.lower(), meant[""]).format(value) or IN_FP32] = None
        wanted.append(KNOB_OF.get(flag, "").format(typed))
    if not off:
        return [], changed
    reasons = _reasons(target, workload)
    because = dict.fromkeys(reasons[value] for value in wanted if value in reasons)
    verb = "is" if len(off) == 1 else "are"
    notes = [f"your {_listed(off)} {verb}{OFF_HERE}: the plan trains {_listed(trains)}"]
    if because:
        notes.append(f"that is{OFF_HERE} because {'; '.join(because)}")
    return notes, changed


def _shown(flag: str, typed: str) -> str:
    if typed.lower() in ("", "true"):
        return flag
    return f"{flag} {typed}"


def refused_unneeded(workload: Workload, delivery: Delivery, context: Context) -> dict[str, str]:
    """Flags that the target refuses and this training does not need, each with the reason.

    A word whose absence would change the run (``--evaluation_strategy``) is not one of them.
    """
    typed_launch = launch_of(("python", *workload.argv))
    if typed_launch is None:
        return {}
    launch = JudgedLaunch.of(typed_launch, context)
    refused: dict[str, str] = {}
    for word, reader in faulty_words(launch):
        reason = _why_unneeded(word, delivery)
        if reader == "trainer" and word.state is Fate.REFUSED and reason is not None:
            reasons = (f"{word.reader} refuses it", reason)
            refused[word.spelling.partition(" ")[0]] = "; ".join(filter(None, reasons))
    planned = dict(_set_by(delivery))
    for flag in OF_BACKEND:
        typed = launch.argument(flag)
        if typed is None or not launch.is_trainers(flag):
            continue
        if delivery.world_size == 1:
            refused[flag] = "one process needs no backend"
        elif context.versions.transformers is None and planned.get(flag, typed) != typed:
            # argparse refuses a value that it does not know, also before one that replaces it.
            refused[flag] = f"the plan has {planned[flag]}"
    if asks_for_tf32(launch):
        refused["--tf32"] = "it needs a GPU"
    return refused


def _why_unneeded(word: Word, delivery: Delivery) -> str | None:
    """Why a training is the same without a word that is refused; None if it may be another."""
    if word.spelling == "--use_ipex" and word.instead is None:
        return word.reason
    if word.needless is not None:
        return word.needless
    planned = (word.instead or "").partition(",")[0].partition(" ")[0]
    flag = word.spelling.partition(" ")[0]
    if flag in (*OF_CPU, *OF_BACKEND) and planned in dict(_set_by(delivery)):
        return f"{planned} says the same"
    return None


def _listed(phrases: Mapping[str, None]) -> str:
    *others, last = phrases
    if not others:
        return last
    return f"{', '.join(others)} and {last}"


def _changed(workload: Workload, delivery: Delivery) -> Iterator[tuple[str, str, str]]:
    """Flags that were typed, with their value and that of the plan, if it is another."""
    planned = dict(_set_by(delivery))
    for flag, value in planned.items():
        typed = workload.argument(flag)
        if typed is None or flag in OF_BATCH:
            continue
        if (typed or "true").lower() != value.lower():
            yield flag, typed, value
    # Those of another name: of a script of its own, and of the launcher.
    launch = launch_of(workload.launch)
    precision = delivery.variables.get("ACCELERATE_MIXED_PRECISION", "no")
    flag = "--mixed_precision"
    for typed in (workload.argument(flag), launch.option(flag) if launch else None):
        if typed is not None and typed.lower() not in ("", precision):
            yield flag, typed, precision
    if launch and launch.option("--ipex") is not None and planned.get("--use_ipex") == "False":
        yield "--ipex", "", "False"


def _set_by(delivery: Delivery) -> Iterator[tuple[str, str]]:
    """The flags of a plan with their values, also if code sets them."""
    for at, flag in enumerate(delivery.flags):
        following = "--"
        if at + 1 < len(delivery.flags):
            following = delivery.flags[at + 1]
        if flag.startswith("--"):
            yield flag, "True" if following.startswith("--") else following
    if delivery.force is not None:
        for name, value in delivery.force.arguments.items():
            if value is not None:
                yield f"--{name}", str(value)
