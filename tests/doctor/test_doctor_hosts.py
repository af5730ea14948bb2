"""Each check of several hosts finds its difference, names the hosts, and is silent on likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clean_machine import CASCADE_LAKE_ISA, CLEAN, GIB, changed, topology
from nodes.fakes import FakeReach

from cputune.doctor import hosts as look
from cputune.doctor.finding import Finding, Severity
from cputune.doctor.hosts import CHECKS, SeenHost, look_at_hosts, own_findings
from cputune.errors import UsageError
from cputune.facts import Launcher
from cputune.remote.named import Node

BY_CODE = {check.code: check for check in CHECKS}
OPEN_MPI = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="openmpi4", version="4.1.4")
PLAIN: dict[str, Any] = {"facts": CLEAN, "python": "/venv/bin/python", "clock_offset_seconds": 0.0}


def host(name: str, **told: Any) -> SeenHost:
    return SeenHost(node=Node(name=name), seconds=0.1, **{**PLAIN, "machine": name, **told})


def found(*hosts: SeenHost) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(hosts)]


def with_facts(**changes: Any) -> dict[str, Any]:
    return {"facts": changed(**changes)}


def older() -> dict[str, Any]:
    cpu = replace(CLEAN.cpu, codename="Cascade Lake", isa=CASCADE_LAKE_ISA)
    return {"facts": replace(CLEAN, cpu=cpu)}


@pytest.mark.parametrize(
    ("code", "told", "words"),
    [
        ("hosts-same-machine", {"machine": "a"}, "a, c are the same machine"),
        (
            "hosts-architecture",
            {"facts": replace(CLEAN, cpu=replace(CLEAN.cpu, architecture="aarch64"))},
            "x86_64 on a, b; aarch64 on c",
        ),
        ("hosts-cpu", older(), "Sapphire Rapids on a, b; Cascade Lake on c; not all of amx_bf16"),
        (
            "hosts-cores",
            {"facts": replace(CLEAN, topology=topology(cores=24))},
            "2 × 28 cores, 2 threads each, 2 NUMA nodes on a, b; 2 × 24 cores",
        ),
        (
            "hosts-allowed-cpus",
            {"facts": replace(CLEAN, topology=topology(allowed=tuple(range(8))))},
            "0-111 on a, b; 0-7 on c",
        ),
        (
            "hosts-limits",
            with_facts(limits={"open_files": 1024}),
            "open files: 65536 on a, b; 1024 on c",
        ),
        (
            "hosts-limits",
            with_facts(memory={"total_bytes": 256 * GIB}),
            "memory: 512.0 GiB on a, b; 256.0 GiB on c",
        ),
        (
            "hosts-settings",
            with_facts(settings={"governor": "powersave"}),
            "governor: performance on a, b; powersave on c",
        ),
        (
            "hosts-python",
            {"python": "/usr/bin/python3"},
            f"/venv/bin/python ({CLEAN.python}) on a, b; /usr/bin/python3 ({CLEAN.python}) on c",
        ),
        ("hosts-training-stack", with_facts(packages={"torch": "2.6.0"}), "2.6.0 on c"),
        ("hosts-training-stack", with_facts(packages={"torch": None}), "none on c"),
        ("hosts-libraries", with_facts(packages={"transformers": "4.46.0"}), "4.46.0 on c"),
        (
            "hosts-mpi",
            {"facts": replace(CLEAN, launchers=(OPEN_MPI,))},
            "Open MPI 4.1.4 on c",
        ),
        ("hosts-clock", {"clock_offset_seconds": 600.0}, "10 min ahead on c"),
        ("hosts-clock", {"clock_offset_seconds": -3.0}, "3.0 s behind on c"),
        (
            "hosts-unreachable",
            {"facts": None, "reason": "it refuses our key", "cure": "ssh-copy-id c"},
            "c: it refuses our key",
        ),
    ],
)
def test_a_difference_is_found_and_the_hosts_are_named(
    code: str, told: dict[str, Any], words: str
) -> None:
    findings = found(host("a"), host("b"), host("c", **told))
    assert [finding.code for finding in findings] == [code]
    assert words in findings[0].evidence


def test_hosts_that_are_alike_have_nothing() -> None:
    assert found(host("a"), host("b", clock_offset_seconds=0.4)) == []
    memory = changed(memory={"total_bytes": 511 * GIB})
    assert found(host("a"), host("b", facts=memory)) == []


def test_what_is_not_known_is_no_difference() -> None:
    unknown = replace(
        CLEAN,
        cpu=replace(CLEAN.cpu, codename=None, model_name=None, isa=(), architecture=None),
        topology=replace(CLEAN.topology, cores_known=False, online=(), allowed=()),
        memory=replace(CLEAN.memory, total_bytes=None),
    )
    nothing = {"machine": None, "clock_offset_seconds": None, "python": None}
    assert found(host("a"), host("b", facts=unknown, **nothing)) == []


def test_our_own_clock_alone_is_nobodys_fault() -> None:
    assert found(*(host(name, clock_offset_seconds=60.0) for name in "abc")) == []


def test_a_clock_is_believed_no_further_than_it_was_read() -> None:
    slow = {"clock_offset_seconds": 1.5, "clock_uncertainty_seconds": 0.8}
    assert found(host("a"), host("b"), host("c", **slow)) == []


def test_hosts_with_one_reason_are_told_together() -> None:
    def away(name: str) -> SeenHost:
        cure = f"ssh-copy-id {name}"
        return host(name, facts=None, reason="it refuses our key", cure=cure)

    (finding,) = found(host("a"), *(away(f"n{number}") for number in range(40)))
    assert finding.evidence == "n0, n1, n2, n3, n4 and 35 more: it refuses our key"
    assert finding.remedy == "ssh-copy-id HOST."


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ({"/l/run.sh": "x"}, {"/l/run.sh": None}, "/l/run.sh is not on b"),
        ({"/l/run.sh": "x"}, {"/l/run.sh": "y"}, "/l/run.sh differs: a / b"),
        ({"/l/run.sh": "x"}, {"/l/run.sh": "x"}, ""),
    ],
)
def test_a_launch_lies_on_every_host(
    here: dict[str, str], there: dict[str, str | None], words: str
) -> None:
    said = [f.evidence for f in found(host("a", launch=here), host("b", launch=there))]
    assert said == ([words] if words else [])


def test_what_several_hosts_have_by_themselves_is_told_once() -> None:
    finding = BY_CODE["hosts-clock"].finding("too slow", severity=Severity.ADVICE)
    told = own_findings([host(name, findings=(finding,)) for name in ("a", "b", "c")])
    assert [one.evidence for one in told] == ["a: too slow (also on b, c)"]


def test_hosts_are_looked_at_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo\n")
    refusing = ("sh", "-c", "echo no >&2; exit 255")
    reach = FakeReach(instead={"c": refusing})
    nodes = [Node(name=name) for name in ("a", "b", "c")]
    seen = look_at_hosts(nodes, reach, launch=str(tmp_path))
    assert [one.facts is not None for one in seen.hosts] == [True, True, False]
    assert [f.code for f in seen.findings][:2] == ["hosts-unreachable", "hosts-same-machine"]
    assert set(seen.hosts[0].launch) == {str(tmp_path), str(tmp_path / "run.sh")}
    assert abs(seen.hosts[0].clock_offset_seconds or 0.0) < 5


def test_a_python_that_is_not_there_is_a_finding() -> None:
    seen = look_at_hosts([Node(name="a")], FakeReach(), python="/no/python")
    assert "there is no /no/python" in _reason(seen.hosts)
    with pytest.raises(UsageError, match="there is nothing at"):
        look_at_hosts([Node(name="a")], FakeReach(), launch="/no/launch")


def _reason(hosts: Sequence[SeenHost]) -> str:
    return hosts[0].reason or ""


def test_a_launch_that_is_a_whole_disk_is_refused_at_once(tmp_path: Path) -> None:
    for number in range(look.MOST_FILES + 1):
        (tmp_path / str(number)).touch()
    with pytest.raises(UsageError, match="holds more than 500 files"):
        look.launch_paths(str(tmp_path))
