"""What the CPU computes natively, what is asked of it, and what holds it back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.doctor.variables import lacks_torch, value, without_gpu
from cputune.facts import HostFacts
from cputune.knobs.precision import native_precisions

_AMX = ("amx_tile", "amx_bf16", "amx_int8")
_AMX_KERNEL = (5, 16)
_WITH_BACKPORTS = r"\.el\d|\.amzn\d|-150\d00\."
"""Red Hat, Amazon and SUSE carry AMX back into kernels that are called older."""

# What each cap still allows, by the kernel flags that it takes away.
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
_ABOVE_AMX = ("amx_fp16",)
_ABOVE_FP16 = (*_AMX, *_ABOVE_AMX)
_ABOVE_BF16 = ("avx512_fp16", *_ABOVE_FP16)
_ABOVE_VNNI = ("avx512_bf16", *_ABOVE_BF16)
_ABOVE_AVX512 = ("avx512_vnni", *_ABOVE_VNNI)
_ABOVE_AVX2 = ("avx512f", *_ABOVE_AVX512)
_ABOVE_AVX = ("avx2", *_ABOVE_AVX2)
_LOST_BY_CAP = {
    "SSE41": _ABOVE_AVX,
    "AVX": _ABOVE_AVX,
    "AVX2": _ABOVE_AVX2,
    "AVX2_VNNI": _ABOVE_AVX2,
    "AVX2_VNNI_2": _ABOVE_AVX2,
    "AVX512_CORE": _ABOVE_AVX512,
    "AVX512_CORE_VNNI": _ABOVE_VNNI,
    "AVX512_CORE_BF16": _ABOVE_BF16,
    "AVX512_CORE_FP16": _ABOVE_FP16,
    "AVX512_CORE_AMX": _ABOVE_AMX,
    # ATEN_CPU_CAPABILITY (aten/src/ATen/native/DispatchStub.cpp) governs vector code only
    "ATEN:DEFAULT": ("avx2", "avx512f"),
    "ATEN:AVX2": ("avx512f",),
    # MKL_ENABLE_INSTRUCTIONS of oneMKL
    "MKL:SSE4_2": _ABOVE_AVX,
    "MKL:AVX": _ABOVE_AVX,
    "MKL:AVX2": _ABOVE_AVX2,
    "MKL:AVX2_E1": _ABOVE_AVX2,
    "MKL:AVX512": _ABOVE_AVX512,
    "MKL:AVX512_E1": _ABOVE_VNNI,
    "MKL:AVX512_E2": _ABOVE_BF16,
    "MKL:AVX512_E3": _ABOVE_FP16,
    "MKL:AVX512_E4": _ABOVE_AMX,
}
_CAPS = (
    ("ONEDNN_MAX_CPU_ISA", ""),
    ("DNNL_MAX_CPU_ISA", ""),
    ("ATEN_CPU_CAPABILITY", "ATEN:"),
    ("MKL_ENABLE_INSTRUCTIONS", "MKL:"),
)


@check("fp16-ignored", Severity.WARNING)
def fp16_ignored(facts: HostFacts) -> Iterator[Finding]:
    """fp16 on a CPU trains in fp32, without a message

    Symptom: fp16 is exactly as fast as fp32.

    Cause: accelerate turns fp16 autocast on for accelerators only; on a CPU the flag is
    skipped without a message.

    Remedy: Use bf16 if the CPU has it, otherwise no mixed precision.

    Source: https://github.com/huggingface/accelerate/blob/main/src/accelerate/accelerator.py
    """
    asked = (value(facts, "ACCELERATE_MIXED_PRECISION") or "").lower() == "fp16"
    if asked and without_gpu(facts):
        best = native_precisions(facts)[0]
        yield fp16_ignored.finding(
            "ACCELERATE_MIXED_PRECISION=fp16 on a machine without a GPU",
            command=f"export ACCELERATE_MIXED_PRECISION={'bf16' if best == 'bf16' else 'no'}",
        )


@check("isa-capped", Severity.WARNING)
def isa_capped(facts: HostFacts) -> Iterator[Finding]:
    """A variable keeps the fast instructions from being used

    Symptom: a fast machine trains like an old one; bf16 is slower than fp32.

    Cause: ONEDNN_MAX_CPU_ISA (once DNNL_MAX_CPU_ISA), ATEN_CPU_CAPABILITY or
    MKL_ENABLE_INSTRUCTIONS caps what the libraries may use below what the CPU has.

    Remedy: Unset it, unless it works around a crash.

    Source: https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
    """
    for name, prefix in _CAPS:
        cap = value(facts, name)
        lost = [f for f in _LOST_BY_CAP.get(prefix + (cap or "").upper(), ()) if facts.cpu.has(f)]
        if lost:
            yield isa_capped.finding(
                f"{name}={cap}, but this CPU has {', '.join(lost)}", command=f"unset {name}"
            )
    debug = value(facts, "MKL_DEBUG_CPU_TYPE")
    if debug is not None:
        yield isa_capped.finding(
            f"MKL_DEBUG_CPU_TYPE={debug} forces MKL's code path; it is ignored since 2020.1",
            severity=Severity.WARNING if facts.cpu.has("avx512f") else Severity.ADVICE,
            command="unset MKL_DEBUG_CPU_TYPE",
        )


@check("amx-doubtful", Severity.WARNING)
def amx_doubtful(facts: HostFacts) -> Iterator[Finding]:
    """The machine shows AMX, but may not give it

    Symptom: "Illegal instruction" in the first bf16 product on a virtual machine.

    Cause: hypervisor or kernel passes the CPUID bits of AMX on, but not the tiles
    themselves. Linux gives them from 5.16 on; a VM that shows amx_tile alone, or AMX
    without AVX-512, was put together by hand.

    Remedy: Run doctor --deep; if it reports a crash, set the variable, which keeps oneDNN from
    using AMX.

    Source: uxlfoundation/oneDNN#5689
    """
    cpu = facts.cpu
    if not any(cpu.has(flag) for flag in _AMX):
        return
    doubts = []
    kernel = facts.settings.kernel or ""
    release = re.match(r"(\d+)\.(\d+)", kernel)
    version = (int(release[1]), int(release[2])) if release else _AMX_KERNEL
    if version < _AMX_KERNEL and not re.search(_WITH_BACKPORTS, kernel):
        doubts.append(f"kernel {kernel} is older than 5.16")
    missing = [flag for flag in ("amx_tile", "avx512f") if not cpu.has(flag)]
    if missing:
        doubts.append(f"AMX flags without {', '.join(missing)}")
    if doubts:
        # Before 5.11 Linux did not even name the flags: something else made that list.
        mild = version >= (5, 11) and not missing
        yield amx_doubtful.finding(
            "; ".join(doubts),
            severity=Severity.ADVICE if mild else None,
            command="export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
        )


@check("isa-old", Severity.WARNING)
def isa_old(facts: HostFacts) -> Iterator[Finding]:
    """This x86 CPU has no AVX2

    Symptom: everything is slow, or IPEX says that the CPU is not supported.

    Cause: the CPU (or the CPU model chosen for the virtual machine) stops at SSE or AVX.

    Remedy: Train on another machine; IPEX refuses this one.

    Source:
    https://github.com/intel/intel-extension-for-pytorch/blob/main/docs/tutorials/installation.md
    """
    cpu = facts.cpu
    if cpu.architecture == "x86_64" and _isa_known(facts) and not cpu.has("avx2"):
        yield isa_old.finding(
            f"{cpu.model_name or 'this CPU'} has of the flags that matter for training: "
            + (", ".join(cpu.isa) or "none")
        )


def _isa_known(facts: HostFacts) -> bool:
    told = bool(facts.cpu.isa) or facts.cpu.architecture is not None
    return told and facts.why_unknown("cpu.isa") is None


@check("bf16-slow", Severity.ADVICE)
def bf16_slow(facts: HostFacts) -> Iterator[Finding]:
    """This CPU has no bf16 instructions

    Symptom: bf16 is three to four times slower than fp32.

    Cause: without avx512_bf16, AMX or Arm's bf16 every product is computed in fp32 after
    a conversion, so that bf16 costs time instead of saving it.

    Remedy: Train in fp32: without --bf16, and with mixed_precision no.

    Source: pytorch/pytorch#86270, pytorch/pytorch#118499, pytorch/pytorch#111456,
    intel/intel-extension-for-pytorch#178, intel/intel-extension-for-pytorch#305
    """
    if not _isa_known(facts) or "bf16" in native_precisions(facts):
        return
    asked = (value(facts, "ACCELERATE_MIXED_PRECISION") or "").lower() == "bf16"
    shown = [flag for flag in ("avx512f", "avx2", "sve") if facts.cpu.has(flag)]
    evidence = "the CPU shows none of avx512_bf16, amx_bf16 and Arm's bf16; it has " + (
        ", ".join(shown) or "no AVX2 either"
    )
    if asked:
        yield bf16_slow.finding(
            f"ACCELERATE_MIXED_PRECISION=bf16, but {evidence}",
            severity=Severity.WARNING,
            title="bf16 is asked for, but this CPU has no bf16 instructions",
            command="export ACCELERATE_MIXED_PRECISION=no",
        )
    else:
        yield bf16_slow.finding(evidence)


@check("bf16-native", Severity.ADVICE)
def bf16_native(facts: HostFacts) -> Iterator[Finding]:
    """This CPU computes bf16 natively

    Symptom: training runs in fp32 at a fraction of what the machine can do.

    Cause: nothing turns bf16 on by itself. AMX and avx512_bf16 multiply it several times
    as fast as fp32.

    Remedy: Train with --bf16 --use_cpu; --bf16 alone is refused without a GPU ("Your setup
    doesn't support bf16/gpu"), whatever ACCELERATE_USE_CPU says.

    Source: huggingface/transformers#20445,
    https://huggingface.co/docs/transformers/perf_train_cpu
    """
    if "bf16" not in native_precisions(facts) or value(facts, "ACCELERATE_MIXED_PRECISION"):
        return
    if lacks_torch(facts):
        return
    units = [flag for flag in ("amx_bf16", "avx512_bf16", "bf16") if facts.cpu.has(flag)]
    yield bf16_native.finding(f"the CPU has {', '.join(units)}; training defaults to fp32")


CHECKS = checks_of(__name__)
