"""What the processor is: /proc/cpuinfo taken apart, the generations as data, names, ISA flags.

Sources of the generations: LLVM ``X86TargetParser.cpp`` and compiler-rt ``cpu_model/x86.c``,
Intel's perfmon ``mapfile.csv``, archspec's ``microarchitectures.json`` for Arm cores. The map
from core to Graviton generation is AWS's own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from cputune.facts import Cpu
from cputune.probing._look import Look, whole_number

CPUINFO = "/proc/cpuinfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInfo:
    """The lines of each logical CPU that is listed, and those that stand outside of them."""

    processors: dict[int, dict[str, str]]
    common: dict[str, str]

    def first(self, *keys: str) -> str | None:
        """What is told for the first of these keys that anything is told for."""
        for key in keys:
            for block in (*self.processors.values(), self.common):
                if block.get(key):
                    return block[key]
        return None

    def distinct(self, *keys: str) -> tuple[str, ...]:
        """All different values that any processor has for one of these keys."""
        blocks = (*self.processors.values(), self.common)
        return tuple(dict.fromkeys(block[key] for block in blocks for key in keys if key in block))


def read_cpuinfo(look: Look) -> CpuInfo:
    """Read /proc/cpuinfo; empty where there is none.

    A processor begins with ``processor : N`` (x86, Arm, Power, RISC-V) or
    ``cpu number : N`` (s390x, which also has one line ``processor N: ...`` for each)
    and ends with an empty line; 32-bit Arm, Power and s390x have lines outside of them.
    """
    common: dict[str, str] = {}
    processors: dict[int, dict[str, str]] = {}
    block = common
    for line in _whole_lines(look):
        key, colon, value = line.partition(":")
        if not colon:
            if not line.strip():
                block = common
            continue
        key, value = key.strip(), value.strip()
        if key in ("processor", "cpu number"):
            number = whole_number(value)
            if number is not None and number >= 0:
                block = processors.setdefault(number, {})
                continue
        elif key.startswith("processor "):
            number = whole_number(key.removeprefix("processor "))
            if number is not None and number >= 0:
                processors.setdefault(number, {})
                continue
        block.setdefault(key, value)
    return CpuInfo(processors=dict(sorted(processors.items())), common=common)


def _whole_lines(look: Look) -> list[str]:
    """The lines; without the last where the file was cut off in the middle of it."""
    try:
        text = look.host.read_text(CPUINFO)
    except (OSError, ValueError):
        return []
    lines = text.strip("\0").split("\n")
    if lines[-1] and len(lines) > 60:
        lines.pop()
    return lines


def packages_told(info: CpuInfo) -> dict[int, int]:
    """The ``physical id`` of each CPU that has one."""
    ids = {cpu: whole_number(block.get("physical id")) for cpu, block in info.processors.items()}
    return {cpu: number for cpu, number in ids.items() if number is not None}


def cores_told(info: CpuInfo) -> dict[int, Hashable]:
    """A key for the core of each CPU: by the counts where they leave no choice, else by its ids.

    Packages of two dies (AMD Magny-Cours and Interlagos) count their core ids twice: there
    the ids of a whole package are fewer than its ``cpu cores``, and tell nothing.
    """
    packages = packages_told(info)
    members: dict[int, list[int | None]] = {}
    for cpu, package in packages.items():
        core = whole_number(info.processors[cpu].get("core id"))
        members.setdefault(package, []).append(core)
    distinct = {package: len(set(ids)) for package, ids in members.items()}
    found: dict[int, Hashable] = {}
    for cpu, package in packages.items():
        block = info.processors[cpu]
        core, siblings, cores = (
            whole_number(block.get(key)) for key in ("core id", "siblings", "cpu cores")
        )
        repeated = siblings == len(members[package]) and distinct[package] < (cores or 0)
        if cores is not None and cores == siblings:
            found[cpu] = (package, "alone", cpu)
        elif cores == 1:
            found[cpu] = (package, 0)
        elif core is not None and not repeated:
            found[cpu] = (package, core)
    return found


TELLING_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)
"""The flags in which generations differ. AMX fp16 is none: kernels do not print it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One x86 generation: where its model numbers lie, and which telling flags it has."""

    name: str
    vendor: str
    family: int
    models: tuple[range, ...]
    flags: frozenset[str]
    steppings: range | None = None

    def has_model(self, family: int, model: int, stepping: int | None) -> bool:
        """Whether these numbers are this generation's."""
        if family != self.family or not any(model in span for span in self.models):
            return False
        return self.steppings is None or stepping is None or stepping in self.steppings


