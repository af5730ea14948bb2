"""Precisions and instruction sets of the CPU, and variables that limit them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.doctor import variables as env
from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.plans.knobs.precision import native_precisions

_AMX = ("amx_tile", "amx_bf16", "amx_int8")
_AMX_KERNEL = (5, 16)  # the first Linux that lets processes use AMX
# Red Hat, Amazon and SUSE backport AMX to kernels with older version numbers.
_WITH_BACKPORTS = r"\.el\d|\.amzn\d|-150\d00\."

# What a cap removes, the oldest first.
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", *_AMX, "amx_fp16")


@check("fp16-ignored", Severity.WARNING)
def fp16_ignored(facts: HostFacts) -> Iterator[Finding]:
    """fp16 on a CPU trains in fp32, without a message

    Symptom: fp16 is exactly as fast as fp32.

    Cause: accelerate enables fp16 autocast only on accelerators.

    Remedy: Use bf16 if the CPU has it, otherwise no mixed precision.

    Source: https://github.com/huggingface/accelerate/blob/main/src/accelerate/accelerator.py
    """
    is_fp16 = (env.value(facts, "ACCELERATE_MIXED_PRECISION") or "").lower() == "fp16"
    if is_fp16 and env.without_gpu(facts):
        best = "no"
        if native_precisions(facts)[0] == "bf16":
            best = "bf16"
        yield fp16_ignored.finding(
            "ACCELERATE_MIXED_PRECISION=fp16 on a machine without a GPU",
            command=f"export ACCELERATE_MIXED_PRECISION={best}",
        )


@check("isa-capped", Severity.WARNING)
def isa_capped(facts: HostFacts) -> Iterator[Finding]:
    """A variable disables the fast instructions

    Symptom: a fast machine trains like an old one; bf16 is slower than fp32.

    Cause: ONEDNN_MAX_CPU_ISA (formerly DNNL_MAX_CPU_ISA), ATEN_CPU_CAPABILITY or
    MKL_ENABLE_INSTRUCTIONS limits libraries to older instructions.

    Remedy: Unset the variable, unless it works around a crash.

    Source: https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
    """
    for cap in env.variable_rows("caps"):
        first = cap["first"].get((env.value(facts, cap["name"]) or "").upper())
        if first:
            above = _FLAGS[_FLAGS.index(first) : cap.get("flags")]
        else:
            above = ()
        lost = []
        for flag in above:
            if facts.cpu.has(flag):
                lost.append(flag)
        if lost:
            yield env.unset(isa_capped, facts, cap["name"], f", but this CPU has {', '.join(lost)}")


@check("isa-beyond", Severity.ERROR)
def isa_beyond(facts: HostFacts) -> Iterator[Finding]:
    """A variable asks for instructions that this CPU does not have

    Symptom: "Illegal instruction", exit code 132, in the first operation.

    Cause: torch uses ATEN_CPU_CAPABILITY without checking the CPU. Images and guides copy it from
    other machines. ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS only limit.

    Remedy: Unset the variable: torch then chooses itself.

    Source: https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/DispatchStub.cpp
    """
    for cap in env.variable_rows("caps"):
        needed = cap.get("needs", {}).get(env.value(facts, cap["name"]))
        x86 = facts.cpu.architecture == "x86_64" and _isa_known(facts)
        if needed and x86 and not facts.cpu.has(needed):
            yield env.unset(isa_beyond, facts, cap["name"], f", but this CPU has no {needed}")


@check("amx-doubtful", Severity.WARNING)
def amx_doubtful(facts: HostFacts) -> Iterator[Finding]:
    """The CPU reports AMX, but AMX may not work

    Symptom: "Illegal instruction" in the first bf16 matrix product on a virtual machine.

    Cause: the hypervisor or the kernel passes on the CPUID bits of AMX but not the tiles. Linux
    supports them from 5.16 on. amx_tile alone, or AMX without AVX-512, is a hand-edited CPU model.

    Remedy: Run doctor --deep; if it reports a crash, set the variable, which disables AMX in
    oneDNN.

    Source: uxlfoundation/oneDNN#5689
    """
    cpu, kernel = facts.cpu, facts.settings.kernel or ""
    if not any(cpu.has(flag) for flag in _AMX):
        return
    doubts = []
    release = tuple(int(number) for number in re.findall(r"\d{1,9}", kernel)[:2])
    if release and release < _AMX_KERNEL and not re.search(_WITH_BACKPORTS, kernel):
        doubts.append(f"kernel {kernel} is older than 5.16")
    missing = [flag for flag in ("amx_tile", "avx512f") if not cpu.has(flag)]
    if missing:
        doubts.append(f"AMX flags without {', '.join(missing)}")
    if doubts:
        yield amx_doubtful.finding(
            "; ".join(doubts),
            severity=None if missing else Severity.ADVICE,
            command="export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
        )


@check("isa-old", Severity.WARNING)
def isa_old(facts: HostFacts) -> Iterator[Finding]:
    """This x86 CPU has no AVX2

    Symptom: everything is slow, or IPEX says that the CPU is not supported.

    Cause: the CPU (or the CPU model of the virtual machine) has only SSE or AVX.

    Remedy: Train on another machine; IPEX refuses this one.

    Source:
    https://github.com/intel/intel-extension-for-pytorch/blob/main/docs/tutorials/installation.md
    """
    cpu = facts.cpu
    if cpu.architecture == "x86_64" and _isa_known(facts) and not cpu.has("avx2"):
        flags = ", ".join(cpu.isa) or "no flag that matters for training"
        remedy = None
        if cpu.hypervisor:
            remedy = (
                'Set the CPU model of this virtual machine to "host"; if the host has no AVX2 '
                "either, train on another machine. IPEX refuses this one."
            )
        yield isa_old.finding(f"{cpu.model_name or 'this CPU'} shows {flags}", remedy=remedy)


def _isa_known(facts: HostFacts) -> bool:
    was_read = bool(facts.cpu.isa) or facts.cpu.architecture is not None
    return was_read and facts.why_unknown("cpu.isa") is None


@check("bf16-slow", Severity.ADVICE)
def bf16_slow(facts: HostFacts) -> Iterator[Finding]:
    """This CPU has no bf16 instructions

    Symptom: bf16 is three to four times slower than fp32.

    Cause: without avx512_bf16, AMX or Arm's bf16 each matmul is converted and computed in fp32.

    Remedy: Train in fp32: without --bf16, and with mixed_precision no.

    Source: pytorch/pytorch#86270, pytorch/pytorch#118499, pytorch/pytorch#111456,
    intel/intel-extension-for-pytorch#178, intel/intel-extension-for-pytorch#305
    """
    if not _isa_known(facts) or "bf16" in native_precisions(facts):
        return
    evidence = "the CPU shows none of avx512_bf16, amx_bf16 and Arm's bf16"
    if (env.value(facts, "ACCELERATE_MIXED_PRECISION") or "").lower() == "bf16":
        yield bf16_slow.finding(
            f"ACCELERATE_MIXED_PRECISION=bf16, but {evidence}",
            severity=Severity.WARNING,
            title="bf16 is requested, but this CPU has no bf16 instructions",
            command="export ACCELERATE_MIXED_PRECISION=no",
        )
    else:
        yield bf16_slow.finding(evidence)


@check("bf16-native", Severity.ADVICE, tuned="bf16")
def bf16_native(facts: HostFacts) -> Iterator[Finding]:
    """This CPU computes bf16 natively

    Symptom: training runs in fp32, several times slower than possible.

    Cause: bf16 must be requested. AMX and avx512_bf16 multiply bf16 several times as fast as fp32.

    Remedy: Train with --bf16 --use_cpu. Without a GPU --bf16 alone is refused ("Your setup doesn't
    support bf16/gpu"), also with ACCELERATE_USE_CPU.

    Source: huggingface/transformers#20445, https://huggingface.co/docs/transformers/perf_train_cpu
    """
    native = "bf16" in native_precisions(facts) and not env.lacks_torch(facts)
    if native and not env.value(facts, "ACCELERATE_MIXED_PRECISION"):
        units = []
        for flag in ("amx_bf16", "avx512_bf16", "bf16"):
            if facts.cpu.has(flag):
                units.append(flag)
        yield bf16_native.finding(f"the CPU has {', '.join(units)}; training defaults to fp32")


CHECKS = checks_of(__name__)
