"""The hosts of the other tests go without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from nodes.cluster import cluster
from nodes.namespaces import CPUSETS, until
from nodes.numbers import BASE, leg

pytestmark = pytest.mark.nodes


def test_nothing_stays_of_one_whose_owner_was_killed(tmp_path: Path) -> None:
    text = """
        import os, time
        from nodes.cluster import two_hosts
        from nodes.namespaces import Odd
        with two_hosts(beta=Odd(cpus=(%d,))) as hosts:
            hosts.start("beta", ["sleep", "4321"])
            print(hosts.number, flush=True)
            time.sleep(99)
    """
    script = tmp_path / "owner.py"
    script.write_text(textwrap.dedent(text % min(os.sched_getaffinity(0))))
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": tests},
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        number = int(owner.stdout.readline())
        until(lambda: sleeping(4321))
        owner.kill()
    until(lambda: not sleeping(4321))
    until(lambda: leg(number) not in psutil.net_if_addrs())
    with cluster("alpha"):
        assert not list(CPUSETS.glob(f"cputune-nodes-{number}-beta"))
    assert not (BASE / str(number)).exists()


def sleeping(seconds: int) -> bool:
    argv = ["sleep", str(seconds)]
    return any(process.info["cmdline"] == argv for process in psutil.process_iter(["cmdline"]))
