"""What ``lscpu --parse=CPU,CORE,SOCKET,NODE`` says of a machine, as the measure of ours."""

from __future__ import annotations

from typing import Any

from cputune.text import cpulist

COMMAND = "lscpu --parse=CPU,CORE,SOCKET,NODE"


def rows(text: str) -> list[tuple[int, int, int, int]]:
    """CPU, core, socket and node of each online CPU."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    read = [[int(field) for field in line.split(",")] for line in lines]
    return [(cpu, core, socket, node) for cpu, core, socket, node in read]


def assert_as_lscpu(topology: dict[str, Any], text: str) -> None:
    """Every count, the CPUs and the nodes of a document's topology are those of lscpu."""
    told = rows(text)
    threads = [sum(row[1] == core for row in told) for core in {row[1] for row in told}]
    sockets = sorted({row[2] for row in told})
    assert topology["online"] == cpulist.render(row[0] for row in told)
    assert topology["logical_cpus"] == len(told)
    assert topology["physical_cores"] == len(threads)
    assert topology["threads_per_core"] == max(threads)
    assert topology["sockets"] == len(sockets)
    assert topology["cores_per_socket"] == [
        len({row[1] for row in told if row[2] == socket}) for socket in sockets
    ]
    for node in topology["numa_nodes"]:
        cpus = cpulist.render(row[0] for row in told if row[3] == node["id"])
        assert node["cpus"] == cpus, f"node {node['id']}"
