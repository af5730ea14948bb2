"""Why a job is over before its time. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from cputune.inside.messages import OF_LAUNCHERS, Raised
from cputune.ranks.supervisor_main import Exit
from cputune.records.steps import Crashed, Infeasible, NoMeasurement, OutOfMemory, TrialError
from cputune.text.plain import count

_AT_ONCE = " before its first step"
_NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|Cannot allocate memory|std::bad_alloc|MemoryError"
)


def failure(
    exits: Sequence[Exit],
    errors: Sequence[Raised],
    *,
    memory_kills: int | None,
    steps: int,
    script: str,
) -> TrialError:
    """Why a job is over before its time, and the cure of an error that is known.

    Args:
        exits: of the ranks that have ended, the first first.
        errors: what their scripts raised.
        memory_kills: how often the kernel killed for memory since the trial began;
            None where that cannot be known.
        steps: how many steps there were before.
        script: its file name.
    """
    from cputune.doctor.symptoms import cause_of  # a table that most trials never read

    found = _failure(exits, errors, memory_kills=memory_kills, steps=steps, script=script)
    known = cause_of(str(found)) or cause_of(found.details or "")
    if known is not None:
        found.args = (f"{found}. {known.in_words}",)
        found.hopeless |= known.hopeless and not steps
    return found


def _failure(
    exits: Sequence[Exit],
    errors: Sequence[Raised],
    *,
    memory_kills: int | None,
    steps: int,
    script: str,
) -> TrialError:
    # A rank that died of a signal is the cause: the exceptions of the others follow from it.
    first = max(exits, key=lambda rank: (_signal(rank) > 0, rank["status"] != 0), default=None)
    number = 0 if first is None else _signal(first)
    tail = None if first is None else "\n".join(first["tail"].strip().splitlines()[-40:]) or None
    after = f" after {steps} steps" if steps else _AT_ONCE
    for error in () if number else errors:
        if (raised := _raised(error, after, script, tail)) is not None:
            return raised
    if first is None and errors:  # torch takes long to end
        return Crashed(f"{script} ended{after} with {errors[0]['text']}")
    if first is None or first["status"] == 0:
        return NoMeasurement(f"{script} ended{after}", details=tail)
    died = _of_a_signal(first["status"], number, memory_kills, after, tail)
    if died is not None:
        return died
    if (asked := _USAGE.search(tail or "")) and first["status"] == USAGE_STATUS and not steps:
        reason = f"{script} was not given the arguments that it takes: {asked[1].strip()[:200]}"
        return Crashed(reason, details=tail, hopeless=True)
    words = last_words(tail or "")
    if (raised := _raised(words, after, script, tail)) is not None:
        return raised
    ended = f"{script} ended{after} with exit status {first['status']}"
    return Crashed(f"{ended}: {words['text']}" if words["text"] else ended, details=tail)


def _of_a_signal(
    status: int, number: int, memory_kills: int | None, after: str, tail: str | None
) -> TrialError | None:
    """Of a rank that died of a signal, or had no memory; None where it did not."""
    if number == signal.SIGKILL:
        if memory_kills == 0:
            return Crashed(f"a rank was killed from outside{after} (SIGKILL)", details=tail)
        return OutOfMemory(f"a rank was killed for memory{after} (SIGKILL)", details=tail)
    if tail and _NO_MEMORY.search(tail):
        return OutOfMemory(f"a rank could not have memory{after}", details=tail)
    if status < 0 or number in _SIGNALS:
        why = _SIGNALS.get(number, "")
        return Crashed(f"a rank died{after} of {signal_name(number)}{why}", details=tail)
    return None


USAGE_STATUS = 2
"""Of argparse and click, where the words of a command are not what they take."""

_USAGE = re.compile(r"^usage: (?:.*\n)*?(?:\S+: )?error: (.+)", re.IGNORECASE | re.MULTILINE)

_OF_SCRIPTS = frozenset(
    {
        "AttributeError",
        "FileNotFoundError",
        "IndentationError",
        "IsADirectoryError",
        "ModuleNotFoundError",
        "NameError",
        "NotADirectoryError",
        "PermissionError",
        "SyntaxError",
        "TypeError",
        "UnboundLocalError",
        "ZeroDivisionError",
    }
)
"""Exceptions that no other plan takes from a script whose launch as typed has raised them before
its first step. A ValueError, a KeyError or a RuntimeError may follow from the number of ranks."""

_SIGNALS = {
    int(signal.SIGILL): ": an instruction that this processor does not have (a wheel for another "
    "one, or a virtual machine that hides it); cputune doctor --deep tells which",
    int(signal.SIGBUS): ": /dev/shm is full or too small, or a file that it had mapped was cut",
}
"""The meaning of signals; a shell reports them as exit status 128 + number."""

_EXCEPTION = re.compile(
    r"(?:\[rank\d+\]:\s*)?(?:\w+\.)*(\w*(?:Error|Exception|Exit|Interrupt))(?::(?: (.*))?)?"
)


def last_words(tail: str) -> Raised:
    """The last exception that a script wrote; else its last line, with no kind.

    What the launcher of the script wrote is left out, and so are the rules of dashes by which Open
    MPI frames what it says.
    """
    lines: list[str] = []
    raised: Raised | None = None
    began = 0
    for line in map(str.strip, tail.splitlines()):
        if re.fullmatch(r"(?:\[rank\d+\]:\s*)?Traceback \(most recent call last\):", line):
            began = len(lines)
        found = _EXCEPTION.fullmatch(line)
        if found and found[1] in OF_LAUNCHERS:
            del lines[began:]
            break  # from here on the launcher writes
        if found:
            raised = {"event": "error", "kind": found[1], "text": found[2] or ""}
        if line.strip("-=*") and not re.match(r"[EWI]\d{4} ", line):
            lines.append(line)
    return raised or {"event": "error", "kind": "", "text": lines[-1][:200] if lines else ""}


def _raised(error: Raised, after: str, script: str, tail: str | None) -> TrialError | None:
    """The cause that an exception of the script shows; None where it shows none."""
    kind, text = str(error.get("kind")), str(error.get("text", ""))
    line = text.strip().splitlines()[0][:200] if text.strip() else ""
    if kind == "SystemExit" and (not line or line.startswith("exit status ")):
        return None
    if kind == "MemoryError" or _NO_MEMORY.search(text):
        reason = f"a rank could not have memory{after}: {line or kind}"
        return OutOfMemory(reason, details=tail)
    said = ": ".join(filter(None, (kind, line)))
    for pattern, why, hopeless in _CAUSES:
        if found := re.search(pattern, f"{kind}: {text}"):
            reason = f"{script} {why.format(*found.groups(), script=script)} ({said})"
            return Crashed(reason, details=tail, hopeless=hopeless)
    if not kind:
        return None
    ended = f"ended{after}: {line}" if kind == "SystemExit" else f"failed{after}: {said}"
    hopeless = kind in _OF_SCRIPTS and after == _AT_ONCE
    return Crashed(f"{script} {ended}", details=tail, hopeless=hopeless)


_CAUSES = (
    (
        r"name 'get_ipython' is not defined",
        "was exported from a notebook, and its magics (%matplotlib, !pip, %%time) run in Jupyter "
        "alone: take these lines out, sed -i.bak '/get_ipython()/d' {script}, and keep the code "
        "that stands in the line of a %%magic",
        True,
    ),
    (
        r"DeviceCodeError|LocalTokenNotFoundError|GatedRepoError|oauth/device|no token found"
        r"|(?i:gated repo|notebook_login|401 Client Error.*huggingface)",
        "logs in on the hub of Hugging Face, and a trial has nobody to answer: type `hf auth "
        "login` once, or export HF_TOKEN, and take login() out of the script",
        True,
    ),
    (
        r"not used by the HfArgumentParser: (\[.*\])",
        "was not given the arguments that it takes: it knows nothing of {0}",
        True,
    ),
    (r"EOF when reading a line", "asks for input, and a trial has nobody to answer", True),
    (
        r"relative import with no known parent package",
        "is part of a package: start it as a module, -m package.module",
        True,
    ),
    (
        r"(?i)deepspeed.* not (?:available|installed)|install.*deepspeed",
        "uses DeepSpeed, which divides a model over accelerators: leave it out",
        True,
    ),
)
"""Causes that lie in the script, how to remove them, and whether every plan meets them."""


def early_end(seen: Sequence[str], script: str, steps: int) -> TrialError:
    """A script that ended well, but too soon to be measured."""
    if steps:
        return NoMeasurement(
            f"{script} ended by itself after {count(steps, 'step')}: too few "
            "to measure; let it train longer (more epochs, more data, a larger --max_steps)"
        )
    if not seen:
        return Infeasible(
            f"no Trainer, no Accelerator and no step of an optimizer was seen in {script}: "
            "nothing trains there that could be measured",
            hopeless=True,
        )
    made = "a Trainer" if "Trainer" in seen else "an Accelerator"
    return NoMeasurement(
        f"{script} made {made} and ended without one training step: is --do_train missing, or its "
        "training loop not reached?"
    )


def _signal(ended: Exit) -> int:
    """The signal of which a process died, also where a shell reports it as 128 + number; else 0."""
    status = ended["status"]
    return -status if status < 0 else max(0, status - 128)


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
