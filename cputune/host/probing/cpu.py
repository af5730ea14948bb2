"""Reads the processor: /proc/cpuinfo, its names and ISA flags.

``processors.toml`` has the generations and cores.
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
    """/proc/cpuinfo: the lines of each logical CPU, and in ``common`` those outside of any CPU."""

    processors: dict[int, dict[str, str]]
    common: dict[str, str]

    def first(self, *keys: str) -> str | None:
        """The value of the first of these keys that has one."""
        for key in keys:
            for block in list(self.processors.values()) + [self.common]:
                if block.get(key):
                    return block[key]
        return None

    def distinct(self, *keys: str) -> tuple[str, ...]:
        """All different values of these keys, over all CPUs."""
        values: dict[str, None] = {}
        for block in list(self.processors.values()) + [self.common]:
            for key in keys:
                if key in block:
                    values[block[key]] = None
        return tuple(values)

    def ids(self, *keys: str) -> dict[int, Hashable]:
        """The numbers of these keys, for each CPU that has all of them."""
        ids: dict[int, Hashable] = {}
        for cpu, block in self.processors.items():
            numbers = tuple(whole_number(block.get(key)) for key in keys)
            if None not in numbers:
                ids[cpu] = numbers
        return ids


def read_cpuinfo(look: Look) -> CpuInfo:
    """Read /proc/cpuinfo. Empty if it does not exist.

    A processor begins with ``processor : N`` and ends with an empty line. 32-bit Arm and Power have
    lines outside of processors.
    """
    common: dict[str, str] = {}
    processors: dict[int, dict[str, str]] = {}
    for text in re.split(r"\n\s*\n", look.text(CPUINFO) or ""):
        block = fields(text)
        number = whole_number(block.get("processor"))
        if number is not None and number >= 0:
            processors.setdefault(number, block)
        else:
            common = block | common
    return CpuInfo(processors=dict(sorted(processors.items())), common=common)


# First and last of a range of numbers.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One x86 generation: its model numbers, and which of the flags in ``telling`` it has."""

    name: str
    vendor: str
    family: int
    models: tuple[Span, ...]
    flags: str
    steppings: Span | None = None

    def has_model(self, cpu: Cpu) -> bool:
        """Whether vendor, family, model and stepping match this generation."""
        if (cpu.vendor, cpu.family) != (self.vendor, self.family) or cpu.model is None:
            return False
        if not any(first <= cpu.model <= last for first, last in self.models):
            return False
        first, last = self.steppings or (0, 255)
        return cpu.stepping is None or first <= cpu.stepping <= last


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCore:
    """A core of Arm, and the flags that it always has."""

    implementer: int
    part: int
    name: str
    flags: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """The content of ``processors.toml``: flags, generations and cores by their numbers."""

    flags: Mapping[str, str]
    x86: tuple[Generation, ...]
    implementers: Mapping[str, str]
    arm: tuple[ArmCore, ...]

    def training_flags(self) -> frozenset[str]:
        """Names of the kernel flags that matter for matmuls."""
        return frozenset(" ".join(self.flags.values()).split())


@cache
def processors() -> Processors:
    """Read the table. A test checks that it is valid."""
    return record_of(Processors, packaged_toml("cputune.host.probing", "processors.toml"))


def read_cpu(look: Look, info: CpuInfo) -> Cpu:
    """Name the processor. What /proc/cpuinfo does not contain is None, with the reason."""
    if not info.processors and not info.common:
        return _without_cpuinfo(look)
    # A thread may run on any core, so only flags of all cores count.
    flags: frozenset[str] = frozenset()
    flag_texts = info.distinct("flags", "Features")
    if flag_texts:
        flags = frozenset.intersection(*(frozenset(text.split()) for text in flag_texts))
    implementer = whole_number(info.first("CPU implementer"), base=16)
    x86 = info.first("flags") is not None
    model = whole_number(info.first("model"))
    if implementer is not None:
        model = whole_number(info.first("CPU part"), base=16)
    vendor = info.first("vendor_id")
    if not vendor:
        number = f"{implementer or 0:#x}"
        vendor = processors().implementers.get(number, info.first("CPU implementer"))
    hypervisor = None
    if x86:
        hypervisor = "hypervisor" in flags
    cpu = Cpu(
        vendor=vendor,
        model_name=info.first("model name", "Model Name", "cpu", "uarch"),
        codename=None,
        family=whole_number(info.first("cpu family")),
        model=model,
        stepping=whole_number(info.first("stepping", "CPU revision")),
        architecture=_architecture(info, flags),
        hypervisor=hypervisor,
        isa=_with_amx_fp16(look, flags),
        microcode=info.first("microcode"),
    )
    if implementer is None:
        codename = _x86_codename(look, cpu)
    else:
        codename = _arm_codename(look, info, flags)
    if not flags:
        look.not_known("cpu.isa", f"{CPUINFO} lists no flags")
    return _with_reasons(look, replace(cpu, codename=codename), f"{CPUINFO} does not contain it")


