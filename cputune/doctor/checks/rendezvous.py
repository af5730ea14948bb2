"""How ranks find each other: their numbers, the address of the first, the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from cputune.carrier.interface import choose_interface, loopback_name
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import (
    job_nodes,
    number,
    under_mpi,
    under_torchrun,
    value,
    world_size,
)
from cputune.facts import HostFacts

LOOPBACK = ("127.", "::1", "localhost")


@check(
    "rank-left-over",
    Severity.ERROR,
    title="RANK in the environment contradicts the MPI launcher",
    remedy="Unset RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE before mpirun.",
    source="https://github.com/huggingface/accelerate/blob/main/src/accelerate/state.py",
)
def rank_left_over(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: all ranks believe to be rank 0, or the start hangs.

    Cause: accelerate reads RANK before PMI_RANK and OMPI_COMM_WORLD_RANK, so that a
    RANK in the environment of mpirun beats the real one.
    """
    for ours, theirs in (
        ("RANK", ("PMI_RANK", "OMPI_COMM_WORLD_RANK")),
        ("WORLD_SIZE", ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")),
    ):
        for name in theirs:
            left, real = number(facts, ours), number(facts, name)
            if left is not None and real is not None and left != real:
                yield rank_left_over.finding(
                    f"{ours}={left}, but {name}={real}",
                    command="unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE",
                )


@check(
    "rank-impossible",
    Severity.ERROR,
    title="RANK is not below WORLD_SIZE",
    remedy="Number the ranks from 0 to WORLD_SIZE - 1, the local ones likewise.",
    source="https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
)
def rank_impossible(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: the start waits for ever, or "rank out of range".

    Cause: RANK and WORLD_SIZE were set by hand, or come from two launches.
    """
    for name, of in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        rank, ranks = number(facts, name), number(facts, of)
        if rank is not None and ranks is not None and rank >= ranks:
            yield rank_impossible.finding(
                f"{name}={rank}, {of}={ranks}", command=f"unset {name} {of}"
            )


@check(
    "master-addr",
    Severity.ERROR,
    title="Ranks do not know where the first one is",
    remedy="Set MASTER_ADDR and MASTER_PORT for every rank, on one machine too.",
    source="https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
)
def master_addr(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "environment variable MASTER_ADDR expected, but not set".

    Cause: mpirun numbers the ranks but tells them no address, and who sets RANK and
    WORLD_SIZE by hand has to set the address too. torchrun does all of it.
    """
    ranks, by_hand = world_size(facts), number(facts, "RANK") is not None
    if ranks is None or ranks < 2 or value(facts, "MASTER_ADDR") or under_torchrun(facts):
        return
    if not under_mpi(facts) and not by_hand:
        return
    how = "under mpirun" if under_mpi(facts) else "by RANK and WORLD_SIZE"
    here = job_nodes(facts) == 1
    yield master_addr.finding(
        f"{ranks} ranks {how}, MASTER_ADDR is unset",
        command="export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500" if here else None,
    )


@check(
    "master-port",
    Severity.ERROR,
    title="MASTER_PORT is no port",
    remedy="Give a free port between 1024 and 65535.",
    source="https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
)
def master_port(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "The server socket has failed to listen", or a ValueError at the start.

    Cause: the variable holds no number, or one that no port has.
    """
    text, port = value(facts, "MASTER_PORT"), number(facts, "MASTER_PORT")
    if text is not None and (port is None or not 0 < port < 65536):
        yield master_port.finding(f"MASTER_PORT={text!r}", command="export MASTER_PORT=29500")


@check(
    "master-loopback",
    Severity.ERROR,
    title="Ranks on several machines are told to meet on loopback",
    remedy="Set MASTER_ADDR to an address that the other machines reach.",
    source="aws-samples/aws-do-eks#50",
)
def master_loopback(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: the job waits for ever, or "connection refused".

    Cause: MASTER_ADDR names this machine itself, on every machine.
    """
    address = value(facts, "MASTER_ADDR") or ""
    nodes = job_nodes(facts)
    if nodes > 1 and address.startswith(LOOPBACK):
        yield master_loopback.finding(f"MASTER_ADDR={address} with {nodes} machines")


@check(
    "gloo-loopback",
    Severity.ERROR,
    title="gloo would listen on 127.0.0.1",
    remedy="Name the interface that the other machines reach.",
    source="aws-samples/aws-do-eks#50",
)
def gloo_loopback(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "connectFullMesh failed" as soon as ranks run on two machines.

    Cause: gloo binds to the address of the machine's own name, and /etc/hosts gives it
    as 127.0.0.1 or 127.0.1.1 (Debian does), if only beside the right one.
    """
    loopback = loopback_name(facts.network)
    if loopback is None or value(facts, "GLOO_SOCKET_IFNAME") or job_nodes(facts) < 2:
        return
    chosen = choose_interface([("", facts.network)]).name
    outside = chosen or next((n for n in facts.network.interfaces or () if n != "lo"), None)
    yield gloo_loopback.finding(
        f"/etc/hosts gives this machine's name as {loopback}; "
        f"{job_nodes(facts)} machines take part",
        command=f"export GLOO_SOCKET_IFNAME={shlex.quote(outside)}" if outside else None,
    )


@check(
    "interface-missing",
    Severity.ERROR,
    title="A variable names a network interface that does not exist",
    remedy="Name one of the interfaces there are.",
    source="aws-samples/aws-do-eks#50",
)
def interface_missing(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "Unable to find address for: eth0", or no rank connects.

    Cause: interface names differ between machines and containers.
    """
    known = facts.network.interfaces
    for name in ("GLOO_SOCKET_IFNAME", "FI_TCP_IFACE"):
        wanted = [part for part in (value(facts, name) or "").split(",") if part]
        missing = [part for part in wanted if known is not None and part not in known]
        if missing:
            outside = next((item for item in known or () if item != "lo"), "lo")
            yield interface_missing.finding(
                f"{name}={','.join(wanted)}; there are {', '.join(known or ()) or 'none'}",
                command=f"export {name}={shlex.quote(outside)}",
            )


@check(
    "provider-local",
    Severity.ERROR,
    title="The chosen network provider works inside one machine only",
    remedy="Choose a provider that reaches the other machines, such as tcp.",
    source="https://ofiwg.github.io/libfabric/main/man/fi_shm.7.html",
)
def provider_local(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: MPI or oneCCL aborts or hangs as soon as a second machine takes part.

    Cause: FI_PROVIDER=shm is shared memory, which ranks of one machine have in common.
    """
    provider, nodes = (value(facts, "FI_PROVIDER") or "").lower(), job_nodes(facts)
    if provider == "shm" and nodes > 1:
        yield provider_local.finding(
            f"FI_PROVIDER={provider} with {nodes} machines", command="export FI_PROVIDER=tcp"
        )


CHECKS: tuple[Check, ...] = (
    rank_left_over,
    rank_impossible,
    master_addr,
    master_port,
    master_loopback,
    gloo_loopback,
    interface_missing,
    provider_local,
)
