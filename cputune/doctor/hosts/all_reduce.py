"""How long real ranks on the hosts take to add up DDP's buckets: ``doctor --hosts --deep``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cputune.carrier.interface import interface_variables
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.doctor.hosts.network import (
    MASTER_PORT,
    HostToJudge,
    ask_names,
    chosen_interface,
    listening,
    not_asked,
    side_by_side,
)
from cputune.remote.reach import Reach
from cputune.stack import oneccl_module, versions_of

ALL_REDUCE_SECONDS = 120.0
SIZES = (4, 1 << 20, 25 << 20)
"""Bytes: one number, for the latency; the first bucket of DDP, and the others (torch.nn.parallel:
``dist._DEFAULT_FIRST_BUCKET_BYTES``, ``bucket_cap_mb=25``)."""


@fault("hosts-all-reduce", Severity.ADVICE)
def all_reduce_took() -> None:
    """How long an all-reduce takes between the hosts

    One rank on each host added up one number, DDP's first bucket (1 MiB) and one of its others (25
    MiB), some times each. The median of the slowest rank counts. A model's gradients pass once in
    every step: its bytes over the bandwidth is what the network takes at least, as far as it is not
    hidden behind the backward pass.

    Remedy: Hold it against a step: `cputune tune` over the hosts finds whether more are worth it.

    Source: https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """


@fault("hosts-all-reduce-fails", Severity.ERROR)
def all_reduce_fails() -> None:
    """Ranks on the hosts cannot add up a tensor

    Symptom: the training would fail, or wait, in the same way.

    One real rank of torch.distributed was started on each host, as a launch does.

    Remedy: Mend the findings above it first; then look at what the ranks have said.

    Source: https://pytorch.org/docs/stable/distributed.html
    """


WITHOUT_LAUNCHER = {
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_ATL_TRANSPORT": "ofi",
    "CCL_LOCAL_RANK": "0",
    "CCL_LOCAL_SIZE": "1",
}
"""oneCCL's ranks, where no MPI starts them (CCL_PROCESS_LAUNCHER in its documentation)."""


def all_reduce_between(hosts: Sequence[HostToJudge], reach: Reach) -> Iterator[Finding]:
    """How long real ranks take to add up DDP's buckets, over the interface of all layers."""
    names, _ = ask_names(hosts, reach)
    told = next(iter(listening(names).values()))
    interface = chosen_interface(names).name
    yield from ask_all_reduce(hosts, reach, told, interface=interface, master_port=MASTER_PORT)


def ask_all_reduce(
    hosts: Sequence[HostToJudge],
    reach: Reach,
    addresses: Mapping[str, str],
    *,
    interface: str | None,
    master_port: int,
    seconds: float = ALL_REDUCE_SECONDS,
) -> Iterator[Finding]:
    """Let one rank on each host add up tensors: over gloo, and over ccl where all have it.

    Only hosts with torch take part. ``addresses`` are those on which ranks listen, by name.
    """
    with_torch = [one for one in hosts if one.facts.package("torch") is not None]
    if len(with_torch) < 2:
        yield not_asked.finding("all-reduce: fewer than two hosts have torch")
        return
    first = with_torch[0].name
    meet = {"MASTER_ADDR": addresses.get(first, first), "MASTER_PORT": str(master_port)}
    yield _added_up(with_torch, reach, "gloo", meet, interface, seconds)
    if all(one.facts.package("oneccl_bind_pt") is not None for one in with_torch):
        yield _added_up(with_torch, reach, "ccl", meet, interface, seconds)


def _added_up(
    hosts: Sequence[HostToJudge],
    reach: Reach,
    backend: str,
    meet: Mapping[str, str],
    interface: str | None,
    seconds: float,
) -> Finding:
    """How long the slowest rank took, or why there is no figure."""
    told = {} if interface is None else interface_variables(interface, backend=backend)
    if backend == "ccl":
        told.update(WITHOUT_LAUNCHER)
    ranks = {one.name: str(rank) for rank, one in enumerate(hosts)}

    def question(one: HostToJudge) -> dict[str, Any]:
        numbers = {"RANK": ranks[one.name], "WORLD_SIZE": str(len(hosts))}
        return {
            "backend": backend,
            "module": oneccl_module(versions_of(one.facts)) if backend == "ccl" else None,
            "sizes": SIZES,
            "seconds": seconds / 2,
            "variables": {**meet, **numbers, **told},
        }

    answers, silent = side_by_side(
        hosts,
        reach,
        "all_reduce.py",
        question,
        seconds,
        trains=True,
        sourced=lambda one: setvars(one) if backend == "ccl" else None,
    )
    if silent:
        said = "; ".join(dict.fromkeys(finding.evidence for finding in silent))
        return all_reduce_fails.finding(f"{backend}: {said}")
    slowest = {
        size: max(float(told["seconds"][str(size)]) for told in answers.values()) for size in SIZES
    }
    return all_reduce_took.finding(describe_all_reduce(backend, slowest, len(hosts), interface))


def setvars(one: HostToJudge) -> str:
    """What brings oneCCL into a shell there: it lies inside the wheel of the bindings."""
    package = one.facts.package("oneccl_bind_pt")
    folder = (package and package.location) or "."
    return f"{folder}/{oneccl_module(versions_of(one.facts))}/env/setvars.sh"


def describe_all_reduce(
    backend: str, seconds: Mapping[int, float], ranks: int, interface: str | None
) -> str:
    """``gloo, 2 ranks over eth0: 0.21 ms for 4 bytes; 1 MiB in 1.3 ms (0.81 GB/s); …``."""
    latency, *rest = sorted(seconds)
    parts = [f"{1000 * seconds[latency]:.2f} ms for one number"]
    parts += [
        f"{size >> 20} MiB in {1000 * seconds[size]:.1f} ms ({size / seconds[size] / 1e9:.2f} GB/s)"
        for size in rest
    ]
    over = f" over {interface}" if interface else ""
    return f"{backend}, {ranks} ranks{over}: {'; '.join(parts)}"


CHECKS = checks_of(__name__)
