"""Hosts of a cluster on one machine: namespaces joined by a bridge, each with an sshd of its own.

    with two_hosts(beta=Odd(cpus=(0,))) as hosts:
        hosts.run("alpha", ["cputune", "doctor", "--hosts", "alpha,beta"])

There each finds the other by name, and ``ssh beta`` needs no password. We stand beside them, with
an address in their network: ``hosts.ssh`` are the words that reach them from here. Nothing is
routed further. They share the disk and the CPUs with us; /tmp, where a launch folder lies, too.
All is gone afterwards, however we end; a folder and a control group that a SIGKILL left are removed
by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from nodes.keys import write_keys
from nodes.namespaces import ENDED_WITH_US, Host, Odd, call, until
from nodes.numbers import BASE, address, free_number, leg, own_address


class Cluster:
    """Hosts that see each other. Made by ``cluster`` and ``two_hosts``."""

    def __init__(self, names: Sequence[str], odd: Mapping[str, Odd], number: int) -> None:
        self.names = tuple(names)
        self.number = number
        self.folder = BASE / str(number)
        """Keys, files of the hosts, and what a test wants to be gone afterwards."""
        self.addresses = {name: address(number, place) for place, name in enumerate(names, 1)}
        self.here = own_address(number)
        self.hosts: dict[str, Host] = {}
        self._odd = odd
        self._switch: subprocess.Popen[bytes] | None = None

    @property
    def ssh(self) -> tuple[str, ...]:
        """The words that begin an ssh from here to one of the hosts."""
        return ("ssh", "-F", str(self.folder / "ssh_config"))

    def run(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        check: bool = True,
        timeout: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; AssertionError where it fails and ``check``."""
        started = self.start(host, argv, env=env, cwd=cwd)
        try:
            out, err = started.communicate(timeout=timeout)
        except BaseException:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
            raise
        done = subprocess.CompletedProcess(list(argv), started.returncode, out, err)
        assert not check or done.returncode == 0, f"{argv} on {host}\n{out[-4000:]}\n{err[-4000:]}"
        return done

    def start(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        **how: object,
    ) -> subprocess.Popen[str]:
        """Start a command on a host, in a process group of its own, as if typed there.

        ``cwd`` is a directory of the host. The process that is returned waits for the one
        there: see ``itself``.
        """
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, **(env or {}), **self.hosts[host].environment, **(env or {})}
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            self.hosts[host].entered(tuple(argv), str(cwd or Path.cwd())),
            env=environment,
            text=True,
            start_new_session=True,
            **{**pipes, **how},
        )

    def itself(self, started: subprocess.Popen[str]) -> psutil.Process:
        """The process on the host, as we see it, of one that ``start`` returned."""
        return until(lambda: next(iter(psutil.Process(started.pid).children()), None))

    def left(self, host: str) -> list[str]:
        """The commands that run on a host, beside its sshd."""
        found = []
        for process in self.hosts[host].processes():
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(process.cmdline()) or process.name())
        return found

    def cut(self, host: str) -> None:
        """Pull the cable of a host."""
        self._at_switch("ip", "link", "set", host, "down")

    def repair(self, host: str) -> None:
        """Plug the cable in again."""
        self._at_switch("ip", "link", "set", host, "up")

    def shape(self, host: str, rate: str) -> None:
        """What a host sends leaves at ``rate`` (in the words of tc)."""
        bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        self._in_network(host, "tc", "qdisc", "replace", "dev", "eth0", "root", *bucket)

    def second_network(self) -> None:
        """Another cable of each host to the switch: eth1, in a network of its own."""
        for place, (name, host) in enumerate(self.hosts.items(), 1):
            self._join(f"{name}-eth1", "eth1", host.pid)
            self._in_network(name, "ip", "address", "add", f"192.0.2.{place}/24", "dev", "eth1")
            self._in_network(name, "ip", "link", "set", "eth1", "up")

    def jumbo_frames(self, host: str) -> None:
        """Its eth0 sends frames of 9000 bytes, which the switch drops: that has an MTU of 1500."""
        # Segments would be cut behind the switch only, where nothing is dropped any more.
        self._in_network(host, "ip", "link", "set", "eth0", "mtu", "9000", "gso_max_segs", "1")

    def block(self, host: str, port: int) -> None:
        """A firewall there: whoever comes from another host to this port hears nothing."""
        rule = ("-i", "eth0", "-p", "tcp", "--dport", str(port), "-j", "DROP")
        self._in_network(host, "iptables", "-I", "INPUT", *rule)

    def no_way_to_us(self) -> None:
        """No host can begin a connection to us: a firewall, or a NAT between us and them."""
        rule = ("-p", "tcp", "--syn", "-d", self.here, "-j", "DROP")
        for name in self.names:
            self._in_network(name, "iptables", "-I", "OUTPUT", *rule)

    def unblock(self, host: str, port: int) -> None:
        """The port is open again."""
        rule = ("-i", "eth0", "-p", "tcp", "--dport", str(port), "-j", "DROP")
        self._in_network(host, "iptables", "-D", "INPUT", *rule)

    def begin(self) -> None:
        """Make the hosts and join them."""
        write_keys(self.folder, self.addresses)
        ours = [f"{self.here} {socket.gethostname()}"]
        known = [f"{at} {name}" for name, at in self.addresses.items()] + ours
        self._switch = subprocess.Popen([*ENDED_WITH_US, "unshare", "--net", "sleep", "infinity"])
        for name in self.names:
            odd = self._odd.get(name, Odd())
            hosts = ["127.0.0.1 localhost", "::1 localhost", odd.first_in_hosts, *known]
            text = "\n".join(line for line in hosts if line) + "\n"
            self.hosts[name] = Host(name, self.number, self.folder / name, text, odd)
        apart = os.readlink("/proc/self/ns/net")
        until(lambda: os.readlink(f"/proc/{self._switch.pid}/ns/net") != apart)
        self._at_switch("ip", "link", "add", "bridge", "type", "bridge")
        self._at_switch("ip", "link", "set", "bridge", "up")
        for name, host in self.hosts.items():
            self._join(name, "eth0", host.pid)
            self._in_network(
                name, "ip", "address", "add", f"{self.addresses[name]}/24", "dev", "eth0"
            )
            self._in_network(name, "ip", "link", "set", "eth0", "up")
        self._join("here", leg(self.number), os.getpid())
        call("ip", "address", "add", f"{self.here}/24", "dev", leg(self.number))
        call("ip", "link", "set", leg(self.number), "up")
        for at in self.addresses.values():
            until(lambda at=at: _answers(at))

    def end(self) -> None:
        """Nothing of it stays."""
        for host in self.hosts.values():
            host.end()
        if self._switch is not None:
            # Networks go a moment after their last process; the next cluster may have our number.
            subprocess.run(["ip", "link", "del", leg(self.number)], capture_output=True)
            self._switch.kill()
            self._switch.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _join(self, port: str, inside: str, pid: int) -> None:
        peer = ("type", "veth", "peer", "name", inside, "netns", str(pid))
        self._at_switch("ip", "link", "add", port, *peer)
        self._at_switch("ip", "link", "set", port, "master", "bridge", "up")

    def _at_switch(self, *argv: str) -> None:
        call("nsenter", "--target", str(self._switch.pid), "--net", *argv)

    def _in_network(self, host: str, *argv: str) -> None:
        call(*self.hosts[host].in_network(argv))


@contextlib.contextmanager
def cluster(*names: str, **odd: Odd) -> Iterator[Cluster]:
    """Hosts of these names; ``odd`` says of some how they differ."""
    unknown = set(odd) - set(names)
    assert not unknown, f"no host is called {unknown}"
    with free_number() as number:
        made = Cluster(names, odd, number)
        try:
            made.begin()
            yield made
        finally:
            made.end()


def two_hosts(**odd: Odd) -> contextlib.AbstractContextManager[Cluster]:
    """``alpha`` and ``beta``."""
    return cluster("alpha", "beta", **odd)


def _answers(at: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((at, 22), 1.0) as line:
        return line.recv(4).startswith(b"SSH")
    return False
