"""Each check of several hosts finds its difference, names the hosts, and is silent on likes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clean_machine import CASCADE_LAKE_ISA, CLEAN, GIB, changed, topology
from golden_texts import Golden
from nodes.fakes import FakeReach
from rows import every_row

from cputune import Finding, Node, SeenHost, Severity
from cputune.doctor.hosts import CHECKS, findings_of_hosts, look_at_hosts

BY_CODE = {check.code: check for check in CHECKS}
PLAIN: dict[str, Any] = {"facts": CLEAN, "python": "/venv/bin/python"}


def host(name: str, **told: Any) -> SeenHost:
    plain = {**PLAIN, "machine": f"boot {name}"}
    return SeenHost(node=Node(name=name), seconds=0.1, **{**plain, **told})


def found(*hosts: SeenHost) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(hosts)]


def with_facts(**changes: Any) -> dict[str, Any]:
    return {"facts": changed(**changes)}


OLDER = with_facts(cpu={"codename": "Cascade Lake", "isa": CASCADE_LAKE_ISA})


@every_row(
    ("code", "told", "words"),
    [
        ("hosts-architecture", with_facts(cpu={"architecture": "aarch64"}), "aarch64 on c"),
        (
            "hosts-cpu",
            OLDER,
            "Cascade Lake on c. avx512_bf16: yes on a, b; no on c. amx_bf16",
        ),
        (
            "hosts-cores",
            with_facts(topology=topology(cores=24)),
            "2 × 28 cores, 2 threads each, 2 NUMA nodes on a, b; 2 × 24 cores",
        ),
        (
            "hosts-cores",
            with_facts(topology=topology(allowed=tuple(range(8)))),
            "allowed CPUs: 0-111 on a, b; 0-7 on c",
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
            "hosts-python",
            {"python": "/usr/bin/python3"},
            f"/venv/bin/python ({CLEAN.python}) on a, b; /usr/bin/python3 ({CLEAN.python}) on c",
        ),
        ("hosts-training-stack", with_facts(packages={"torch": "2.6.0"}), "2.6.0 on c"),
        ("hosts-training-stack", with_facts(packages={"torch": None}), "none on c"),
        ("hosts-libraries", with_facts(packages={"transformers": "4.46.0"}), "4.46.0 on c"),
        (
            "hosts-unreachable",
            {"facts": None, "reason": "it rejects our key", "remedy": "ssh-copy-id c"},
            "c: it rejects our key",
        ),
        (
            "hosts-not-examined",
            {"facts": None, "reason": "its Python is 3.6", "started": True},
            "c: its Python is 3.6",
        ),
        ("hosts-one-machine", {"machine": "boot a"}, "a, c are one machine"),
    ],
)
def test_a_difference_is_found_and_the_hosts_are_named(
    code: str, told: dict[str, Any], words: str
) -> None:
    findings = found(host("a"), host("b"), host("c", **told))
    assert [finding.code for finding in findings] == [code]
    assert words in findings[0].evidence


def test_hosts_that_are_alike_have_nothing() -> None:
    assert found(host("a"), host("b")) == []
    memory = changed(memory={"total_bytes": 511 * GIB})
    assert found(host("a"), host("b", facts=memory)) == []


def test_what_is_not_known_is_no_difference() -> None:
    unknown = replace(
        CLEAN,
        cpu=replace(CLEAN.cpu, codename=None, model_name=None, isa=(), architecture=None),
        topology=replace(CLEAN.topology, cores_known=False, online=(), allowed=()),
        memory=replace(CLEAN.memory, total_bytes=None),
    )
    assert found(host("a"), host("b", facts=unknown, python=None)) == []


def test_hosts_with_one_reason_are_reported_together(golden: Golden) -> None:
    def away(name: str) -> SeenHost:
        remedy = f"ssh-copy-id {name}"
        return host(name, facts=None, reason="it rejects our key", remedy=remedy)

    (finding,) = found(host("a"), *(away(f"n{number}") for number in range(40)))
    golden(finding.evidence)
    golden(finding.remedy)


def test_many_hosts_that_are_no_range_are_cut(golden: Golden) -> None:
    names = [f"{letter}-host" for letter in "abcdefgh"]
    away = [host(name, facts=None, reason="no") for name in names]
    (finding,) = found(host("z"), *away)
    golden(finding.evidence)


def test_what_several_hosts_have_by_themselves_is_reported_once() -> None:
    finding = BY_CODE["hosts-cores"].finding("too slow", severity=Severity.ADVICE)
    told = findings_of_hosts([host(name, findings=(finding,)) for name in ("a", "b", "c")])
    assert [one.evidence for one in told] == ["a: too slow (also on b, c)"]


def test_hosts_are_looked_at_side_by_side() -> None:
    reach = FakeReach(instead={"c": ("sh", "-c", "echo no >&2; exit 255")})
    seen = look_at_hosts([Node(name=name) for name in ("a", "b", "c")], reach, seconds=9.0)
    assert [one.facts is not None for one in seen.hosts] == [True, True, False]
    assert {"hosts-unreachable", "hosts-name-unknown"} <= {f.code for f in seen.findings}


def test_a_python_that_is_not_there_is_a_finding(golden: Golden) -> None:
    seen = look_at_hosts([Node(name="a")], FakeReach(), python="/no/python")
    golden(str(seen.hosts[0].reason))
