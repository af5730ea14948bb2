"""Judging accelerate's configuration file by the accelerate that will read it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor.files.context import Context
from cputune.doctor.files.yaml_lines import Document
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.stack import ipex_use, load

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


@fault("file-one-process", Severity.ERROR)
def one_process() -> None:
    """This launch starts one process, whatever num_processes says

    Symptom: num_processes is 2, and one process trains.

    Cause: on CPUs accelerate launch starts ranks through mpirun only, and only where a
    host file is named. 0.34.2 to 1.15.0 were tried.

    Remedy: Give mpirun_config.mpirun_hostfile (one line 'localhost' will do), or launch with
    mpirun or torchrun.

    Source: huggingface/accelerate#2741
    """


@fault("file-use-cpu", Severity.ERROR)
def use_cpu_missing() -> None:
    """use_cpu is missing

    Symptom: every rank trains alone, or "Your setup doesn't support bf16/gpu".

    Cause: from 1.13 on accelerate joins CPU ranks only where use_cpu is set: without it
    each rank has world size 1 and trains on all of the data, with no error. bf16 without
    use_cpu means bf16 on a GPU.

    Remedy: Write use_cpu: true (or --cpu for accelerate launch, --use_cpu for Trainer).

    Source: huggingface/accelerate#3883, huggingface/transformers#20445
    """


@fault("file-precision", Severity.WARNING)
def precision_useless() -> None:
    """This precision gains nothing here

    Symptom: fp16 is as fast as fp32; bf16 is three to four times slower.

    Cause: on a CPU accelerate skips fp16 without a message and trains in fp32. bf16 on a CPU
    without avx512_bf16, AMX or Arm's bf16 is converted to fp32 and back for every product.

    Remedy: Use bf16 if the CPU has instructions for it, otherwise no mixed precision.

    Source: pytorch/pytorch#86270, pytorch/pytorch#118499, intel/intel-extension-for-pytorch#178
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


@fault("file-oversubscribed", Severity.WARNING)
def oversubscribed() -> None:
    """More threads than cores are asked for

    Symptom: training is several times slower than with fewer threads.

    Cause: OpenMP threads spin while they wait. With more of them than cores each delays
    the others; under a CPU quota all of them stand still for most of every period.

    Remedy: Choose ranks × threads no larger than the cores (the CPU limit, in a pod).

    Source: onyx-dot-app/onyx#12351, kubeflow/trainer#2407
    """


def judge_accelerate(document: Document, context: Context) -> Iterator[Finding]:
    """Every fault of one configuration file."""
    for judge in (_keys, _values, _ranks, _precision):
        yield from judge(document, context)


def _keys(document: Document, context: Context) -> Iterator[Finding]:
    library, version = load().accelerate, context.accelerate
    known, reader = library.keys_of(version), context.read_by("accelerate", version)
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
        text = f"{said}; {reader} refuses the file"
        yield key_unknown.finding(context.at(document.line(key), text))
    by_mpirun = document.mapping("mpirun_config")
    if local and "mpirun_ccl" in by_mpirun and not library.does("reads-mpirun-ccl", version):
        text = f"mpirun_ccl is not read by {reader}"
        yield key_ignored.finding(context.at(document.line("mpirun_config", "mpirun_ccl"), text))
    use = ipex_use(context.versions, framework="accelerate")
    idle = use.state in ("ignored", "unfit", "absent") and "ipex_config" in known
    if idle and document.get("ipex_config", "ipex") is True:
        text = f"ipex_config.ipex: true, but {use.reason}"
        yield key_ignored.finding(context.at(document.line("ipex_config", "ipex"), text))


