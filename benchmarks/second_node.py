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

RATES = (None, "500mbit")
"""Of the network, in the words of tc; None is as it is."""

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
    for rate in RATES:
        with two_hosts(alpha=Odd(cpus=(first,)), beta=Odd(cpus=(second,))) as hosts:
            for host in hosts.names if rate else ():
                hosts.shape(host, rate)
            result = tuned(hosts)
        best, gain = result["best"]["plan"]["nodes"], result["speedup"]
        print(
            f"{rate or 'as it is':>14}  best: {best} node{'s' if best > 1 else ''}, "
            f"{gain['ratio']:.2f} times today's one ({gain['low']:.2f}-{gain['high']:.2f})"
            if gain
            else result["not_compared"],
            flush=True,
        )


if __name__ == "__main__":
    main()
