"""What `doctor --hosts ... --json` saw of several hosts, as `emit --doctor FILE` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cputune.documents import parse, record_of
from cputune.errors import UsageError
from cputune.facts import Network
from cputune.host import read_document

SCHEMA = "cputune.hosts/1"
MOST_BYTES = 256 << 20
"""Of such a document: one host of 1,024 CPUs has about 100 KiB."""

_HINT = "cputune doctor --hosts node1,node2 --json > hosts.json"


def networks_seen(path: Path) -> dict[str, Network]:
    """The networks of the hosts that were reached, by name, in their order. Raises UsageError."""
    try:
        document = parse(read_document(path, most_bytes=MOST_BYTES))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HINT) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", hint=_HINT) from error
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise UsageError(f"{path} is not what the doctor saw of several hosts", hint=_HINT)
    try:
        found = dict(_networks(document.get("hosts")))
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}", hint=_HINT) from error
    if not found:
        raise UsageError(f"{path}: no host was reached", hint=_HINT)
    return found


def _networks(hosts: Any) -> Iterator[tuple[str, Network]]:
    for seen in hosts if isinstance(hosts, list) else ():
        host = seen.get("host") if isinstance(seen, Mapping) else None
        network = host.get("network") if isinstance(host, Mapping) else None
        if network is None:
            continue  # a host that was not reached has nothing
        if not isinstance(seen.get("name"), str):
            raise ValueError("a host without a name")
        yield seen["name"], record_of(Network, network)
