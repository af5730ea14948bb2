"""The keys of a cluster: one that opens every host, each host's own, and who is known."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from nodes.namespaces import call

SSH = """\
{hosts}Host *
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  GlobalKnownHostsFile {folder}/known_hosts
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  LogLevel ERROR
"""


def write_keys(folder: Path, addresses: Mapping[str, str]) -> None:
    """A key that opens all hosts, each host's own, and the files that name them."""
    folder.mkdir(parents=True, mode=0o755)
    _make_key(folder / "key")
    known = []
    for name, address in addresses.items():
        own = folder / name / "ssh"
        own.mkdir(parents=True)
        _make_key(own / "host_key")
        words = (own / "host_key.pub").read_text().split()[:2]
        known.append(f"{name},{address} {' '.join(words)}\n")
    (folder / "known_hosts").write_text("".join(known))
    places = "".join(f"Host {name}\n  HostName {at}\n" for name, at in addresses.items())
    (folder / "ssh_config").write_text(SSH.format(hosts=places, folder=folder))
    for name in addresses:
        own = folder / name / "ssh"
        (own / "ssh_config").write_text(SSH.format(hosts="", folder="/etc/ssh"))
        shutil.copy(folder / "key.pub", own / "authorized_keys")
        for file in ("key", "known_hosts"):
            shutil.copy(folder / file, own)


def _make_key(path: Path) -> None:
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cputune-nodes", "-f", str(path))
