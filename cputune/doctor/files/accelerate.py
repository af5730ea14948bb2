"""accelerate's configuration, judged by the accelerate that will read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.checks.launch import ranks_alone
from cputune.doctor.checks.precision import fp16_ignored
from cputune.doctor.files.configuration import options_of
from cputune.doctor.files.context import Context
from cputune.doctor.files.judge import judge_launches, one_process, use_cpu_missing
from cputune.doctor.files.yaml_spans import (
    Document,
    with_key,
    with_value,
    without_key,
)
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.launch.edit import Edit
from cputune.launch.launch import Launch
from cputune.launch.located_words import number_of
from cputune.stack import load

# Keys that identify an accelerate configuration.
MARKS = ("compute_environment", "distributed_type", "mixed_precision", "num_processes", "use_cpu")

_GPU = (
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_XPU",
    "MULTI_MLU",
    "MULTI_MUSA",
    "XLA",
    "TPU",
    "FSDP",
    "DEEPSPEED",
    "MEGATRON_LM",
)


@fault("file-key-unknown", Severity.ERROR)
def key_unknown() -> None:
    """accelerate refuses a key of this file

    Symptom: "ValueError: The config file at … had unknown keys".

    Cause: accelerate 0.23 and later refuse unknown top-level keys. ipex_config came with 0.19 and
    went with 1.13, mpirun_config came with 0.28.

    Remedy: Remove the key, or write the file with the accelerate that will read it.

    Source: huggingface/accelerate#3883, huggingface/peft#3564
    """


@fault("file-key-ignored", Severity.WARNING)
def key_ignored() -> None:
    """accelerate ignores a key of this file

    Symptom: mpirun_ccl is set and has no effect.

    Cause: accelerate 1.13 dropped oneCCL and ignores mpirun_config.mpirun_ccl.

    Remedy: Remove it: it has no effect.

    Source: huggingface/accelerate#3883
    """


@fault("file-value", Severity.ERROR)
def value_wrong() -> None:
    """A value of this file is wrong

    Symptom: accelerate launch ends with an assertion, or its ranks wait for each other. Kubernetes
    refuses the job ("quantities must match the regular expression").

    Cause: num_processes counts the ranks of all machines. Several machines need main_process_ip and
    main_process_port. Kubernetes writes memory as 32Gi or 32G, not 32GB.

    Remedy: Correct the value as the evidence says.

    Source: https://huggingface.co/docs/accelerate/package_reference/cli
    """


@fault("file-no-gpu", Severity.ERROR)
def no_gpu() -> None:
    """This file asks for GPUs on a machine without one

    Symptom: accelerate launch ends with an error about devices.

    Cause: the file was written for another machine.

    Remedy: Write distributed_type: MULTI_CPU for several ranks, 'NO' for one, and use_cpu: true.

    Source: https://huggingface.co/docs/accelerate/package_reference/cli
    """


@fault("file-unreadable", Severity.ERROR)
def unreadable() -> None:
    """accelerate cannot read its configuration

    Symptom: every ``accelerate launch`` ends with a traceback of yaml or of a missing key.

    Cause: accelerate launch reads default_config.yaml unless --config_file is given, and that file
    is not YAML, or of another kind. A script started by python does not read it.

    Remedy: Move it away, or write it again: accelerate config.

    Source: https://huggingface.co/docs/accelerate/basic_tutorials/launch
    """


def is_configuration(document: Document) -> bool:
    """Whether a document is a configuration of accelerate, or of its launcher."""
    has_marker = any(key in document.mapping() for key in MARKS)
    return has_marker and document.get("kind") is None


def judge_accelerate(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one configuration file."""
    values = document.mapping()
    lines = {key: document.line(key) for key in document.mapping()}
    for key in ("use_cpu", "mpirun_hostfile"):
        lines.setdefault(key, document.line("num_processes"))
    context = replace(context, lines=lines)
    yield from _keys(document, context)
    yield from _values(document, context)
    machines = number_of(str(values.get("num_machines"))) or 1
    unknown = machines > 1 and not values.get("main_process_ip")
    kind = str(values.get("distributed_type") or "NO").upper()
    if kind in _GPU:
        if context.facts.accelerators == ():
            text = f"distributed_type: {kind}, but this machine has no GPU"
            ranks = number_of(str(values.get("num_processes"))) or 1
            fitting = "'NO'"
            if ranks > 1:
                fitting = "MULTI_CPU"
            edits = with_value(document, context, ("distributed_type",), fitting)
            edits += _asks_cpu(document, context)
            yield no_gpu.finding(context.at(None, text), edits=edits)
        return
    options = list(options_of(document))
    if unknown:
        options.append("--main_process_ip=$unknown")  # it may stand on each launch line
    line = document.line("num_processes") or 0
    launch = Launch(launcher="accelerate", options=tuple(options), line=line)
    for finding in judge_launches([launch], replace(context, places=None)):
        yield replace(finding, edits=_configured(finding, document, context, machines))


def _configured(
    finding: Finding, document: Document, context: Context, machines: int
) -> tuple[Edit, ...]:
    """The keys that fix the launch of a configuration file."""
    if finding.code in (use_cpu_missing.code, ranks_alone.code):
        return _asks_cpu(document, context)
    if finding.code == fp16_ignored.code:
        return with_value(document, context, ("mixed_precision",), "'no'")
    if finding.code == one_process.code and machines == 1:  # what it starts today is said
        edits = with_value(document, context, ("num_processes",), "1")
        return edits + with_value(document, context, ("distributed_type",), "'NO'")
    return ()


def _keys(document: Document, context: Context) -> Iterator[Finding]:
    library, version = load().accelerate, context.accelerate
    valid_keys = library.keys_of(version)
    local = str(document.get("compute_environment") or "LOCAL_MACHINE") == "LOCAL_MACHINE"
    for key in [key for key in document.mapping() if local and key not in valid_keys]:
        span = next((span for span in library.keys if span.name == key), None)
        evidence = f"{key} is not a key of accelerate"
        if span:
            last = " on"
            if span.last:
                last = f" to {_text(span.last)}"
            evidence = f"{key} is known from {_text(span.first)}{last}"
        evidence += f"; {context.read_by} refuses the file"
        if span:
            edits = without_key(document, context, key)
        else:
            edits = ()
        yield key_unknown.finding(context.at(document.line(key), evidence), edits=edits)
    by_mpirun = document.mapping("mpirun_config")
    if local and "mpirun_ccl" in by_mpirun and not library.does("reads-mpirun-ccl", version):
        text = f"mpirun_ccl is not read by {context.read_by}"
        evidence = context.at(document.line("mpirun_config", "mpirun_ccl"), text)
        path = ("mpirun_config", "mpirun_ccl")[: len(by_mpirun)]  # with the last key goes the whole
        yield key_ignored.finding(evidence, edits=without_key(document, context, *path))


def _asks_cpu(document: Document, context: Context) -> tuple[Edit, ...]:
    """The edits that write ``use_cpu: true``."""
    if document.spans.get(("use_cpu",)):
        return with_value(document, context, ("use_cpu",), "true")
    keys = list(document.mapping())
    if keys:
        return with_key(document, context, "use_cpu: true", keys[-1])
    return ()


def _values(document: Document, context: Context) -> Iterator[Finding]:
    ranks = number_of(str(document.get("num_processes"))) or 0
    machines = number_of(str(document.get("num_machines"))) or 1
    if machines == 1:
        return
    if ranks % machines:
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
    if version:
        return f"{version[0]}.{version[1]}"
    return "the beginning"


CHECKS = checks_of(__name__)
