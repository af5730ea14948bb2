"""How ranks find each other: their numbers, the address of the first, the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor import variables as env
from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.plans.cores import usable_cores
from cputune.plans.delivery.network_interface import choose_interface, loopback_name
from cputune.stack import load, versions_of
from cputune.stack.fit import oneccl_torch
from cputune.stack.uses import ccl_refusals
from cputune.text import cpulist
from cputune.text.plain import count

LOOPBACK = ("127.", "::1", "localhost")
_BY_MPI = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MPI_LOCAL")
_LAUNCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def left_over(facts: HostFacts) -> tuple[str, ...]:
    """Variables of an earlier launch, set neither by the current launcher nor by a cluster."""
    cluster = ("SLURM_PROCID", "SLURM_NNODES", "KUBERNETES_SERVICE_HOST")
    launch_set = [name for name in _LAUNCH if env.value(facts, name)]
    if env.under_mpi(facts) and facts.surroundings.mpi_left_over:
        for name in sorted(facts.environment):
            if name.startswith(_BY_MPI) and env.value(facts, name):
                launch_set.append(name)
        return tuple(launch_set)
    within = env.under_mpi(facts) or env.under_torchrun(facts)
    if within or any(env.value(facts, name) for name in cluster):
        return ()
    ranks = {name for name in _LAUNCH[:4] if env.number(facts, name) is not None}
    address = env.value(facts, "MASTER_ADDR") or "localhost"
    by_hand = not address.startswith(LOOPBACK) and len(ranks) > 1
    if by_hand or ranks.isdisjoint(("RANK", "LOCAL_RANK")):
        return ()
    return tuple(launch_set)


@check("launch-left-over", Severity.ERROR)
def launch_left_over(facts: HostFacts) -> Iterator[Finding]:
    """Variables of a launch are left in this shell

    Symptom: "environment variable MASTER_ADDR expected, but not set", a process that waits for
    ever, or a single process that acts as one of several ranks.

    Cause: LOCAL_RANK alone makes Trainer start a process group; with RANK and WORLD_SIZE it waits
    for ranks that nothing starts. Accelerate reads PMI_RANK and OMPI_COMM_WORLD_RANK the same way.
    Launchers set these only in their ranks: an MPI variable without an MPI process above is left.

    Remedy: Unset them, unless you start each rank by hand.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    names = left_over(facts)
    if names:
        settings = ", ".join(f"{name}={env.value(facts, name)}" for name in names)
        yield launch_left_over.finding(
            f"{settings}, but no launcher runs here", command=f"unset {' '.join(names)}"
        )


