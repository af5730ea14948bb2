"""Host files as a launcher wants them; reading them is ``cputune.nodes.named``."""

from __future__ import annotations

from cputune.errors import UsageError
from cputune.nodes.named import Node


def hydra(nodes: tuple[Node, ...], ranks: int) -> str:
    """A host file for Intel MPI and MPICH. Raises UsageError for an IPv6 address."""
    refuse_ipv6(nodes, "Intel MPI and MPICH")
    return "".join(f"{node.name}:{ranks}\n" for node in nodes)


def refuse_ipv6(nodes: tuple[Node, ...], mpi: str) -> None:
    """Raise UsageError for an IPv6 address: only Open MPI 5 reads one in a host file."""
    for node in nodes:
        if ":" in node.name:
            raise UsageError(
                f"{mpi} cannot read the address {node.name} in a host file",
                hint="give the host a name (/etc/hosts will do)",
            )


def openmpi(nodes: tuple[Node, ...], ranks: int) -> str:
    """A host file for Open MPI."""
    return "".join(f"{node.name} slots={ranks}\n" for node in nodes)
