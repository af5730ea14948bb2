"""A typed launch, rehearsed: its launcher starts ranks that end at once, and then child processes
run its script up to its data and first step.

``looks/launched.py`` starts the launcher; ``looks/rehearse.py`` says what a run of the script
leaves out. Failures are reported in the words of the installed programs, also for versions that no
table knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cputune.doctor.deep import messages_of, run_look
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.host import Completed, Host
from cputune.host.facts import HostFacts
from cputune.launch.launch import CONFINERS, Launch
from cputune.launch.located_words import without_options
from cputune.plans.knobs.precision import native_precisions
from cputune.plans.script_settings import named, settings_of
from cputune.text.failure_log import Failure, Frame
from cputune.text.hidden import without_secrets
from cputune.text.log import log

_LOG = log.getChild("rehearsal")

# Time limit for the ranks; with start and end a rehearsal takes at most 30 seconds.
SECONDS = 25
# What fails between many fails between two, and each loads torch.
MOST_RANKS = 2

# Launchers that are started with ranks that end at once.
_STARTED = ("torchrun", "accelerate", "deepspeed", "mpirun")
LAUNCHER_SECONDS = 20  # a launcher imports torch first
# Options that write files.
_LOGS = frozenset({"--log_dir", "--redirects", "--tee", "--output_filename"})

# What a rehearsal does not do, so it stops there.
_OUTSIDE = ("a file: ", "another program", "the network: ")

# Launchers that number a single rank too.
_NUMBERING = ("torchrun", "deepspeed")
# Options of accelerate launch that its ranks get as variables.
_BY_ACCELERATE = {
    "--mixed_precision": "ACCELERATE_MIXED_PRECISION",
    "--dynamo_backend": "ACCELERATE_DYNAMO_BACKEND",
    "--gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
}


def rehearsed(launch: Launch, text: str, facts: HostFacts, host: Host) -> Iterator[Finding]:
    """What fails when this launch is rehearsed; empty if it reaches its first step."""
    task = {
        "script": str(launch.script),
        "module": launch.module,
        "arguments": [str(word) for word in launch.arguments],
        "ranks": min(launch.ranks or 1, MOST_RANKS),
        "numbered": launch.launcher in _NUMBERING,
        "seconds": SECONDS,
        "offline": "HF_HUB_OFFLINE" in {**host.environment(), **launch.environment},
    }
    variables = {**_of_accelerate(launch), **launch.environment}
    done = run_look(host, "rehearse.py", json.dumps(task), **variables)
    shown = {**host.environment(), **launch.environment}
    reported = set[str]()
    for message in messages_of(done):
        if "half" in message:
            finding: Finding | None = _half(message, launch, text, facts)
        else:
            finding = _finding_of(message, done, shown, facts.installed_versions)
        if finding is None:
            _LOG.info("rehearsed: %s", message)
        elif finding.evidence.partition(": ")[2] not in reported:
            reported.add(finding.evidence.partition(": ")[2])  # of two ranks the same is said once
            yield finding


def launcher_starts(launch: Launch, host: Host) -> Iterator[Finding]:
    """What fails when the launcher is started as typed; empty if its ranks start and end."""
    words = _words_of_launcher(launch)
    if words is None or host.which(words[0]) is None:
        return
    variables = {**host.environment(), **launch.environment}
    task = json.dumps({"words": words, "seconds": LAUNCHER_SECONDS})
    done = run_look(host, "launched.py", task, **variables)
    for message in messages_of(done):
        code, output = message["code"], without_secrets(message["output"], variables)
        if code is None:
            text = f"{launch.program} did not start ranks in {LAUNCHER_SECONDS} seconds"
            yield rehearsal_late.finding(text)
        elif code != 0:
            yield _launcher_failed(launch, code, output)


def _words_of_launcher(launch: Launch) -> list[str] | None:
    """The words before the script; None if the launch cannot be tried on this machine alone."""
    several = launch.machines > 1 or bool(launch.hosts) or launch.host_file is not None
    if launch.launcher not in _STARTED or several or launch.part or launch.inner is not None:
        return None
    if launch.option("--no_python") is not None:
        return None
    wrappers = [str(word) for word in launch.before]
    while wrappers and re.match(r"[A-Za-z_]\w*=", wrappers[0]):
        del wrappers[0]  # it is in the environment of the launch
    if wrappers and wrappers[0].rpartition("/")[2] not in CONFINERS:
        return None
    at = len(launch.words) - len(launch.arguments) - 1
    if at < 0 or launch.words[at] != launch.script:
        return None
    words = [str(word) for word in launch.words[len(launch.before) : at]]
    if launch.module:
        for name in ("-m", "--module"):
            if name in words[1:] and words[-1] == name:
                del words[-1]
    return wrappers + list(without_options(words, _LOGS))


def _launcher_failed(launch: Launch, code: int, output: str) -> Finding:
    """The finding with the line that decides, and with the fix of ``--symptom`` if it is known."""
    from cputune.doctor.symptoms import explain

    lines = [line.strip() for line in output.splitlines() if line.strip()]
    problem = "".join(lines[-1:])
    explanation = explain(output)
    if explanation is not None and explanation.failure.kind not in ("launcher", "exit"):
        problem = explanation.failure.title
    finding = launcher_fails.finding(f"{launch.program} ended with {code}: {problem[:300]}")
    if explanation is None or not explanation.is_known or explanation.symptom.goes_on:
        return finding
    symptom = explanation.symptom
    return replace(
        finding,
        remedy=f"{symptom.title}: {symptom.fix}.",
        command=symptom.command,
        source=symptom.source,
    )


@fault("launcher-fails", Severity.ERROR)
def launcher_fails() -> None:
    """The launcher fails before its ranks start

    Symptom: the error in the evidence, before the first line of the script.

    Cause: the launcher was started here with the words before the script, and in its place with
    ranks that end at once.

    Remedy: Correct the option that the evidence names.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """


def _of_accelerate(launch: Launch) -> dict[str, str]:
    if launch.launcher != "accelerate":
        return {}
    variables = {}
    for option, name in _BY_ACCELERATE.items():
        value = launch.option(option)
        if value:
            variables[name] = value
    if launch.option("--cpu") is not None or launch.option("--use_cpu") is not None:
        variables["ACCELERATE_USE_CPU"] = "true"
    return variables


def _finding_of(
    message: Mapping[str, Any],
    done: Completed,
    variables: Mapping[str, str],
    versions: Mapping[str, str],
) -> Finding | None:
    """The finding for a message of a rank; None if it reports no fault."""
    rank = f"rank {message.get('rank', 0)}"
    if "error" in message:
        where = ""
        if message["where"]:
            where = f" ({message['where']})"
        problem = without_secrets(f"{message['error']}: {message['said']}", variables)
        severity = None
        if "tiny" in message["during"]:
            severity = Severity.WARNING
        during = f", at {message['during']}"
        evidence = f"{rank}: {problem}{where}{during}"
        return _explained(message, rehearsal_fails.finding(evidence, severity=severity), versions)
    if "exit" in message:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        usage = [line for line in lines if re.search(r"\berror: ", line)]
        last = usage[-1:] or lines[-1:]
        problem = without_secrets(
            f"it ends with {message['exit']}: {''.join(last)[:300]}", variables
        )
        return rehearsal_fails.finding(f"{rank}: {problem}")
    if "signal" in message:
        return rehearsal_fails.finding(f"{rank}: it was ended by signal {message['signal']}")
    if "forked" in message:
        return fork_after_threads.finding(
            f"{rank}: {message['where']} starts processes by fork after torch has started threads; "
            "in one that was forked there a tensor operation did not end"
        )
    if str(message.get("stopped", "")).startswith(_OUTSIDE):
        what = without_secrets(str(message["stopped"]), variables)
        return rehearsal_stopped.finding(f"{rank}: it was stopped before {what}")
    if "late" in message:
        stands = re.search(r'File "([^"]+)", line (\d+) in (\S+)', done.stderr)
        place = ""
        if stands:
            place = f"; it is at {stands[1]}:{stands[2]} ({stands[3]})"
        return rehearsal_late.finding(f"{rank}: {SECONDS} seconds were not enough{place}")
    return None


def _explained(
    message: Mapping[str, Any], finding: Finding, versions: Mapping[str, str]
) -> Finding:
    """The finding with the fix that ``--symptom`` has for this error, if it is known."""
    from cputune.doctor.symptoms import explain_failure

    file, _, line = str(message["where"]).rpartition(":")
    frames: tuple[Frame, ...] = ()
    if line.isdigit():
        frames = (Frame(file=file, line=int(line)),)
    failure = Failure(
        kind="exception",
        line=1,
        text=f"{message['error']}: {message['said']}",
        name=str(message["error"]),
        message=str(message["said"]),
        frames=frames,
    )
    explanation = explain_failure(failure, versions)
    symptom = explanation.symptom
    if not explanation.is_known or symptom.goes_on:
        return finding
    return replace(
        finding,
        remedy=f"{symptom.title}: {symptom.fix}.",
        command=symptom.command,
        source=symptom.source,
    )


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


def _half(message: Mapping[str, Any], launch: Launch, text: str, facts: HostFacts) -> Finding:
    """The finding of weights of 16 bits: slow without the instructions, and rounded with them."""
    name = message["half"]
    lines = []
    for each in settings_of(text):
        if each.kind == "weights":
            lines.append(named(each, launch.script))
    by = ", ".join(lines) or "by the dtype of its checkpoint (transformers 5 keeps it)"
    native = {"bfloat16": "bf16", "float16": "fp16"}[name] in native_precisions(facts)
    speed = "it emulates them, and computes slower"
    if native:
        speed = "it has the instructions"
    evidence = f"the weights that are trained are {name}, {by}; this CPU: {speed}"
    return weights_half.finding(f"rank {message.get('rank', 0)}: {evidence}")


@fault("weights-half", Severity.WARNING)
def weights_half() -> None:
    """The weights that are trained have 16 bits

    Symptom: the loss stays where it is, or training is 10 to 30 times slower since transformers 5.

    Cause: the model was loaded or cast to bfloat16 or float16, and the optimizer steps on these
    weights. An update that is smaller than 1/512 of a weight (bfloat16) is rounded away. A CPU
    without the instructions emulates each operation. The type was read from the model that the
    script gave to its Trainer, or from the parameters of its optimizer, when it was rehearsed.

    Remedy: Load in float32 (`from_pretrained(…, dtype=torch.float32)`) and let the Trainer
    compute in bfloat16: --bf16. It is another training than today's.

    Source: huggingface/transformers#34692, huggingface/sentence-transformers#3773
    """


@fault("fork-after-threads", Severity.WARNING)
def fork_after_threads() -> None:
    """Processes are forked after threads were started

    Symptom: `Dataset.map(num_proc=8)` or a Pool stops without a word, and no CPU is used.

    Cause: a forked process has none of the threads of its parent, and the OpenMP pool of torch that
    it has inherited still counts on them. Its first large tensor operation waits for ever. The
    script was rehearsed up to that line, and such an operation was tried in a forked process.

    Remedy: Start the processes before torch computes, use
    `multiprocessing.get_context("spawn")`, or call `torch.set_num_threads(1)` in what they run.

    Source: pytorch/pytorch#41197, huggingface/datasets#5094
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


@fault("rehearsal-stopped", Severity.ADVICE)
def rehearsal_stopped() -> None:
    """The rehearsal ended as the script wrote a file, connected or started a program

    Symptom: none: what comes before was tried, and what follows was not.

    Cause: a rehearsal changes nothing on this machine, so it stops before the script writes its
    first file, starts another program or connects to another host. The script does so before its
    first step.

    Remedy: Nothing has to be done. Write files after the first step, or below a temporary folder,
    and all of it is tried.

    Source: https://docs.python.org/3/library/tempfile.html
    """


CHECKS = checks_of(__name__)
