"""Why a job ended too early. Pure.

``cputune/text/failure_log.py`` reads what the ranks wrote, ``cputune/doctor/symptoms.py`` explains
it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cputune.inside.messages import OF_LAUNCHERS, Raised
from cputune.ranks.supervisor_main import Exit
from cputune.records.steps import Crashed, Infeasible, NoMeasurement, OutOfMemory, TrialError
from cputune.text.failure_log import Failure, read_failures
from cputune.text.plain import count

if TYPE_CHECKING:
    from cputune.doctor.symptoms import Explanation

_AT_ONCE = " before its first step"
_TAIL_LINES = 40  # of an output, in which an error is looked for
# Known errors that mean that memory was short.
_NO_MEMORY = frozenset({"cannot-allocate", "killed", "killed-in-pod", "killed-in-step"})


def failure(
    exits: Sequence[Exit],
    errors: Sequence[Raised],
    *,
    memory_kills: int | None,
    steps: int,
    script: str,
    versions: Mapping[str, str] | None = None,
) -> TrialError:
    """Why a job ended too early, and the fix of a known error.

    Args:
        exits: of the ranks that have ended, in order.
        errors: what their scripts raised.
        memory_kills: how often the kernel killed for memory since the trial began; None if that
            is not known.
        steps: how many steps there were before.
        script: its file name.
        versions: of the packages with which it trains.
    """
    # A rank that died of a signal is the cause: the exceptions of the others follow from it.
    first = max(exits, key=lambda rank: (_signal(rank) > 0, rank["status"] != 0), default=None)
    number, tail = 0, None
    if first is not None:
        number = _signal(first)
        tail = "\n".join(first["tail"].strip().splitlines()[-_TAIL_LINES:]) or None
    after = f" after {steps} steps" if steps else _AT_ONCE
    raised = (
        None if number else next((error for error in errors if not _only_a_status(error)), None)
    )
    explained = _explained(first, raised, number, versions or {})
    if number == signal.SIGKILL:
        error = _killed(memory_kills, after, tail)
    elif explained is not None and explained.symptom.name in _NO_MEMORY:
        title = explained.failure.title
        error = OutOfMemory(f"a rank could not have memory{after}: {title[:200]}", details=tail)
    elif number in _SIGNALS or (first is not None and first["status"] < 0):
        error = Crashed(
            f"a rank died{after} of {signal_name(number)}{_SIGNALS.get(number, '')}", details=tail
        )
    elif raised is not None:
        error = _of_exception(raised, after, script, tail)
    elif first is None and errors:  # torch takes long to end
        error = Crashed(f"{script} ended{after} with {errors[0]['text']}")
    elif first is None or first["status"] == 0:
        return NoMeasurement(f"{script} ended{after}", details=tail)
    else:
        error = _of_output(first, after, script, tail)
    if explained is not None and explained.is_known and not explained.symptom.goes_on:
        symptom = explained.symptom
        error.args = (f"{error}. {symptom.as_text.replace('SCRIPT', script)}",)
        error.hopeless |= symptom.hopeless and not steps
    return error


def _explained(
    first: Exit | None, raised: Raised | None, number: int, versions: Mapping[str, str]
) -> Explanation | None:
    """What explains the end: the exception that a rank has reported, the tail, or the signal."""
    # Tables that most trials never read.
    from cputune.doctor.symptoms import explain, explain_failure

    if raised is not None:
        text = str(raised.get("text", ""))
        one = Failure(kind="exception", line=1, text=text, name=str(raised["kind"]), message=text)
        return explain_failure(one, versions)
    explained = None
    if first is not None and first["status"]:
        explained = explain(first["tail"], versions)
    if number and (explained is None or not explained.is_known):
        return explain(signal_name(number)) or explained
    return explained


def _only_a_status(error: Raised) -> bool:
    text = str(error.get("text", "")).strip()
    return error.get("kind") == "SystemExit" and (not text or text.startswith("exit status "))


def _killed(memory_kills: int | None, after: str, tail: str | None) -> TrialError:
    """SIGKILL: the kernel has killed for memory, or somebody from outside."""
    if memory_kills == 0:
        return Crashed(f"a rank was killed from outside{after} (SIGKILL)", details=tail)
    return OutOfMemory(f"a rank was killed for memory{after} (SIGKILL)", details=tail)


def _of_exception(error: Raised, after: str, script: str, tail: str | None) -> TrialError:
    kind, text = str(error.get("kind")), str(error.get("text", ""))
    line = text.strip().splitlines()[0][:200] if text.strip() else ""
    if kind == "SystemExit":
        ended = f"ended{after}: {line}"
    elif line:
        ended = f"failed{after}: {kind}: {line}"
    else:
        ended = f"failed{after}: {kind}"
    return Crashed(
        f"{script} {ended}", details=tail, hopeless=kind in _OF_SCRIPTS and after == _AT_ONCE
    )


def _of_output(first: Exit, after: str, script: str, tail: str | None) -> TrialError:
    """A rank that ended with a status: what it wrote last."""
    usage = _USAGE.search(tail or "")
    if usage and first["status"] == USAGE_STATUS and after == _AT_ONCE:
        reason = f"{script} was not given the arguments that it takes: {usage[1].strip()[:200]}"
        return Crashed(reason, details=tail, hopeless=True)
    raised = last_words(first["tail"])
    if raised["kind"]:
        return _of_exception(raised, after, script, tail)
    ended = f"{script} ended{after} with exit status {first['status']}"
    if raised["text"]:
        ended = f"{ended}: {raised['text']}"
    return Crashed(ended, details=tail)


# The exit status of argparse and click for arguments that a command does not take.
USAGE_STATUS = 2

_USAGE = re.compile(r"^usage: (?:.*\n)*?(?:\S+: )?error: (.+)", re.IGNORECASE | re.MULTILINE)

# Exceptions that every plan meets, if the current launch has raised them before its first step.
# A ValueError, a KeyError or a RuntimeError may depend on the number of ranks.
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

# A shell reports signals as exit status 128 + number.
_SIGNALS = {
    int(signal.SIGILL): ": an instruction that this processor does not have (a wheel for another "
    "one, or a virtual machine that hides it); cputune doctor --deep tells which",
    int(signal.SIGBUS): ": /dev/shm is full or too small, or a file that it had mapped was cut",
}


def last_words(tail: str) -> Raised:
    """The exception that ended a script; else its last line, with no kind.

    The output of the script's launcher is left out, and so are Open MPI's lines of dashes.
    """
    log = read_failures(tail)
    decisive = log.decisive
    if decisive is not None and decisive.kind == "exception":
        return {"event": "error", "kind": decisive.type_name, "text": decisive.message}
    lines: list[str] = []
    began = 0
    for line in map(str.strip, tail.splitlines()):
        if line.endswith("Traceback (most recent call last):"):
            began = len(lines)
        if line.partition(":")[0].rpartition(".")[2] in OF_LAUNCHERS:
            del lines[began:]
            break  # from here on the launcher writes
        if line.strip("-=*") and not re.match(r"[EWI]\d{4} ", line):
            lines.append(line)
    return {"event": "error", "kind": "", "text": lines[-1][:200] if lines else ""}


def early_end(used: Sequence[str], script: str, steps: int) -> TrialError:
    """A script that ended well, but too soon to be measured.

    ``used`` names what it makes: "Trainer", "Accelerator"; empty if none of these was seen.
    """
    if steps:
        return NoMeasurement(
            f"{script} ended by itself after {count(steps, 'step')}: too few "
            "to measure; let it train longer (more epochs, more data, a larger --max_steps)"
        )
    if not used:
        return Infeasible(
            f"no Trainer, no Accelerator and no step of an optimizer was seen in {script}: "
            "nothing trains there that could be measured",
            hopeless=True,
        )
    made = "a Trainer" if "Trainer" in used else "an Accelerator"
    return NoMeasurement(
        f"{script} made {made} and ended without one training step: is --do_train missing, or its "
        "training loop not reached?"
    )


def _signal(ended: Exit) -> int:
    """The signal of which a process died, also as 128 + number from a shell; else 0."""
    status = ended["status"]
    return -status if status < 0 else max(0, status - 128)


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
