"""Is the second node worth it? Two hosts of one CPU each, with a fast and a slow network.

``PYTHONPATH=tests python benchmarks/second_node.py`` (root; ``tests/nodes/install.py`` says what is
needed) tunes the small recipe over both hosts, and prints how fast the best plan of one node
and of two ran. On a quiet machine with two cores or more: the hosts share its memory, and what else
computes takes a CPU from one of them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from nodes.cluster import Cluster, two_hosts
from nodes.namespaces import Odd

NETWORKS: tuple[tuple[str, float] | None, ...] = (None, ("1gbit", 0.005))
"""Rate (in the words of tc) and delay in seconds; None is as it is."""

TUNE = ("--budget", "3", "--knobs", "nodes", "--fix", "precision=fp32", "--share-machine")


def speeds(hosts: Cluster) -> dict[int, float]:
    """Samples per second by the number of nodes, of plans that are bound."""
    with tempfile.TemporaryDirectory() as folder:
        where = ("--hosts", ",".join(hosts.names), "--ssh", shlex.join(hosts.ssh))
        subprocess.run(
            [sys.executable, "-m", "cputune", "tune", "--no-history", *where, *TUNE],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            check=True,
        )
        result = json.loads(Path(folder, "cputune.json").read_text())
    return {
        trial["plan"]["nodes"]: trial["samples_per_second"]["median"]
        for trial in result["trials"]
        if trial["samples_per_second"] and not trial["plan"]["as_found"]
    }


def main() -> None:
    """A row for each network."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    for network in NETWORKS:
        with two_hosts(alpha=Odd(cpus=(first,)), beta=Odd(cpus=(second,))) as hosts:
            for host in hosts.names if network else ():
                hosts.shape(host, *network)
            found = speeds(hosts)
        named = f"{network[0]}, {1000 * network[1]:.0f} ms" if network else "as it is"
        ratio = found[2] / found[1]
        print(f"{named:>14}  1 node {found[1]:.3g}  2 nodes {found[2]:.3g}  ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
