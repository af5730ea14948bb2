"""The hosts of the other tests: they are apart, find each other, and go without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from in_process import ran
from nodes.cluster import Cluster, cluster, two_hosts
from nodes.namespaces import CPUSETS, Odd, until
from nodes.numbers import BASE, leg

pytestmark = pytest.mark.nodes

NAME_OF = "import socket; print(socket.gethostbyname(socket.gethostname()))"
REACH = """
import socket, sys, time
started = time.monotonic()
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()
except OSError as error:
    print(type(error).__name__)
else:
    print(f"{time.monotonic() - started:.4f}")
"""


def reach(hosts: Cluster, here: str, there: str, port: int = 22) -> str:
    return hosts.run(here, [sys.executable, "-c", REACH, there, str(port)]).stdout.strip()


def test_each_has_a_name_and_an_address_of_its_own(hosts: Cluster) -> None:
    for name in hosts.names:
        assert hosts.run(name, ["hostname"]).stdout.strip() == name
        seen = hosts.run(name, [sys.executable, "-c", NAME_OF]).stdout.strip()
        assert seen == hosts.addresses[name]
        assert sorted(os.listdir("/sys/class/net")) != ["eth0", "lo"]
        assert hosts.run(name, ["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]


def test_ssh_goes_from_one_to_the_other_and_from_here(hosts: Cluster) -> None:
    assert hosts.run("alpha", ["ssh", "beta", "hostname"]).stdout.strip() == "beta"
    told = ran([*hosts.ssh, "beta", "echo $TMPDIR"])
    assert told.stdout.strip() == str(hosts.folder / "beta" / "tmp"), told.stderr


def test_what_runs_on_a_host_is_seen_and_is_apart(hosts: Cluster) -> None:
    assert hosts.left("beta") == []
    sleeping = hosts.start("beta", ["sleep", "99"])
    itself = hosts.itself(sleeping)
    until(lambda: hosts.left("beta") == ["sleep 99"])
    assert hosts.left("alpha") == []
    assert "sleep 99" not in hosts.run("alpha", ["ps", "ax"]).stdout
    itself.kill()
    assert sleeping.wait(10) != 0
    sleeping.communicate()
    assert hosts.left("beta") == []


def test_a_shaped_network_answers_late(hosts: Cluster) -> None:
    for name in hosts.names:
        hosts.shape(name, "1gbit", 0.02)
    assert float(reach(hosts, "alpha", "beta")) >= 0.04
    for name in hosts.names:
        hosts.unshape(name)
    assert float(reach(hosts, "alpha", "beta")) < 0.04


def test_a_host_may_be_odd(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    (tmp_path / "launch").mkdir()
    odd = Odd(
        cpus=(first,),
        versions={"transformers": "4.46.0"},
        first_in_hosts="127.0.1.1 beta",
        hidden=(tmp_path,),
    )
    with two_hosts(beta=odd) as hosts:
        own = hosts.run("beta", [sys.executable, "-c", NAME_OF]).stdout.strip()
        cpus = hosts.run("beta", ["nproc"]).stdout.strip()
        wanted = ["taskset", "-c", str(max(os.sched_getaffinity(0))), "true"]
        refused = hosts.run("beta", wanted, check=False)
        print_version = "from importlib.metadata import version; print(version('transformers'))"
        version = hosts.run("beta", [sys.executable, "-c", print_version]).stdout.strip()
        assert (own, cpus, version) == ("127.0.1.1", "1", "4.46.0")
        assert refused.returncode == 1
        assert hosts.run("beta", ["ls", str(tmp_path)]).stdout == ""
        plain = hosts.run("alpha", ["ls", str(tmp_path)]).stdout
        assert plain.split() == ["launch"]
        assert hosts.run("alpha", [sys.executable, "-c", print_version]).stdout.strip() == (
            metadata.version("transformers")
        )
    assert not list(CPUSETS.glob("cputune-nodes-*"))


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
