"""What the processor is: names, numbers, and the ISA flags that training uses."""

from __future__ import annotations

from dataclasses import replace

from cputune.facts import Cpu
from cputune.probing._cpuinfo import CPUINFO, CpuInfo
from cputune.probing._look import Look, whole_number
from cputune.probing.generations import (
    ARM_CORES,
    ARM_IMPLEMENTERS,
    TELLING_FLAGS,
    X86_GENERATIONS,
)

_X86_FLAGS = (
    "sse4_2 avx avx2 fma f16c avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni "
    "avx512_bf16 avx512_fp16 avx512vbmi avx512_vbmi2 avx512_4vnniw avx512_4fmaps avx_vnni "
    "amx_tile amx_int8 amx_bf16 amx_fp16"
)
_ARM_FLAGS = "neon vfpv4 asimd asimddp asimdhp fphp sve sve2 svebf16 svei8mm bf16 i8mm sme sme2"
_S390X_FLAGS = "vx vxe vxe2 nnpa"
TRAINING_FLAGS = frozenset(f"{_X86_FLAGS} {_ARM_FLAGS} {_S390X_FLAGS}".split())
"""Kernel flag names that a matrix product cares about."""


def read_cpu(look: Look, info: CpuInfo) -> Cpu:
    """Name the processor. What /proc/cpuinfo does not say stays None, with the reason.

    py-cpuinfo takes a second and starts a dozen children. So it is asked only where
    /proc/cpuinfo is missing, or leaves a processor without any name: boards whose
    architecture writes no model name and whose parts are in no table of ours.
    """
    if not info.processors and not info.common:
        return _without_cpuinfo(look)
    flag_texts = info.distinct("flags", "Features", "features")
    # A thread may run on any core: only what all of them have counts.
    flags = frozenset.intersection(*(frozenset(t.split()) for t in flag_texts or ("",)))
    implementer = whole_number(info.first("CPU implementer"), base=16)
    x86 = info.first("flags") is not None
    cpu = Cpu(
        vendor=info.first("vendor_id", "vendor")
        or ARM_IMPLEMENTERS.get(implementer or -1, info.first("CPU implementer")),
        model_name=info.first("model name", "Model Name", "cpu model", "cpu", "Processor", "uarch"),
        codename=None,
        family=whole_number(info.first("cpu family", "family")),
        model=whole_number(info.first("model"))
        if implementer is None
        else whole_number(info.first("CPU part"), base=16),
        stepping=whole_number(info.first("stepping", "CPU revision")),
        architecture=_architecture(info, flags),
        hypervisor="hypervisor" in flags if x86 else None,
        isa=_with_amx_fp16(look, flags),
    )
    codename = _x86_codename(look, cpu) if implementer is None else _arm_codename(look, info, flags)
    model_name = cpu.model_name
    if model_name is None and codename is None:
        model_name = _text(look.host.cpu_info().get("brand_raw"))
    for fact in ("vendor", "family", "model", "stepping", "architecture", "hypervisor"):
        if getattr(cpu, fact) is None:
            look.not_known(f"cpu.{fact}", f"{CPUINFO} does not tell it")
    if model_name is None:
        look.not_known("cpu.model_name", f"{CPUINFO} does not tell it")
    if not flags:
        look.not_known("cpu.isa", f"{CPUINFO} lists no flags")
    return replace(cpu, model_name=model_name, codename=codename)


def _architecture(info: CpuInfo, flags: frozenset[str]) -> str | None:
    """The machine name as ``uname -m`` has it, where the form of the file gives it away."""
    if info.first("flags") is not None:
        return "x86_64" if "lm" in flags else "i686"
    if info.first("CPU implementer") is not None:
        return "aarch64" if flags & {"asimd", "fp"} else "arm"
    if (info.first("vendor_id") or "").startswith("IBM/S390"):
        return "s390x"
    if (info.first("cpu") or "").startswith(("POWER", "PPC")):
        return "ppc64"
    isa = info.first("isa") or ""
    if isa.startswith("rv"):
        return "riscv64" if isa.startswith("rv64") else "riscv32"
    return "ia64" if info.first("arch") == "IA-64" else None


