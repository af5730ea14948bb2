"""Today's machines, bare, virtual, in a container and a pod: what the doctor makes of them.

What is said was read by eye; it lies in tests/golden/machines/, and ``--update-golden`` writes it.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from hosts.builder import Cgroup, FakeTree, machine
from hosts.known import KNOWN
from rich.console import Console
from rows import every_row

from cputune import diagnose, probe
from cputune.doctor.variables import advised
from cputune.host import Package
from cputune.report.diagnosis import blocks
from cputune.report.writing import print_blocks

GOLDEN = Path(__file__).parent.parent / "golden" / "machines"
PACKAGES = tuple(
    Package(name=name, version=version, location="/venv", installer="pip")
    for name, version in (
        *(("torch", "2.13.0+cpu"), ("transformers", "5.23.0"), ("accelerate", "1.15.0")),
    )
)
MACHINES = (
    *("granite-rapids-snc3", "sierra-forest", "turin-dense", "graviton4", "grace"),
    "xeon-max-flat",
)
WHERE: dict[str, dict[str, Any]] = {
    "bare": {},
    "vm": {
        "sockets": 1,
        "nodes": 1,
        "cores": 16,
        "siblings": "together",
        "hypervisor": True,
        "memory_only_nodes": 0,
    },
    "container": {"cgroup": Cgroup(path="/docker/a", quota=32.0, memory_bytes=64 << 30)},
    "pod": {
        "cgroup": Cgroup(path="/kubepods.slice/a", cpuset="0-15", memory_bytes=32 << 30),
        "status_allowed": "0-15",
    },
}


class FakeMachine(FakeTree):
    """A machine in memory that has today's stack."""

    def distributions(self) -> tuple[Package, ...]:
        return PACKAGES

    def python_version(self) -> str:
        return "3.12.4"


def told(name: str, where: str) -> str:
    """What people read of a machine, in a terminal of 80 columns, and the layout it is advised."""
    host, built = FakeMachine(), machine(None, **{**KNOWN[name], **WHERE[where]})
    assert isinstance(built, FakeTree)
    host.files, host.children = built.files, built.children
    facts = probe(host)
    out = io.StringIO()
    terminal = Console(file=out, width=80, color_system=None, force_terminal=True)
    print_blocks(blocks(diagnose(facts)), terminal)
    advice = advised(facts)
    # a new check passes on these machines, and changes nothing else
    text = re.sub(r"(?m)^- \d+ checks passed", "- N checks passed", out.getvalue())
    return f"{text}\nadvised: {advice.ranks} × {advice.threads} threads ({advice.why})\n"


@every_row("where", WHERE)
@every_row("name", MACHINES)
def test_a_machine_is_reported_as_it_was_reviewed(
    name: str, where: str, request: pytest.FixtureRequest
) -> None:
    said, path = told(name, where), GOLDEN / f"{name}-{where}.txt"
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")
    columns = [len(line) for line in said.split("\n\nadvised:")[0].splitlines()]
    assert where == "container" or sum(-(-max(1, length) // 80) for length in columns) <= 25


def test_every_golden_file_is_of_a_machine() -> None:
    made = {f"{name}-{where}" for name in MACHINES for where in WHERE}
    assert {path.stem for path in GOLDEN.iterdir()} == made
