"""Judging accelerate's configuration file by the accelerate that will read it.

Its keys are judged here; for the rest it is the launch that its values are the options of.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.files.judge import Context, judge_launches
from cputune.doctor.files.yaml_lines import Document
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.stack import ipex_use, load
from cputune.training_command import TrainingCommand, number_of

MARKS = ("compute_environment", "distributed_type", "mixed_precision", "num_processes", "use_cpu")
"""Keys by which an accelerate configuration is known."""

_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
_GPU = ("MULTI_GPU", "MULTI_NPU", "MULTI_XPU", "MULTI_MLU", "MULTI_MUSA", "XLA", "TPU")


@fault("file-key-unknown", Severity.ERROR)
def key_unknown() -> None:
    """accelerate refuses a key of this file

    Symptom: "ValueError: The config file at … had unknown keys".

    Cause: accelerate 0.23 and later refuse any top-level key that they do not know.
    ipex_config came with 0.19 and went with 1.13, mpirun_config came with 0.28.

    Remedy: Take the key out, or write the file with the accelerate that will read it.

    Source: huggingface/accelerate#3883, huggingface/peft#3564
    """


@fault("file-key-ignored", Severity.WARNING)
def key_ignored() -> None:
    """accelerate ignores a key of this file

    Symptom: mpirun_ccl or ipex is set, and nothing changes.

    Cause: accelerate 1.13 dropped oneCCL and IPEX; mpirun_config.mpirun_ccl is read no
    more, without a message. ipex_config.ipex does nothing where IPEX cannot be used.

    Remedy: Take it out: it has no effect.

    Source: huggingface/accelerate#3883
    """


@fault("file-value", Severity.ERROR)
def value_wrong() -> None:
    """A value of this file is wrong

    Symptom: accelerate launch ends with a TypeError, a ValueError or an assertion.

    Cause: num_processes and num_machines are whole numbers, and num_processes counts the
    ranks of all machines. Several machines need main_process_ip and main_process_port.

    Remedy: Correct the value as the evidence says.

    Source: https://huggingface.co/docs/accelerate/package_reference/cli
    """


@fault("file-no-gpu", Severity.ERROR)
def no_gpu() -> None:
    """This file asks for GPUs on a machine without one

    Symptom: accelerate launch ends with an error about devices.

    Cause: the file was written on another machine.

    Remedy: Write distributed_type: MULTI_CPU for several ranks, 'NO' for one, and use_cpu: true.

    Source: https://huggingface.co/docs/accelerate/package_reference/cli
    """


@fault("file-unreadable", Severity.ERROR)
def unreadable() -> None:
    """accelerate cannot read its configuration

    Symptom: every ``accelerate launch`` ends with a traceback of yaml or of a missing key.

    Cause: accelerate launch reads default_config.yaml wherever no --config_file is given, and the
    file is no YAML, or of another kind. Script and Trainer alone do not read it.

    Remedy: Move it away, or write it again: accelerate config.

    Source: https://huggingface.co/docs/accelerate/basic_tutorials/launch
    """


def judge_accelerate(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one configuration file."""
    values = {key: document.get(key) for key in document.mapping()}
    values["mpirun_hostfile"] = document.get("mpirun_config", "mpirun_hostfile")
    lines = {key: document.line(key) for key in document.mapping()}
    for key in ("use_cpu", "mpirun_hostfile"):
        lines.setdefault(key, document.line("num_processes"))
    context = replace(context, lines=lines)
    yield from _keys(document, context)
    yield from _values(document, context)
    machines = number_of(str(values.get("num_machines"))) or 1
    if machines > 1 and not values.get("main_process_ip"):
        values["main_process_ip"] = "$unknown"  # it may stand on each launch line
    kind = str(values.get("distributed_type") or "NO").upper()
    if kind in (*_GPU, *_SHARDED):
        divided = kind in _SHARDED and values.get("use_cpu") is True
        if divided or context.facts.accelerators == ():
            why = "use_cpu: true" if divided else "no GPU is here"
            yield no_gpu.finding(context.at(None, f"distributed_type: {kind}, {why}"))
        return
    options = (f"--{key}={value}" for key, value in values.items() if value not in (None, False))
    launch = TrainingCommand(
        launcher="accelerate",
        options=tuple(options),
        script="",
        arguments=(),
        words=(),
        line=document.line("num_processes") or 0,
    )
    yield from judge_launches([launch], context)


def _keys(document: Document, context: Context) -> Iterator[Finding]:
    library, version = load().accelerate, context.accelerate
    known = library.keys_of(version)
    local = str(document.get("compute_environment") or "LOCAL_MACHINE") == "LOCAL_MACHINE"
    for key in document.mapping() if local else ():
        if key in known:
            continue
        span = next((span for span in library.keys if span.name == key), None)
        close = difflib.get_close_matches(key, sorted(known), 1)
        said = f"{key} is no key" + (f"; is {close[0]} meant?" if close else "")
        if span:
            last = f" to {_text(span.last)}" if span.last else " on"
            said = f"{key} is known from {_text(span.first)}{last}"
        text = f"{said}; {context.read_by} refuses the file"
        yield key_unknown.finding(context.at(document.line(key), text))
    by_mpirun = document.mapping("mpirun_config")
    if local and "mpirun_ccl" in by_mpirun and not library.does("reads-mpirun-ccl", version):
        text = f"mpirun_ccl is not read by {context.read_by}"
        yield key_ignored.finding(context.at(document.line("mpirun_config", "mpirun_ccl"), text))
    use = ipex_use(context.versions, framework="accelerate")
    idle = use.state in ("ignored", "unfit", "absent") and "ipex_config" in known
    if idle and document.get("ipex_config", "ipex") is True:
        yield key_ignored.finding(context.at(None, f"ipex_config.ipex: true, but {use.reason}"))


def _values(document: Document, context: Context) -> Iterator[Finding]:
    numbers = {}
    for key in ("num_processes", "num_machines"):
        value = document.get(key)
        numbers[key] = number_of(str(value)) if value is not True else None
        if value is not None and not numbers[key]:
            text = f"{key}: {value!r} is not a whole number of at least 1"
            yield value_wrong.finding(context.at(None, text))
    ranks, machines = numbers.values()
    if not machines or machines == 1:
        return
    if ranks is not None and ranks % machines:
        text = f"num_processes: {ranks} ranks cannot be divided over {machines} machines"
        yield value_wrong.finding(context.at(None, text))
    for key in ("main_process_ip", "main_process_port"):
        if document.get(key) is None:
            yield value_wrong.finding(
                context.at(None, f"num_machines: {machines}, and {key} is missing"),
                severity=Severity.WARNING,
                remedy=f"Give it here, or --{key} on every launch line.",
            )


def _text(version: tuple[int, int] | None) -> str:
    return f"{version[0]}.{version[1]}" if version else "the beginning"


CHECKS = checks_of(__name__)
