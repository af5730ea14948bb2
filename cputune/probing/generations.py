"""CPU generations: model numbers and the flags that belong to them, as data.

Sources: LLVM ``X86TargetParser.cpp`` and compiler-rt ``cpu_model/x86.c``, Intel's
perfmon ``mapfile.csv``, archspec's ``microarchitectures.json`` for Arm cores. The map
from core to Graviton generation is AWS's own.
"""

from __future__ import annotations

from dataclasses import dataclass

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
