"""A typed launch, rehearsed: child processes run its script up to its data and first step.

``looks/rehearse.py`` says what such a run does and leaves out. Failures are reported in the words
of the installed libraries, also for versions that no table knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cputune.doctor.deep import messages_of, run_look
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.host import Completed, Host
from cputune.launch.launch import Launch
from cputune.text.hidden import without_secrets
from cputune.text.log import log

_LOG = log.getChild("rehearsal")

SECONDS = 25
"""Time limit for the ranks; with start and end a rehearsal takes at most 30 seconds."""
MOST_RANKS = 2
"""Ranks that are started: what fails between many fails between two, and each loads torch."""

_NUMBERING = ("torchrun", "deepspeed")
"""Launchers that number a single rank too."""
_BY_ACCELERATE = {
    "--mixed_precision": "ACCELERATE_MIXED_PRECISION",
    "--dynamo_backend": "ACCELERATE_DYNAMO_BACKEND",
    "--gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
}
"""Options of accelerate launch that its ranks get as variables."""


def rehearsed(launch: Launch, host: Host) -> Iterator[Finding]:
    """What fails when this launch is rehearsed; empty if it reaches its first step."""
    asked = {
        "script": str(launch.script),
        "module": launch.module,
        "arguments": [str(word) for word in launch.arguments],
        "ranks": min(launch.ranks or 1, MOST_RANKS),
        "numbered": launch.launcher in _NUMBERING,
        "seconds": SECONDS,
        "offline": "HF_HUB_OFFLINE" in {**host.environment(), **launch.environment},
    }
    variables = {**_of_accelerate(launch), **launch.environment}
    done = run_look(host, "rehearse.py", json.dumps(asked), **variables)
    shown = {**host.environment(), **launch.environment}
    seen = set[str]()
    for message in messages_of(done):
        finding = _found(message, done, shown)
        if finding is None:
            _LOG.info("rehearsed: %s", message)
        elif finding.evidence.partition(": ")[2] not in seen:
            seen.add(finding.evidence.partition(": ")[2])  # of two ranks the same is said once
            yield finding


def _of_accelerate(launch: Launch) -> dict[str, str]:
    if launch.launcher != "accelerate":
        return {}
    found = {}
    for option, name in _BY_ACCELERATE.items():
        value = launch.option(option)
        if value:
            found[name] = value
    if launch.option("--cpu") is not None or launch.option("--use_cpu") is not None:
        found["ACCELERATE_USE_CPU"] = "true"
    return found


def _found(
    message: Mapping[str, Any], done: Completed, variables: Mapping[str, str]
) -> Finding | None:
    """The finding for a message of a rank; None if it reports no fault."""
    rank = f"rank {message.get('rank', 0)}"
    if "error" in message:
        where = f" ({message['where']})" if message["where"] else ""
        said = without_secrets(f"{message['error']}: {message['said']}", variables)
        severity = Severity.WARNING if "tiny" in message["during"] else None
        during = f", at {message['during']}"
        return rehearsal_fails.finding(f"{rank}: {said}{where}{during}", severity=severity)
    if "exit" in message:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        usage = [line for line in lines if re.search(r"\berror: ", line)]
        last = usage[-1:] or lines[-1:]
        said = without_secrets(f"it ends with {message['exit']}: {''.join(last)[:300]}", variables)
        return rehearsal_fails.finding(f"{rank}: {said}")
    if "signal" in message:
        return rehearsal_fails.finding(f"{rank}: it was ended by signal {message['signal']}")
    if "late" in message:
        stands = re.search(r'File "([^"]+)", line (\d+) in (\S+)', done.stderr)
        place = f"; it is at {stands[1]}:{stands[2]} ({stands[3]})" if stands else ""
        return rehearsal_late.finding(f"{rank}: {SECONDS} seconds were not enough{place}")
    return None


@fault("rehearsal-fails", Severity.ERROR, under=("launch-import",))
def rehearsal_fails() -> None:
    """This launch fails before its first step

    Symptom: the error in the evidence, after the imports, or after an hour of preparing data.

    Cause: the script ran in child processes as each rank would (at most two), with its arguments
    and variables, without downloads and without writing, up to its data and first step. Then a tiny
    model trained one step with its TrainingArguments or Accelerator. The message is that of the
    library that refused.

    Remedy: Correct what the evidence names; if two libraries disagree, `cputune doctor --stack
    installed` names versions that fit.

    Source: https://huggingface.co/docs/transformers/main_classes/trainer
    """


@fault("rehearsal-late", Severity.ADVICE)
def rehearsal_late() -> None:
    """The rehearsal of this launch did not end in time

    Symptom: none, if the script prepares something for a long time before it trains.

    Cause: the script did not reach its data or its first step in time. Ranks that wait for each
    other are in init_process_group or in a collective.

    Remedy: If it waits where ranks meet, check MASTER_ADDR, RANK and WORLD_SIZE of this shell.

    Source:
    https://pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """


CHECKS = checks_of(__name__)