def _intel(
    name: str, models: tuple[int, ...], flags: str, steppings: range | None = None
) -> Generation:
    return Generation(
        name=name,
        vendor="GenuineIntel",
        family=6,
        models=tuple(range(model, model + 1) for model in models),
        flags=frozenset(flags.split()),
        steppings=steppings,
    )


def _amd(name: str, family: int, models: tuple[range, ...], flags: str) -> Generation:
    return Generation(
        name=name,
        vendor="AuthenticAMD",
        family=family,
        models=models,
        flags=frozenset(flags.split()),
    )


_VNNI = "avx2 avx512f avx512_vnni"
_AMX = f"{_VNNI} avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_bf16 amx_int8"

X86_GENERATIONS = (
    _intel("Haswell", (60, 63, 69, 70), "avx2"),
    _intel("Broadwell", (61, 71, 79, 86), "avx2"),
    # Three generations share model 85: flags tell them apart, steppings agree.
    _intel("Skylake-SP", (85,), "avx2 avx512f", range(5)),
    _intel("Cascade Lake", (85,), _VNNI, range(5, 16)),
    _intel("Cooper Lake", (85,), f"{_VNNI} avx512_bf16", range(10, 16)),
    _intel("Ice Lake-SP", (106, 108), _VNNI),
    _intel("Sapphire Rapids", (143,), _AMX),
    _intel("Emerald Rapids", (207,), _AMX),
    _intel("Granite Rapids", (173, 174), _AMX),
    _intel("Sierra Forest", (175,), "avx2 avx_vnni"),
    _intel("Clearwater Forest", (221,), "avx2 avx_vnni"),
    _amd(
        "Zen 2",
        23,
        (
            range(0x30, 0x40),
            range(0x47, 0x48),
            range(0x60, 0x80),
            range(0x84, 0x88),
            range(0x90, 0xB0),
        ),
        "avx2",
    ),
    _amd("Zen 3", 25, (range(0x10), range(0x20, 0x60)), "avx2"),
    _amd(
        "Zen 4",
        25,
        (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0)),
        f"{_VNNI} avx512_bf16",
    ),
    _amd("Zen 5", 26, (range(0x78),), f"{_VNNI} avx512_bf16 avx_vnni"),
)

ARM_IMPLEMENTERS = {
    0x41: "ARM",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "FUJITSU",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0x53: "Samsung",
    0x56: "Marvell",
    0x61: "Apple",
    0x6D: "Microsoft",
    0x70: "Phytium",
    0xC0: "Ampere",
}
"""Names of Arm's implementer codes, spelled as lscpu spells them (sys-utils/lscpu-arm.c)."""

ARM_CORES = {
    # (implementer, part): (name, flags that this core always has)
    (0x41, 0xD08): ("Cortex-A72 (Graviton 1)", ()),
    (0x41, 0xD0C): ("Neoverse N1 (Graviton 2)", ("asimddp", "fphp")),
    (0x41, 0xD40): ("Neoverse V1 (Graviton 3)", ("asimddp", "fphp", "sve", "bf16", "i8mm")),
    (0x41, 0xD49): ("Neoverse N2", ("asimddp", "fphp", "sve2", "bf16", "i8mm")),
    (0x41, 0xD4F): ("Neoverse V2 (Graviton 4, Grace)", ("asimddp", "fphp", "sve2", "bf16", "i8mm")),
    (0x41, 0xD84): ("Neoverse V3", ("asimddp", "fphp", "sve2", "bf16", "i8mm")),
    (0x41, 0xD85): ("Cortex-X925", ("asimddp", "fphp", "sve2", "bf16", "i8mm")),
    (0x41, 0xD87): ("Cortex-A725", ("asimddp", "fphp", "sve2", "bf16", "i8mm")),
    (0x41, 0xD8E): ("Neoverse N3", ("asimddp", "fphp", "sve2", "bf16", "i8mm")),
    (0x46, 0x001): ("A64FX", ("fphp", "sve")),
    (0x48, 0xD01): ("Kunpeng 920", ("asimddp", "fphp")),
    (0xC0, 0xAC3): ("AmpereOne", ("asimddp", "fphp", "bf16", "i8mm")),
}


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
        microcode=info.first("microcode"),
    )
    codename = _x86_codename(look, cpu) if implementer is None else _arm_codename(look, info, flags)
    model_name = cpu.model_name
    if model_name is None and codename is None:
        model_name = _text(look.host.cpu_info().get("brand_raw"))
    for fact in (*_NUMBERED_FACTS, "microcode"):
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


_NUMBERED_FACTS = ("vendor", "family", "model", "stepping", "architecture", "hypervisor")
_NAMED_FACTS = ("model_name", "codename", *_NUMBERED_FACTS, "isa", "microcode")


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
