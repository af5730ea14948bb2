"""Names, numbers and flags of processors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hosts.builder import ARM_PROCESSORS, PROCESSORS, FakeTree, machine

from cputune.probing import probe
from cputune.probing.recording import record
from cputune.report.machine import precision_units


@pytest.mark.parametrize(
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
    assert probe(machine(tmp_path, cores=2, like=like)).cpu.codename == codename


def test_a_generation_is_not_named_where_the_flags_contradict(tmp_path: Path) -> None:
    """A hypervisor, or an old kernel, that hides AMX on Sapphire Rapids."""
    flags = PROCESSORS["cascade-lake"].flags

    facts = probe(machine(tmp_path, like="sapphire-rapids", flags=flags, hypervisor=True))

    assert facts.cpu.codename is None
    reason = facts.why_unknown("cpu.codename") or ""
    assert "Sapphire Rapids" in reason
    assert "Cascade Lake" in reason


def test_flags_alone_name_nothing(tmp_path: Path) -> None:
    """Some virtual machines show a model number that no server has, and AMX."""
    flags = PROCESSORS["sapphire-rapids"].flags

    facts = probe(machine(tmp_path, like="alder-lake", flags=flags))

    assert facts.cpu.codename is None
    assert "Sapphire Rapids or Emerald Rapids" in (facts.why_unknown("cpu.codename") or "")
    assert facts.cpu.has("amx_bf16")


def test_only_flags_that_matter_are_kept_sorted(tmp_path: Path) -> None:
    isa = probe(machine(tmp_path, like="cascade-lake")).cpu.isa

    assert "avx512_vnni" in isa
    assert "fpu" not in isa
    assert list(isa) == sorted(isa)


def test_flags_count_only_where_every_core_has_them(tmp_path: Path) -> None:
    block = "processor : {}\nvendor_id : GenuineIntel\nflags : {}\n\n"
    text = block.format(0, "avx2 avx512f") + block.format(1, "avx2")

    assert probe(machine(tmp_path, cores=2, files={"proc/cpuinfo": text})).cpu.isa == ("avx2",)


def test_arm_names_its_implementer_and_no_model(tmp_path: Path) -> None:
    cpu = probe(machine(tmp_path, like="graviton3")).cpu

    assert (cpu.vendor, cpu.model_name, cpu.family) == ("ARM", None, None)
    assert cpu.model == ARM_PROCESSORS["graviton3"][1]
    assert cpu.architecture == "aarch64"
    assert {"bf16", "i8mm", "sve"} <= set(cpu.isa)
    assert cpu.hypervisor is None


def test_an_old_arm_board_lists_what_is_common_at_the_end(tmp_path: Path) -> None:
    text = (
        "Processor\t: ARMv7 Processor rev 2 (v7l)\n"
        "processor\t: 0\nBogoMIPS\t: 1992.29\n\nprocessor\t: 1\nBogoMIPS\t: 1997.60\n\n"
        "Features\t: swp half thumb neon vfpv4\nCPU implementer\t: 0x51\n"
        "CPU architecture: 7\nCPU part\t: 0x06f\nCPU revision\t: 2\n\nHardware\t: x\nSerial\t: 0\n"
    )

    facts = probe(machine(tmp_path, cores=2, files={"proc/cpuinfo": text}))

    assert facts.cpu.vendor == "Qualcomm"
    assert facts.cpu.architecture == "arm"
    assert facts.cpu.isa == ("neon", "vfpv4")
    assert facts.cpu.codename is None


def test_cores_of_two_kinds_are_both_named(tmp_path: Path) -> None:
    features = ARM_PROCESSORS["graviton4"][2]
    block = f"processor : {{}}\nFeatures : {features}\nCPU implementer : 0x41\nCPU part : {{}}\n\n"
    text = block.format(0, "0xd87") + block.format(1, "0xd85")

    facts = probe(machine(tmp_path, cores=2, files={"proc/cpuinfo": text}))

    assert facts.cpu.codename == "Cortex-A725 + Cortex-X925"


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


class FakeBoard(FakeTree):
    """A live machine that lscpu (and so py-cpuinfo) can name; it counts how often it is asked."""

    live = True
    asked = 0

    def cpu_info(self) -> Mapping[str, object]:
        self.asked += 1
        return {"brand_raw": "Cortex-A999"}


@pytest.mark.parametrize(
    ("part", "asked", "name"), [("0xd4f", 0, None), ("0xfff", 1, "Cortex-A999")]
)
def test_py_cpuinfo_names_what_neither_the_kernel_nor_our_tables_name(
    tmp_path: Path, part: str, asked: int, name: str | None
) -> None:
    board = FakeBoard()
    features = ARM_PROCESSORS["graviton4"][2]
    text = f"processor : 0\nFeatures : {features}\nCPU implementer : 0x41\nCPU part : {part}\n"
    board.write("proc/cpuinfo", text)

    facts = probe(board)

    assert (board.asked, facts.cpu.model_name) == (asked, name)
    assert probe(record(board, tmp_path / "recording")).cpu == facts.cpu
    assert (facts.why_unknown("cpu.model_name") is None) == (name is not None)


@pytest.mark.parametrize(
    ("text", "vector"),
    [
        ("Features : swp neon vfpv4\nCPU implementer : 0x51\n", "NEON"),
        ("Features : swp vfpv4\nCPU implementer : 0x51\n", "VFP"),
        ("vendor_id : IBM/S390\nfeatures : esan3 zarch vx vxe\n", "vector facility"),
        ("flags : sse sse2 sse4_2 avx lm\n", "AVX"),
        ("flags : sse sse2 sse4_2 lm\n", "SSE"),
    ],
)
def test_the_vector_unit_is_that_of_the_architecture(
    tmp_path: Path, text: str, vector: str
) -> None:
    facts = probe(machine(tmp_path, cores=1, files={"proc/cpuinfo": f"processor : 0\n{text}\n"}))

    assert precision_units(facts)["fp32"].startswith(vector)


@pytest.mark.parametrize(
    ("text", "vendor", "name"),
    [
        (
            "processor  : 0\nvendor     : GenuineIntel\narch       : IA-64\n"
            "family     : Itanium 2\nmodel      : 0\n\n",
            "GenuineIntel",
            None,
        ),
        ("cpu\t\t: UltraSparc T1 (Niagara)\nncpus probed\t: 32\n", None, "UltraSparc T1 (Niagara)"),
        (
            "processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc\nuarch\t\t: sifive,u74-mc\n\n",
            None,
            "sifive,u74-mc",
        ),
        (
            "processor\t: 0\nCPU Family\t\t: Loongson-64bit\nModel Name\t\t: Loongson-3A5000\n\n",
            None,
            "Loongson-3A5000",
        ),
    ],
)
def test_other_architectures_are_read_kindly(
    tmp_path: Path, text: str, vendor: str | None, name: str | None
) -> None:
    facts = probe(machine(tmp_path, cores=1, files={"proc/cpuinfo": text}))

    assert facts.cpu.vendor == vendor
    assert facts.cpu.model_name == name
    assert facts.cpu.codename is None
    assert facts.why_unknown("cpu.codename") is not None
