"""Names, numbers and flags of processors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.builder import PROCESSORS, machine
from rows import every_row

from cputune import probe
from cputune.report.machine_text import precision_units


@every_row(
    ("like", "codename"),
    [
        ("broadwell", "Broadwell"),
        ("skylake", "Skylake-SP"),
        ("cascade-lake", "Cascade Lake"),
        ("cooper-lake", "Cooper Lake"),
        ("ice-lake", "Ice Lake-SP"),
        ("sapphire-rapids", "Sapphire Rapids"),
        ("emerald-rapids", "Emerald Rapids"),
        ("granite-rapids", "Granite Rapids"),
        ("sierra-forest", "Sierra Forest"),
        ("zen2", "Zen 2"),
        ("zen3", "Zen 3"),
        ("zen4", "Zen 4"),
        ("zen5", "Zen 5"),
        ("graviton2", "Neoverse N1 (Graviton 2)"),
        ("graviton3", "Neoverse V1 (Graviton 3)"),
        ("graviton4", "Neoverse V2 (Graviton 4, Grace)"),
    ],
)
def test_generations_by_model_and_flags(tmp_path: Path, like: str, codename: str) -> None:
    cpu = probe(machine(tmp_path, cores=2, like=like)).cpu
    assert cpu.codename == codename
    assert cpu.architecture == ("aarch64" if like.startswith("graviton") else "x86_64")


def test_a_generation_is_not_named_if_the_flags_contradict(tmp_path: Path) -> None:
    """A hypervisor, or an old kernel, that hides AMX on Sapphire Rapids."""
    flags = PROCESSORS["cascade-lake"].flags

    facts = probe(machine(tmp_path, like="sapphire-rapids", flags=flags, hypervisor=True))

    assert facts.cpu.codename is None
    reason = facts.why_unknown("cpu.codename") or ""
    assert "Sapphire Rapids" in reason
    assert "Cascade Lake" in reason


def test_flags_count_only_if_every_core_has_them(tmp_path: Path) -> None:
    block = "processor : {}\nvendor_id : GenuineIntel\nflags : {}\n\n"
    text = block.format(0, "avx2 avx512f") + block.format(1, "avx2")

    assert probe(machine(tmp_path, cores=2, files={"proc/cpuinfo": text})).cpu.isa == ("avx2",)


def test_amx_fp16_comes_from_cpuid_alone(tmp_path: Path) -> None:
    shown = probe(
        machine(
            tmp_path / "a", like="granite-rapids", record={"cpuid": {"7.1": [1 << 21, 0, 0, 0]}}
        )
    )
    absent = probe(
        machine(tmp_path / "b", like="sapphire-rapids", record={"cpuid": {"7.1": [0, 0, 0, 0]}})
    )
    unasked = probe(machine(tmp_path / "c", like="granite-rapids"))
    without_amx = probe(machine(tmp_path / "d", like="zen4"))

    assert shown.cpu.has("amx_fp16")
    assert not absent.cpu.has("amx_fp16")
    assert absent.why_unknown("cpu.isa.amx_fp16") is None
    assert not unasked.cpu.has("amx_fp16")
    assert "CPUID" in (unasked.why_unknown("cpu.isa.amx_fp16") or "")
    assert without_amx.why_unknown("cpu.isa.amx_fp16") is None


@pytest.mark.parametrize(
    ("text", "vector"),
    [
        ("Features : swp neon vfpv4\nCPU implementer : 0x51\n", "NEON"),
        ("Features : swp vfpv4\nCPU implementer : 0x51\n", "VFP"),
        ("flags : sse sse2 sse4_2 avx lm\n", "AVX"),
        ("flags : sse sse2 sse4_2 lm\n", "SSE"),
    ],
)
def test_the_vector_unit_is_that_of_the_architecture(
    tmp_path: Path, text: str, vector: str
) -> None:
    facts = probe(machine(tmp_path, cores=1, files={"proc/cpuinfo": f"processor : 0\n{text}\n"}))

    assert precision_units(facts)["fp32"].startswith(vector)
