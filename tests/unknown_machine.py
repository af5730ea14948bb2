"""A machine of which nothing is known, to say in a test what is."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from cputune import HostFacts
from cputune.host.facts import Cpu, Limits, Load, Memory, Settings, Topology


def unknown(kind: type, **known: Any) -> Any:
    """A part of a machine; of a field without a default None is its value."""
    asked = (field.name for field in fields(kind) if field.default is MISSING)
    return kind(**{**dict.fromkeys(asked), **known})


UNKNOWN = HostFacts(
    cpu=unknown(Cpu, isa=()),
    topology=Topology(cores=(), online=(), present=None, allowed=(), numa_nodes=()),
    limits=unknown(Limits),
    memory=unknown(Memory),
    settings=unknown(Settings),
    load=unknown(Load),
    python=None,
)