@check("master-addr", Severity.ERROR)
def master_addr(facts: HostFacts) -> Iterator[Finding]:
    """Ranks do not know the address of rank 0

    Symptom: "environment variable MASTER_ADDR expected, but not set".

    Cause: mpirun numbers the ranks but gives them no address. torchrun sets both.

    Remedy: Set MASTER_ADDR and MASTER_PORT for every rank, also on one machine.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    ranks, by_mpi = env.world_size(facts), env.under_mpi(facts)
    if left_over(facts):
        return
    numbered = by_mpi or env.number(facts, "RANK") is not None
    is_several = numbered and ranks is not None and ranks > 1
    # Trainer and accelerate start a process group for a single rank with this number, too.
    is_local = env.number(facts, "LOCAL_RANK") is not None
    address = env.value(facts, "MASTER_ADDR") or env.under_torchrun(facts)
    if (is_several or is_local) and not address:
        how = "by RANK" if is_several else "by LOCAL_RANK"
        if by_mpi:
            how = "under mpirun"
        local = "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
        yield master_addr.finding(
            f"{count(ranks or 1, 'rank')} {how}, MASTER_ADDR is unset",
            command=local if env.job_nodes(facts) == 1 else None,
        )


@check("master-addr-unknown", Severity.ERROR)
def master_addr_unknown(facts: HostFacts) -> Iterator[Finding]:
    """The host name in MASTER_ADDR has no address here

    Symptom: "The IPv6 network addresses of (…) cannot be retrieved (gai error: -2", or ranks wait.

    Cause: the name is misspelled, of another cluster, or only in /etc/hosts of other machines. In
    Kubernetes the name of a service has an address as soon as its pod runs.

    Remedy: Set MASTER_ADDR to a name or an address that this machine knows: getent hosts NAME.

    Source: karpathy/nanochat#42
    """
    name = env.value(facts, "MASTER_ADDR")
    if name and facts.surroundings.address_unknown:
        in_pod = facts.settings.container == "kubernetes"
        yield master_addr_unknown.finding(
            f"MASTER_ADDR={name}", severity=Severity.WARNING if in_pod else None
        )


@check("master-unreachable", Severity.WARNING)
def master_unreachable(facts: HostFacts) -> Iterator[Finding]:
    """The address of rank 0 cannot be reached from here

    Symptom: ranks wait, and end with "No route to host", "connect() timed out" or a timeout of the
    store.

    Cause: a connection was tried. Nothing has to listen there yet, but the machine has to answer:
    it is off or in another network, a firewall drops the connection, or the address is wrong.

    Remedy: Correct the address, or open the way; `cputune doctor --hosts A,B` tries both ways.

    Source: facebookresearch/PyTorch-BigGraph#99
    """
    problem = facts.surroundings.unreachable
    if problem and not left_over(facts):
        yield master_unreachable.finding(problem)


@check("loopback-down", Severity.ERROR)
def loopback_down(facts: HostFacts) -> Iterator[Finding]:
    """This machine cannot connect to itself

    Symptom: torchrun ends with "Network is unreachable" or "Cannot assign requested address", also
    with ranks on one machine alone; a pool or a server of Python does the same.

    Cause: the loopback interface is down, or missing: a network namespace (unshare, ip netns,
    sandboxes) begins without it.

    Remedy: Bring it up in the namespace, or start the job outside of it.

    Source: https://man7.org/linux/man-pages/man7/network_namespaces.7.html
    """
    problem = facts.surroundings.loopback_fails
    if problem:
        yield loopback_down.finding(f"127.0.0.1: {problem}", command="ip link set lo up")


@check("master-loopback", Severity.ERROR)
def master_loopback(facts: HostFacts) -> Iterator[Finding]:
    """MASTER_ADDR is a loopback address, but ranks run on several machines

    Symptom: the job waits for ever, or "connection refused".

    Cause: on each machine a loopback address is that machine itself.

    Remedy: Set MASTER_ADDR to an address of rank 0 that the other machines can reach.

    Source: aws-samples/aws-do-eks#50
    """
    address = env.value(facts, "MASTER_ADDR") or ""
    nodes = env.job_nodes(facts)
    if nodes > 1 and address.startswith(LOOPBACK):
        yield master_loopback.finding(f"MASTER_ADDR={address} with {nodes} machines")


@check("gloo-loopback", Severity.ERROR)
def gloo_loopback(facts: HostFacts) -> Iterator[Finding]:
    """gloo would listen on a loopback address

    Symptom: "connectFullMesh failed" as soon as ranks run on two machines.

    Cause: gloo binds to the address of the machine's own name, and /etc/hosts maps that name to
    127.0.0.1 or 127.0.1.1 (Debian does). A pod with hostNetwork: true uses the node's file.

    Remedy: Set GLOO_SOCKET_IFNAME to an interface that the other machines can reach.

    Source: aws-samples/aws-do-eks#50, aws-samples/aws-do-eks#69
    """
    loopback, nodes = loopback_name(facts.network), env.job_nodes(facts)
    named = env.value(facts, "GLOO_SOCKET_IFNAME")
    if named == "lo" and nodes > 1:
        problem = f" with {nodes} machines: lo does not leave its machine"
        yield env.unset(gloo_loopback, facts, "GLOO_SOCKET_IFNAME", problem)
    in_pod = facts.settings.container == "kubernetes"
    if loopback is None or named or (nodes < 2 and not in_pod):
        return
    chosen = choose_interface([("", facts.network)]).name
    outside = chosen or next((n for n in facts.network.interfaces or () if n != "lo"), None)
    yield gloo_loopback.finding(
        f"/etc/hosts gives this machine's name as {loopback}; "
        + (f"{nodes} machines take part" if nodes > 1 else "this pod has the node's network"),
        severity=None if nodes > 1 else Severity.WARNING,
        command=f"export GLOO_SOCKET_IFNAME={shlex.quote(outside)}" if outside else None,
    )


@check("interface-missing", Severity.ERROR)
def interface_missing(facts: HostFacts) -> Iterator[Finding]:
    """A variable names a network interface that does not exist

    Symptom: "Unable to find address for: …", or no rank connects.

    Cause: interface names differ between machines and containers. gloo takes exact names, not
    NCCL's patterns (^lo, =eth) or addresses.

    Remedy: Name an interface that exists.

    Source: aws-samples/aws-do-eks#51, AMD-AGI/Primus#1063
    """
    interfaces = facts.network.interfaces
    for name in ("GLOO_SOCKET_IFNAME", "FI_TCP_IFACE"):
        wanted = []
        for part in (env.value(facts, name) or "").split(","):
            if part:
                wanted.append(part)
        if interfaces is not None and not set(wanted) <= set(interfaces):
            chosen = choose_interface([("", facts.network)]).name
            outside = chosen or next((item for item in interfaces if item != "lo"), "lo")
            yield interface_missing.finding(
                f"{name}={','.join(wanted)}; there are {', '.join(interfaces) or 'none'}",
                command=f"export {name}={shlex.quote(outside)}",
            )


@check("ranks-alone", Severity.ERROR, tuned="ranks")
def ranks_alone(facts: HostFacts) -> Iterator[Finding]:
    """Every rank trains alone

    Symptom: no error, but each of several ranks reports world size 1 and trains on all the data.

    Cause: without a GPU, accelerate 1.13 and later start each rank as a single process unless
    use_cpu is set.

    Remedy: Set ACCELERATE_USE_CPU=true (or --use_cpu) for every rank.

    Source: huggingface/accelerate#3883
    """
    version = versions_of(facts).accelerate
    if version is None or not load().accelerate.does("ranks-train-alone", version):
        return
    if not env.without_gpu(facts) or env.is_true(facts, "ACCELERATE_USE_CPU") or left_over(facts):
        return
    ranks = env.world_size(facts) or env.local_ranks(facts)
    if ranks is None:
        ranks = 0
    if ranks > 1 or len(usable_cores(facts)) > 1:
        use_cpu = env.value(facts, "ACCELERATE_USE_CPU") or "(unset)"
        yield ranks_alone.finding(
            f"accelerate {version}, ACCELERATE_USE_CPU={use_cpu}, {ranks or 'no'} ranks here",
            severity=None if ranks > 1 else Severity.ADVICE,
            title=None if ranks > 1 else "Each of several ranks would train alone",
            command="export ACCELERATE_USE_CPU=true",
        )


@check("mpi-mixed", Severity.WARNING)
def mpi_mixed(facts: HostFacts) -> Iterator[Finding]:
    """Several MPIs are mixed

    Symptom: every rank reports rank 0 of 1, or options are refused.

    Cause: mpirun on PATH belongs to another MPI than I_MPI_ROOT.

    Remedy: Use the mpirun of the MPI that the program was built with.

    Source: https://www.open-mpi.org/faq/?category=running#mpirun-specify-prefix
    """
    mpirun = env.mpirun_of(facts)
    root = env.value(facts, "I_MPI_ROOT")
    if root and mpirun is not None and mpirun.dialect != "intelmpi":
        yield mpi_mixed.finding(f"I_MPI_ROOT={root}, but {mpirun.path} is {mpirun.dialect}")


@check("accelerate-one-process", Severity.ADVICE)
def accelerate_one_process(facts: HostFacts) -> Iterator[Finding]:
    """accelerate launch alone starts one process

    Symptom: ``accelerate launch --num_processes 2`` runs one process.

    Cause: on CPUs accelerate starts several ranks only through mpirun, and only if a host file is
    configured.

    Remedy: Set mpirun_config.mpirun_hostfile in the YAML (a one-line host file is enough), or
    launch with mpirun or torchrun.

    Source: huggingface/accelerate#2741
    """
    advice = env.advised(facts)
    if facts.package("accelerate") and advice.ranks > 1 and not env.has_mpirun(facts):
        yield accelerate_one_process.finding(
            f"accelerate is installed, mpirun is not; {advice.ranks} ranks are advised: "
            f"{advice.why}",
            command=env.advised_launch(facts),
        )


@check("ccl-affinity", Severity.ERROR)
def ccl_affinity(facts: HostFacts) -> Iterator[Finding]:
    """oneCCL workers are bound to CPUs that are not allowed

    Symptom: "error while creating worker thread #0 pthread_create returns 22".

    Cause: CCL_WORKER_AFFINITY names a CPU outside the affinity or the cpuset. The kernel refuses
    the thread (EINVAL, 22).

    Remedy: Name only CPUs that this process may use.

    Source: intel/torch-ccl#54
    """
    cpus, allowed = env.ccl_worker_cpus(facts), facts.topology.allowed
    outside = set(cpus or ()) - set(allowed)
    if outside and allowed:
        problem = f" names CPUs {cpulist.render(outside)}; allowed CPUs: {cpulist.render(allowed)}"
        finding = env.unset(ccl_affinity, facts, "CCL_WORKER_AFFINITY", problem)
        if env.oneccl_absent(facts):
            finding = replace(finding, severity=Severity.ADVICE)
        yield finding


@check("ccl-workers", Severity.ERROR, under=("ccl-without-mpi",))
def ccl_workers(facts: HostFacts) -> Iterator[Finding]:
    """A rank has fewer cores than threads and oneCCL workers

    Symptom: "the number of workers exceeds the number of available cores per process".

    Cause: each oneCCL worker needs a core that no OpenMP thread uses. oneCCL refuses more workers
    than a rank has cores, and disables workers if there are as many. With CCL_WORKER_AFFINITY it
    shares the cores without a message.

    Remedy: Leave each worker a core: threads + workers = cores of the rank.

    Source: uxlfoundation/oneCCL#168, https://uxlfoundation.github.io/oneCCL/env-variables.html
    """
    workers, threads = env.number(facts, "CCL_WORKER_COUNT"), env.number(facts, "OMP_NUM_THREADS")
    cores = len(usable_cores(facts)) // (env.local_ranks(facts) or 1)
    if not workers or not cores or workers + (threads or 1) <= cores:
        return
    severity = None
    if env.oneccl_absent(facts):
        severity = Severity.ADVICE
    elif workers <= cores or env.value(facts, "CCL_WORKER_AFFINITY"):
        severity = Severity.WARNING
    yield ccl_workers.finding(
        f"CCL_WORKER_COUNT={workers}, OMP_NUM_THREADS={threads or '(unset)'}; usable cores per "
        f"rank: {cores}",
        severity=severity,
        command=_fewer_workers(facts),
    )


def _fewer_workers(facts: HostFacts) -> str:
    """A command that leaves workers their cores: fewer threads, fewer workers, or none."""
    fitting = env.advised(facts).ccl_workers
    if not fitting or _finds_no_mpi(facts):
        return "unset CCL_WORKER_COUNT"
    fewer = ""
    if fitting != env.number(facts, "CCL_WORKER_COUNT"):
        fewer = f"CCL_WORKER_COUNT={fitting} "
    return f"export {fewer}OMP_NUM_THREADS={env.advised(facts).threads}"


@check("ccl-without-mpi", Severity.ERROR)
def ccl_without_mpi(facts: HostFacts) -> Iterator[Finding]:
    """oneCCL without an MPI launcher

    Symptom: the launch hangs after "did not find MPI-launcher specific variables".

    Cause: oneCCL reads rank numbers from an MPI launcher; torchrun and pods have no such launcher.

    Remedy: Launch with mpirun, or use the gloo backend.

    Source: intel/torch-ccl#48, intel/llm-on-ray#242
    """
    bindings = facts.package("oneccl_bind_pt") or facts.package("torch_ccl")
    if bindings is not None and _finds_no_mpi(facts):
        problem = " selects oneCCL, but no MPI variables (PMI_RANK) are set"
        yield env.unset(ccl_without_mpi, facts, "CCL_WORKER_COUNT", problem)


def _finds_no_mpi(facts: HostFacts) -> bool:
    """Whether ranks will use oneCCL without an MPI launcher."""
    started = env.world_size(facts) is not None or env.under_torchrun(facts)
    by_itself = (env.value(facts, "CCL_PROCESS_LAUNCHER") or "").lower() in ("none", "torchrun")
    uses_ccl = started and bool(env.number(facts, "CCL_WORKER_COUNT"))
    return uses_ccl and not by_itself and not env.under_mpi(facts)


@check("gloo-slow", Severity.ADVICE, under=("oneccl-archived",))
def gloo_slow(facts: HostFacts) -> Iterator[Finding]:
    """gloo is used although oneCCL is installed

    Symptom: gradients take longer to exchange than to compute.

    Cause: gloo is the default on CPUs. If the oneCCL bindings fit torch and mpirun starts the
    ranks, ccl works too; it uses shared memory and worker threads.

    Remedy: Compare both: oneCCL was 14 % faster with two ranks of a small BERT.

    Source: uxlfoundation/oneCCL#168
    """
    v = versions_of(facts)
    # oneccl-torch-mismatch and oneccl-unused report bindings that do not fit or are not used.
    fits = v.oneccl and v.torch and not oneccl_torch(v) and not ccl_refusals(v)
    if fits and env.mpi_launchers(facts) and not env.number(facts, "CCL_WORKER_COUNT"):
        yield gloo_slow.finding(
            f"oneccl_bind_pt {v.oneccl} fits torch {v.torch}; CCL_WORKER_COUNT is "
            f"{env.value(facts, 'CCL_WORKER_COUNT') or 'unset'}, so accelerate uses gloo",
            command=env.advised_launch(facts, "train.py --ddp_backend ccl", ccl=True),
        )


CHECKS = checks_of(__name__)