def _with_amx_fp16(look: Look, flags: frozenset[str]) -> tuple[str, ...]:
    """The flags for training, with AMX fp16 where CPUID shows it.

    Linux names no such flag (``X86_FEATURE_AMX_FP16`` is hidden in
    arch/x86/include/asm/cpufeatures.h), so it is asked of the processor: leaf 7,
    subleaf 1, EAX bit 21 (Intel SDM volume 2A, CPUID).
    """
    known = flags & TRAINING_FLAGS
    if "amx_tile" in known and "amx_fp16" not in known:
        registers = look.host.cpuid(7, 1)
        if registers is None:
            look.not_known(
                "cpu.isa.amx_fp16",
                "the kernel does not print this flag, and CPUID could not be asked (root can)",
            )
        elif registers[0] >> 21 & 1:
            known |= {"amx_fp16"}
    return tuple(sorted(known))


def _x86_codename(look: Look, cpu: Cpu) -> str | None:
    """The generation on which model number and flags agree (virtual machines lie in either)."""
    numbers = f"family {cpu.family}, model {cpu.model}"
    if cpu.family is None or cpu.model is None:
        look.not_known("cpu.codename", f"{CPUINFO} tells no family and model")
        return None
    candidates = [
        generation
        for generation in X86_GENERATIONS
        if generation.vendor == cpu.vendor
        and generation.has_model(cpu.family, cpu.model, cpu.stepping)
    ]
    telling = frozenset(cpu.isa) & frozenset(TELLING_FLAGS)
    for generation in candidates:
        if generation.flags == telling:
            return generation.name
    by_flags = [g.name for g in X86_GENERATIONS if g.flags == telling and g.vendor == cpu.vendor]
    shown = f"the flags are those of {' or '.join(by_flags)}" if by_flags else "the flags differ"
    if candidates:
        names = " or ".join(generation.name for generation in candidates)
        look.not_known("cpu.codename", f"{numbers} is {names}, but {shown}")
    else:
        look.not_known("cpu.codename", f"{numbers} is in no table of ours; {shown}")
    return None


def _arm_codename(look: Look, info: CpuInfo, flags: frozenset[str]) -> str | None:
    """The cores by their part numbers; several names where the cores differ."""
    implementer = whole_number(info.first("CPU implementer"), base=16)
    names = []
    for text in info.distinct("CPU part"):
        part = whole_number(text, base=16)
        name, needed = ARM_CORES.get((implementer or 0, part or 0), (None, ()))
        if name is None or not flags.issuperset(needed):
            look.not_known("cpu.codename", f"part {text} with these flags is in no table of ours")
            return None
        names.append(name)
    if not names:
        look.not_known("cpu.codename", f"{CPUINFO} tells no part number")
    return " + ".join(names) or None


_NAMED_FACTS = (
    "vendor",
    "model_name",
    "codename",
    "family",
    "model",
    "stepping",
    "architecture",
    "hypervisor",
    "isa",
)


def _without_cpuinfo(look: Look) -> Cpu:
    """What py-cpuinfo says: it asks the processor itself where no /proc is mounted."""
    told = look.host.cpu_info()
    flags = told.get("flags")
    cpu = Cpu(
        vendor=_text(told.get("vendor_id_raw")),
        model_name=_text(told.get("brand_raw")),
        codename=None,
        family=_number(told.get("family")),
        model=_number(told.get("model")),
        stepping=_number(told.get("stepping")),
        architecture=_text(told.get("arch_string_raw")),
        hypervisor=None,
        isa=tuple(sorted(TRAINING_FLAGS & set(flags if isinstance(flags, list) else ()))),
    )
    for fact in _NAMED_FACTS:
        if getattr(cpu, fact) in (None, ()):
            look.not_known(f"cpu.{fact}", look.why(CPUINFO))
    # It knows of no flag that came after avx512_vnni: what it does not name may be there.
    look.not_known("cpu.isa", f"{look.why(CPUINFO)}, and py-cpuinfo knows nothing of AMX and bf16")
    return cpu


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