def _without_cpuinfo(look: Look) -> Cpu:
    """Ask py-cpuinfo, which queries the processor itself if /proc is not mounted."""
    info = look.host.cpu_info()
    flags = info.get("flags")
    if not isinstance(flags, list):
        flags = []
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
        isa=tuple(sorted(processors().training_flags() & set(flags))),
    )
    look.not_known("cpu.codename", look.why(CPUINFO))
    # The flags of py-cpuinfo end with avx512_vnni.
    look.not_known("cpu.isa", f"{look.why(CPUINFO)}, and py-cpuinfo does not report AMX and bf16")
    return _with_reasons(look, cpu, look.why(CPUINFO))


_FACTS = (
    "vendor",
    "model_name",
    "family",
    "model",
    "stepping",
    "architecture",
    "hypervisor",
    "microcode",
)


def _with_reasons(look: Look, cpu: Cpu, reason: str) -> Cpu:
    for fact in _FACTS:
        if getattr(cpu, fact) is None:
            look.not_known(f"cpu.{fact}", reason)
    return cpu


def _architecture(info: CpuInfo, flags: frozenset[str]) -> str | None:
    """The machine name as in ``uname -m``, derived from the keys of the file."""
    if info.first("flags") is not None:
        if "lm" in flags:
            return "x86_64"
        return "i686"
    if info.first("CPU implementer") is not None:
        if flags & {"asimd", "fp"}:
            return "aarch64"
        return "arm"
    if (info.first("cpu") or "").startswith("POWER"):
        return "ppc64"
    if (info.first("isa") or "").startswith("rv64"):
        return "riscv64"
    return None


def _with_amx_fp16(look: Look, flags: frozenset[str]) -> tuple[str, ...]:
    """The flags for training, with AMX fp16 if CPUID reports it.

    Linux has no name for that flag (``X86_FEATURE_AMX_FP16`` is hidden in
    arch/x86/include/asm/cpufeatures.h), so the processor is asked: leaf 7, subleaf 1, EAX bit 21
    (Intel SDM volume 2A, CPUID).
    """
    flags_for_training = flags & processors().training_flags()
    if "amx_tile" in flags_for_training and "amx_fp16" not in flags_for_training:
        registers = look.host.cpuid(7, 1)
        if registers is None:
            look.not_known(
                "cpu.isa.amx_fp16",
                "the kernel does not print this flag, and CPUID could not be asked (root can)",
            )
        elif registers[0] >> 21 & 1:
            flags_for_training |= {"amx_fp16"}
    return tuple(sorted(flags_for_training))


def _x86_codename(look: Look, cpu: Cpu) -> str | None:
    """The generation with this model number and these flags. Virtual machines may change one of
    them.
    """
    numbers = f"family {cpu.family}, model {cpu.model}"
    if cpu.family is None or cpu.model is None:
        look.not_known("cpu.codename", f"{CPUINFO} has no family and model")
        return None
    telling = set(cpu.isa) & set(processors().flags["telling"].split())
    candidates = [row for row in processors().x86 if row.has_model(cpu)]
    alike = [row for row in processors().x86 if set(row.flags.split()) == telling]
    if both := [generation.name for generation in candidates if generation in alike]:
        return both[0]
    by_numbers = " or ".join(one.name for one in candidates) or "not in our table"
    by_flags = " or ".join(one.name for one in alike if one.vendor == cpu.vendor) or "unknown"
    look.not_known("cpu.codename", f"{numbers} is {by_numbers}, by its flags it is {by_flags}")
    return None


def _arm_codename(look: Look, info: CpuInfo, flags: frozenset[str]) -> str | None:
    """The cores by their part numbers. Several names if the cores differ."""
    implementer = whole_number(info.first("CPU implementer"), base=16)
    cores = {(core.implementer, core.part): core for core in processors().arm}
    names = []
    for text in info.distinct("CPU part"):
        core = cores.get((implementer or 0, whole_number(text, base=16) or 0))
        if core is None or not flags.issuperset(core.flags.split()):
            look.not_known("cpu.codename", f"part {text} with these flags is not in our table")
            return None
        names.append(core.name)
    if not names:
        look.not_known("cpu.codename", f"{CPUINFO} has no part number")
    return " + ".join(names) or None
