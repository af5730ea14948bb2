"""What the processor is: /proc/cpuinfo taken apart, names, ISA flags.

Which generations and cores there are stands in ``processors.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from cputune.host.facts import Cpu
from cputune.host.probing._look import Look, fields, whole_number
from cputune.text.documents import packaged_toml, record_of

CPUINFO = "/proc/cpuinfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInfo:
    """/proc/cpuinfo: its lines for each logical CPU, and in ``common`` those of no CPU."""

    processors: dict[int, dict[str, str]]
    common: dict[str, str]

    def first(self, *keys: str) -> str | None:
        """The value of the first of these keys that has one."""
        for key in keys:
            for block in (*self.processors.values(), self.common):
                if block.get(key):
                    return block[key]
        return None

    def distinct(self, *keys: str) -> tuple[str, ...]:
        """All different values that any processor has for one of these keys."""
        blocks = (*self.processors.values(), self.common)
        return tuple(dict.fromkeys(block[key] for block in blocks for key in keys if key in block))

    def ids(self, *keys: str) -> dict[int, Hashable]:
        """These numbers of each CPU that has all of them."""
        values = {
            cpu: tuple(whole_number(block.get(key)) for key in keys)
            for cpu, block in self.processors.items()
        }
        return {cpu: numbers for cpu, numbers in values.items() if None not in numbers}


def read_cpuinfo(look: Look) -> CpuInfo:
    """Read /proc/cpuinfo; empty where there is none.

    A processor begins with ``processor : N`` and ends with an empty line; 32-bit Arm and Power
    have lines outside of them.
    """
    common: dict[str, str] = {}
    processors: dict[int, dict[str, str]] = {}
    for text in re.split(r"\n\s*\n", look.text(CPUINFO) or ""):
        block = fields(text)
        number = whole_number(block.get("processor"))
        if number is not None and number >= 0:
            processors.setdefault(number, block)
        else:
            common = {**block, **common}
    return CpuInfo(processors=dict(sorted(processors.items())), common=common)


Span = tuple[int, int]
"""The first and the last of some numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One x86 generation: where its model numbers lie, and which telling flags it has."""

    name: str
    vendor: str
    family: int
    models: tuple[Span, ...]
    flags: str
    steppings: Span | None = None

    def has_model(self, cpu: Cpu) -> bool:
        """Whether vendor, family, model and stepping are this generation's."""
        if (cpu.vendor, cpu.family) != (self.vendor, self.family) or cpu.model is None:
            return False
        if not any(first <= cpu.model <= last for first, last in self.models):
            return False
        first, last = self.steppings or (0, 255)
        return cpu.stepping is None or first <= cpu.stepping <= last


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCore:
    """A core of Arm's architecture, and the flags that it always has."""

    implementer: int
    part: int
    name: str
    flags: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """What ``processors.toml`` holds: flags, generations and cores by their numbers."""

    flags: Mapping[str, str]
    x86: tuple[Generation, ...]
    implementers: Mapping[str, str]
    arm: tuple[ArmCore, ...]

    def training_flags(self) -> frozenset[str]:
        """Kernel flag names that a matrix product cares about."""
        return frozenset(" ".join(self.flags.values()).split())


@cache
def processors() -> Processors:
    """Read the table. It is part of the package; a test checks that it is valid."""
    return record_of(Processors, packaged_toml("cputune.host.probing", "processors.toml"))


def read_cpu(look: Look, info: CpuInfo) -> Cpu:
    """Name the processor. What /proc/cpuinfo does not say stays None, with the reason."""
    if not info.processors and not info.common:
        return _without_cpuinfo(look)
    flag_texts = info.distinct("flags", "Features")
    # A thread may run on any core: only what all of them have counts.
    flags = frozenset.intersection(*(frozenset(t.split()) for t in flag_texts or ("",)))
    implementer = whole_number(info.first("CPU implementer"), base=16)
    x86 = info.first("flags") is not None
    model = whole_number(info.first("model"))
    if implementer is not None:
        model = whole_number(info.first("CPU part"), base=16)
    cpu = Cpu(
        vendor=info.first("vendor_id")
        or processors().implementers.get(f"{implementer or 0:#x}", info.first("CPU implementer")),
        model_name=info.first("model name", "Model Name", "cpu", "uarch"),
        codename=None,
        family=whole_number(info.first("cpu family")),
        model=model,
        stepping=whole_number(info.first("stepping", "CPU revision")),
        architecture=_architecture(info, flags),
        hypervisor="hypervisor" in flags if x86 else None,
        isa=_with_amx_fp16(look, flags),
        microcode=info.first("microcode"),
    )
    codename = _x86_codename(look, cpu) if implementer is None else _arm_codename(look, info, flags)
    if not flags:
        look.not_known("cpu.isa", f"{CPUINFO} lists no flags")
    return _with_reasons(look, replace(cpu, codename=codename), f"{CPUINFO} does not tell it")