def _values(document: Document, context: Context) -> Iterator[Finding]:
    def wrong(key: str, text: str) -> Finding:
        return value_wrong.finding(context.at(document.line(key), text))

    for key in ("num_processes", "num_machines"):
        value = document.get(key)
        if value is not None and _whole(value) is None:
            yield wrong(key, f"{key}: {value!r} is not a whole number of at least 1")
    ranks, machines = _whole(document.get("num_processes")), _whole(document.get("num_machines"))
    if machines is None or machines == 1:
        return
    if ranks is not None and ranks % machines:
        text = f"num_processes: {ranks} ranks cannot be divided over {machines} machines"
        yield wrong("num_processes", text)
    for key in ("main_process_ip", "main_process_port"):
        if document.get(key) is None:
            missing = wrong("num_machines", f"num_machines: {machines}, and {key} is missing")
            remedy = f"Give it here, or --{key} on every launch line."
            yield replace(missing, severity=Severity.WARNING, remedy=remedy)
    address = str(document.get("main_process_ip") or "")
    if address.startswith("127.") or address == "localhost":
        text = f"main_process_ip: {address} is each machine itself, not the first of {machines}"
        yield wrong("main_process_ip", text)


def _ranks(document: Document, context: Context) -> Iterator[Finding]:
    kind = str(document.get("distributed_type") or "NO").upper()
    ranks = _whole(document.get("num_processes")) or 1
    here = ranks // (_whole(document.get("num_machines")) or 1)
    line, line_of_ranks = document.line("distributed_type"), document.line("num_processes")
    use_cpu, gpus = document.get("use_cpu"), context.facts.accelerators != ()
    if (kind in _GPU and not gpus) or (kind in _SHARDED and not (gpus and use_cpu is not True)):
        why = "use_cpu: true" if use_cpu is True and kind in _SHARDED else "no GPU is here"
        divides = " divides a model over accelerators" if kind in _SHARDED else ""
        yield no_gpu.finding(context.at(line, f"distributed_type: {kind}{divides}, {why}"))
    if kind in ("NO", "FALSE") and ranks > 1:
        text = f"num_processes: {ranks} with distributed_type 'NO' is one process"
        remedy = "Write distributed_type: MULTI_CPU and mpirun_config.mpirun_hostfile."
        yield one_process.finding(context.at(line_of_ranks, text), remedy=remedy)
    if kind != "MULTI_CPU":
        return
    if ranks > 1 and not document.get("mpirun_config", "mpirun_hostfile"):
        text = f"num_processes: {ranks} and no mpirun_config.mpirun_hostfile"
        yield one_process.finding(context.at(line_of_ranks, text))
    if use_cpu is not True:
        alone = load().accelerate.does("ranks-train-alone", context.accelerate)
        reader = context.read_by("accelerate", context.accelerate)
        text = f"distributed_type: {kind} and use_cpu: {_shown(use_cpu)}"
        yield use_cpu_missing.finding(
            context.at(
                document.line("use_cpu") or line,
                text + (f"; with {reader} every rank trains alone" if alone else ""),
            ),
            severity=Severity.ERROR if alone else Severity.WARNING,
        )
    if context.here and 0 < context.cores < here:
        text = f"num_processes: {here} ranks on a machine, {context.cores} cores to use"
        yield oversubscribed.finding(context.at(line_of_ranks, text))


def _precision(document: Document, context: Context) -> Iterator[Finding]:
    asked = str(document.get("mixed_precision") or "no").lower()
    at, use_cpu = document.line("mixed_precision"), document.get("use_cpu")
    if context.has_gpu:
        return
    if asked == "fp16":
        text = "mixed_precision: fp16 trains in fp32 on a CPU"
        yield precision_useless.finding(context.at(at, text))
    if asked == "bf16" and context.bf16 is False:
        text = "mixed_precision: bf16, and this CPU has no instructions for it"
        yield precision_useless.finding(context.at(at, text))
    kind = str(document.get("distributed_type") or "NO").upper()
    if asked == "bf16" and use_cpu is not True and kind not in ("MULTI_CPU", *_GPU):
        text = f"mixed_precision: bf16 and use_cpu: {_shown(use_cpu)}, no GPU"
        yield use_cpu_missing.finding(context.at(document.line("use_cpu") or at, text))


def _whole(value: object) -> int | None:
    """A whole number of at least 1; None for anything else."""
    text = str(value).strip()
    whole = not isinstance(value, bool) and re.fullmatch(r"[0-9]{1,9}", text)
    return int(text) or None if whole else None


def _shown(value: object) -> str:
    return "(missing)" if value is None else str(value).lower()


def _text(version: tuple[int, int] | None) -> str:
    return f"{version[0]}.{version[1]}" if version else "the beginning"


CHECKS = checks_of(__name__)
