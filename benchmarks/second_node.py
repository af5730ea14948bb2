"""Is the second node worth it? Two hosts of one CPU each, with a fast and a slow network.

``PYTHONPATH=tests python benchmarks/second_node.py`` (root; ``tests/nodes/install.py`` says what is
needed) tunes the small recipe over both hosts, and prints on how many nodes the best plan runs.
It wants a quiet machine with two cores or more: the hosts share its memory, and what else computes
takes a CPU from one of them.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nodes.cluster import Cluster, two_hosts
from nodes.namespaces import Odd

NETWORKS: tuple[tuple[str, float] | None, ...] = (None, ("500mbit", 0.0))
"""Rate (in the words of tc) and delay in seconds; None is as it is.

Where the kernel has no netem the delay is made by a program (``tests/nodes/delay.py``). It takes of
the CPUs that the ranks have, who are then delayed and not measured: so there is none here.
"""

TUNE = ("--budget", "3", "--knobs", "nodes", "--fix", "precision=fp32", "--share-machine")


def tuned(hosts: Cluster) -> Any:
    """The document of what was tuned over both hosts."""
    with tempfile.TemporaryDirectory() as folder:
        where = ("--hosts", ",".join(hosts.names), "--ssh", shlex.join(hosts.ssh))
        subprocess.run(
            [sys.executable, "-m", "cputune", "tune", "--no-history", *where, *TUNE],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            check=True,
        )
        return json.loads(Path(folder, "cputune.json").read_text())


def main() -> None:
    """A row for each network."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    for network in NETWORKS:
        with two_hosts(alpha=Odd(cpus=(first,)), beta=Odd(cpus=(second,))) as hosts:
            for host in hosts.names if network else ():
                hosts.shape(host, *network)
            result = tuned(hosts)
        named = f"{network[0]}, {1000 * network[1]:.0f} ms" if network else "as it is"
        best, gain = result["best"]["plan"]["nodes"], result["speedup"]
        print(
            f"{named:>14}  best: {best} node{'s' if best > 1 else ''}, {gain['ratio']:.2f} times "
            f"today's one ({gain['low']:.2f}-{gain['high']:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