def _without_cpuinfo(look: Look) -> Cpu:
    """What py-cpuinfo says: it asks the processor itself where no /proc is mounted."""
    info = look.host.cpu_info()
    flags = info.get("flags")
    names = {key: value for key, value in info.items() if isinstance(value, str) and value}
    numbers = {key: value for key, value in info.items() if isinstance(value, int)}
    cpu = Cpu(
        vendor=names.get("vendor_id_raw"),
        model_name=names.get("brand_raw"),
        codename=None,
        family=numbers.get("family"),
        model=numbers.get("model"),
        stepping=numbers.get("stepping"),
        architecture=names.get("arch_string_raw"),
        hypervisor=None,
        isa=tuple(
            sorted(processors().training_flags() & set(flags if isinstance(flags, list) else ()))
        ),
    )
    look.not_known("cpu.codename", look.why(CPUINFO))
    # py-cpuinfo knows no flag later than avx512_vnni, so a later one may be there unnamed.
    look.not_known("cpu.isa", f"{look.why(CPUINFO)}, and py-cpuinfo knows nothing of AMX and bf16")
    return _with_reasons(look, cpu, look.why(CPUINFO))


_FACTS = (
    *("vendor", "model_name", "family", "model", "stepping", "architecture"),
    *("hypervisor", "microcode"),
)


def _with_reasons(look: Look, cpu: Cpu, why: str) -> Cpu:
    """The same record; for each fact that is None, note why it is not known."""
    for fact in _FACTS:
        if getattr(cpu, fact) is None:
            look.not_known(f"cpu.{fact}", why)
    return cpu


def _architecture(info: CpuInfo, flags: frozenset[str]) -> str | None:
    """The machine name as ``uname -m`` prints it, as far as the keys of the file tell it."""
    if info.first("flags") is not None:
        return "x86_64" if "lm" in flags else "i686"
    if info.first("CPU implementer") is not None:
        return "aarch64" if flags & {"asimd", "fp"} else "arm"
    if (info.first("cpu") or "").startswith("POWER"):
        return "ppc64"
    return "riscv64" if (info.first("isa") or "").startswith("rv64") else None


def _with_amx_fp16(look: Look, flags: frozenset[str]) -> tuple[str, ...]:
    """The flags for training, with AMX fp16 where CPUID shows it.

    Linux names no such flag (``X86_FEATURE_AMX_FP16`` is hidden in
    arch/x86/include/asm/cpufeatures.h), so it is asked of the processor: leaf 7,
    subleaf 1, EAX bit 21 (Intel SDM volume 2A, CPUID).
    """
    known = flags & processors().training_flags()
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
    """The generation with this model number and these flags; virtual machines may change one."""
    numbers = f"family {cpu.family}, model {cpu.model}"
    if cpu.family is None or cpu.model is None:
        look.not_known("cpu.codename", f"{CPUINFO} tells no family and model")
        return None
    telling = set(cpu.isa) & set(processors().flags["telling"].split())
    candidates = [known for known in processors().x86 if known.has_model(cpu)]
    alike = [known for known in processors().x86 if set(known.flags.split()) == telling]
    if both := [generation.name for generation in candidates if generation in alike]:
        return both[0]
    by_numbers = " or ".join(generation.name for generation in candidates) or "in no table of ours"
    by_flags = " or ".join(known.name for known in alike if known.vendor == cpu.vendor) or "none"
    look.not_known("cpu.codename", f"{numbers} is {by_numbers}, by its flags it is {by_flags}")
    return None


def _arm_codename(look: Look, info: CpuInfo, flags: frozenset[str]) -> str | None:
    """The cores by their part numbers; several names where the cores differ."""
    implementer = whole_number(info.first("CPU implementer"), base=16)
    cores = {(core.implementer, core.part): core for core in processors().arm}
    names = []
    for text in info.distinct("CPU part"):
        core = cores.get((implementer or 0, whole_number(text, base=16) or 0))
        if core is None or not flags.issuperset(core.flags.split()):
            look.not_known("cpu.codename", f"part {text} with these flags is in no table of ours")
            return None
        names.append(core.name)
    if not names:
        look.not_known("cpu.codename", f"{CPUINFO} tells no part number")
    return " + ".join(names) or None
