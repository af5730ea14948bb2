"""From a result, or a plan alone, to a ``LaunchJob``: made ready to be written down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from cputune.emitters import header
from cputune.emitters.checked_words import HostName, typed
from cputune.emitters.command import (
    companions,
    context_of,
    refuse_impossible,
    refuse_unchosen_batch,
    training_command,
    with_parser,
)
from cputune.emitters.format import Emission, Inside, LaunchJob, Machine, Site, Speed
from cputune.emitters.from_result import Tuned, tuned_of
from cputune.emitters.imported import digests, unreachable_parts
from cputune.emitters.training_claims import promise
from cputune.errors import UsageError
from cputune.host import Host
from cputune.host.facts import HostFacts, Package
from cputune.host.probing import probe
from cputune.host.remote.named import Node, choose
from cputune.inside.applying.parts import needed
from cputune.launch.launch import Launch
from cputune.launch.launchers.mpirun import DIALECTS
from cputune.plans.cores import usable_cores
from cputune.plans.delivery.delivery import Delivery, delivery_of
from cputune.plans.delivery.needed_parts import fitted
from cputune.plans.delivery.network_interface import checked
from cputune.plans.layout import guide_plan, make_plan, mild_plan
from cputune.plans.plan import Plan
from cputune.plans.workload import DEFAULT_RECIPE, Workload
from cputune.records.claims import ClaimContext, counted, host_fingerprint, machine_name
from cputune.records.options import Cluster
from cputune.records.result import Result
from cputune.stack import Versions
from cputune.text.plain import count

# What the ranks of each trial reported.
Trials: TypeAlias = tuple[tuple[Mapping[str, object], ...], ...]


def make_job(result: Result | None, options: Emission) -> LaunchJob:
    """Bring plan, workload, nodes and versions together.

    Without a result the plan is the guides' for the facts that are given. The workload that is
    asked for replaces the one that was tuned. Raises UsageError for what does not fit together.
    """
    facts = options.facts
    if result is not None:
        tuned = tuned_of(result)
        return _job(tuned, tuned.plan, options.workload or tuned.workload, options)
    if facts is None:
        raise UsageError(
            "emit needs a result, or the facts of a machine",
            hint="emit(result), or facts=cputune.probe()",
        )
    job = with_parser(options.workload or Workload.from_recipe(DEFAULT_RECIPE), options.host)
    nodes = options.nodes or max(1, len(options.hosts))
    plan = guide_plan(with_versions(facts, options.versions or {}), job, nodes=max(1, nodes))
    keeps = options.keep in ("numbers", "mathematics")
    if job.framework == "pytorch" or keeps:
        plan = mild_plan(facts)
    if keeps and Launch(launcher="python", arguments=job.argv).switched_on("--bf16"):
        plan = replace(plan, precision="bf16")
    return _job(None, plan, job, options, named=options.ranks_per_node is not None)


def _with_ranks(plan: Plan, facts: HostFacts | None, ranks: int | None) -> Plan:
    """The plan with this number of ranks on each machine, which share its cores equally.

    Raises UsageError if they do not fit, or if the machine is not known.
    """
    if ranks is None or ranks == plan.processes_per_node:
        return plan
    if facts is None:
        raise UsageError(
            "--ranks-per-node needs the facts of a machine",
            hint="--root DIR reads a recorded machine",
        )
    backend = plan.backend if ranks > 1 else "gloo"
    try:
        laid_out = make_plan(
            usable_cores(facts),
            ranks,
            backend=backend,
            ccl_workers=plan.ccl_workers if backend == "ccl" else 0,
            precision=plan.precision,
            ipex=plan.ipex,
        )
    except ValueError as error:
        raise UsageError(
            f"{count(ranks, 'rank')} cannot be placed on {machine_name(host_fingerprint(facts))}: "
            f"{error}",
            hint="--ranks-per-node 1",
        ) from error
    return replace(
        laid_out,
        allocator=plan.allocator,
        openmp=plan.openmp,
        preload=plan.preload,
        settings=plan.settings,
    )


def plan_job(plan: Plan, workload: Workload, options: Emission) -> LaunchJob:
    """The job of a plan that was not measured, for a trial. Raises UsageError as ``make_job``."""
    return _job(None, plan, workload, options, named=True)


def _job(
    tuned: Tuned | None,
    base: Plan,
    workload: Workload,
    options: Emission,
    *,
    named: bool = False,
) -> LaunchJob:
    """The job of a plan and a workload; ``named``: a caller named the plan, unmeasured."""
    base = _with_ranks(base, options.facts, options.ranks_per_node)
    facts = options.facts
    _refuse_unknown(options.mpi, options.nodes)
    nodes, hosts = _nodes_of(tuned, base, options)
    plan = replace(base, nodes=nodes, as_found=False)
    context = _context_of(workload, base, nodes, options)
    # What was measured was measured on this machine and with these versions.
    machine: Mapping[str, object] = context.host or {}
    measured_versions: Mapping[str, str] = {} if facts is None else versions_of(facts)
    if tuned is not None:
        machine, measured_versions = tuned.host, tuned.versions
    versions = {**measured_versions, **(options.versions or {})}
    refuse_impossible(plan, Versions.from_names(versions))
    interface = interface_of(options, plan, tuned, hosts)
    rate, rank_bytes, claimed = None, None, None
    trials: Trials | None = None
    if tuned is not None:
        rank_bytes = tuned.rank_bytes(base)
        claimed = tuned.claim.in_context(context)
        if claimed.applies and not tuned.disturbed:
            rate = tuned.samples_per_second
        if workload == tuned.workload:
            # Trials with other versions show nothing of this launch.
            trials = tuned.observed(base) if versions == measured_versions else ()
    workload = workload.with_typed_batch()
    complete, delivery, left_out = _delivery(workload, plan, base, versions, options.host, trials)
    refuse_unchosen_batch(workload, plan, delivery)
    target = target_facts(facts, versions)
    judging = context_of(workload, target, options.host)
    command, notes = training_command(workload, delivery, judging)
    if tuned is not None and claimed is not None:
        lines = header.measured(tuned, plan, claimed)
    else:
        own_loop = workload.framework == "pytorch"
        lines = header.unmeasured(machine, plan, is_named=named, own_loop=own_loop)
    scale = header.scale_lines(tuned, plan, workload)
    job = LaunchJob(
        plan=plan,
        workload=workload,
        command=command,
        environment=typed(delivery.variables),
        header=lines[:2] + scale + lines[2:],
        notes=notes,
        machine=Machine(
            target=target,
            versions=versions,
            python=options.python,
            threads_per_core=_threads_per_core(machine, facts),
            physical_cores=counted(machine, "physical_cores"),
            rank_bytes=rank_bytes,
            surrounding=frozenset(() if facts is None else facts.environment),
            host=options.host,
        ),
        site=Site(
            nodes=hosts,
            mpi=options.mpi or ("intelmpi" if plan.backend == "ccl" else mpi_of(facts)),
            mpi_asked=options.mpi is not None,
            cluster=options.cluster or Cluster(),
            interface=interface,
            patch=options.patch,
        ),
        speed=Speed(
            claim=None if tuned is None else tuned.claim,
            context=context,
            named=None if tuned is None else options.named,
            printed_notes=scale,
        ),
        inside=Inside(
            guard=not options.no_guard and delivery.comparable,
            draws_apart=complete.force is not None and complete.force.other_ranks,
            left_out=left_out,
            flags=delivery.flags,
        ),
        self_contained=_is_self_contained(options, nodes),
        force=delivery.force,
    )
    return replace(job, companions=companions(job), promise=promise(job, rate))


def _nodes_of(tuned: Tuned | None, plan: Plan, options: Emission) -> tuple[int, tuple[Node, ...]]:
    """How many nodes a job has, and which if they are named: else those of the measurement, if
    they are enough.
    """
    nodes, hosts = options.nodes, options.hosts
    if tuned is not None and not hosts and (nodes or plan.nodes) <= len(tuned.hosts):
        hosts = tuple(Node(name=HostName(name)) for name in tuned.hosts)
        nodes = nodes or plan.nodes
    if not nodes:
        nodes = len(hosts) or plan.nodes
    if hosts:
        hosts = choose(hosts, nodes, plan.processes_per_node)
    return nodes, hosts


def _context_of(workload: Workload, plan: Plan, nodes: int, options: Emission) -> ClaimContext:
    """What a statement about the speed of the launch is made for."""
    facts = options.facts
    machine, versions = None, dict[str, str]()
    if facts is not None:
        machine = host_fingerprint(facts)
        versions = {**versions_of(facts), **(options.versions or {})}
    return ClaimContext(
        workload=workload,
        host=machine,
        nodes=nodes,
        versions=versions,
        plan=plan,
        files={} if options.host is None else digests(workload.argv, options.host),
    )


def _threads_per_core(machine: Mapping[str, object], facts: HostFacts | None) -> int:
    """Of the machine that was measured; 1 if nothing shows it."""
    measured = counted(machine, "threads_per_core")
    if measured:
        return measured
    return 1 if facts is None else facts.topology.threads_per_core


def _is_self_contained(options: Emission, nodes: int) -> bool:
    """Other nodes need not have cputune, so a launch on several has a copy of what it needs."""
    return options.self_contained or nodes > 1 or not options.importable


def _delivery(
    workload: Workload,
    plan: Plan,
    base: Plan,
    versions: Mapping[str, str],
    host: Host | None,
    trials: Trials | None,
) -> tuple[Delivery, Delivery, dict[str, str]]:
    """How the plan gets into the training: all of it, what of it is needed, and why not the rest.

    ``trials``: what the ranks of its trials reported; None if the workload was not tuned. Raises
    UsageError for a batch that its ranks cannot share.
    """
    try:
        complete = delivery_of(workload, plan, versions)
    except ValueError as error:
        raise UsageError(
            str(error), hint="--batch-per-rank N sets the samples of each rank"
        ) from error
    needed_part, left_out = complete, dict[str, str]()
    if trials is not None:
        needed_part, left_out = fitted(
            complete, workload, plan, versions, as_run=base, trials=trials
        )
    needed_part, unreachable = _reachable(needed_part, workload, host)
    return complete, needed_part, left_out | unreachable


def _refuse_unknown(mpi: str | None, nodes: int | None) -> None:
    """Raise UsageError for an MPI that has no dialect here, and for less than one node."""
    if mpi is not None and mpi not in DIALECTS:
        raise UsageError(f"no MPI is called {mpi!r}", hint="one of: " + ", ".join(DIALECTS))
    if nodes is not None and nodes < 1:
        raise UsageError(f"a job has 1 node or more, not {nodes}", hint="--nodes 1")


def _reachable(
    delivery: Delivery, workload: Workload, host: Host | None
) -> tuple[Delivery, dict[str, str]]:
    """A plan without the parts that no line of the script reaches, and why each is left out."""
    force = delivery.force
    if force is None or workload.recipe is not None:
        return delivery, {}
    modules = [part.module for part in needed(force)]
    unreachable = unreachable_parts(workload.argv[0], host or Host())
    left_out = {module: reason for module, reason in unreachable.items() if module in modules}
    if not left_out:
        return delivery, {}
    force = replace(force, without=(*force.without, *left_out))
    return replace(delivery, force=force), left_out


def job_name(job: LaunchJob) -> str:
    """A name for clusters (DNS-1035): the one that was given, or made of the workload's."""
    given = job.site.cluster.job_name
    if given is None:
        stem = job.workload.name.rsplit("/", 1)[-1].removesuffix(".py").lower()
        name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")
        name = name if name[:1].isalpha() else f"train-{name}"
        return name[:40].strip("-")
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?", given):
        raise UsageError(
            f"{given!r} cannot name a job",
            hint="small letters, digits and hyphens, a letter first, at most 53",
        )
    return given


def versions_of(facts: HostFacts) -> dict[str, str]:
    """What of the training stack is installed, by distribution name."""
    versions = {}
    for name in header.TRAINING_PACKAGES:
        package = facts.package(name)
        if package is not None and package.version:
            versions[name] = package.version
    return versions


def with_versions(facts: HostFacts, versions: Mapping[str, str]) -> HostFacts:
    """The machine with these versions."""
    packages = [package for package in facts.packages if package.name not in versions]
    for name, version in versions.items():
        packages.append(Package(name=name, version=version, location=None))
    return replace(facts, packages=tuple(packages))


def target_facts(facts: HostFacts | None, versions: Mapping[str, str]) -> HostFacts:
    """Facts of the machine that runs the job: those given, else this one's, with those packages."""
    packages = (Package(name=name, version=v, location=None) for name, v in versions.items())
    machine = probe(Host()) if facts is None else facts
    return replace(machine, packages=tuple(packages), environment={})


def mpi_of(facts: HostFacts | None) -> str | None:
    """The dialect of the first ``mpirun`` on PATH; None for an unknown one."""
    launchers = facts.launchers if facts is not None else ()
    return next((launcher.dialect for launcher in launchers if launcher.dialect in DIALECTS), None)


# Variables that Slurm sets in each allocation.
_ALLOCATION = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")


def usual_format(facts: HostFacts, ranks: int) -> str:
    """The format of a launch of these ranks on this machine: that of Slurm in its allocation.

    torchrun comes with torch. One rank needs no mpirun.
    """
    if any(name in facts.environment for name in _ALLOCATION):
        return "slurm"
    if ranks > 1 and mpi_of(facts) is not None:
        return "mpirun"
    return "torchrun"


def interface_of(
    options: Emission, plan: Plan, tuned: Tuned | None, hosts: tuple[Node, ...]
) -> str | None:
    """The interface's name; None if each layer may choose.

    The one that the user names, else the one on which these hosts were measured. Raises UsageError
    for an invalid name, or one that does not reach other hosts.
    """
    interface = None if options.cluster is None else options.cluster.interface
    measured = tuned is not None and all(node.name in tuned.hosts for node in hosts)
    if interface is None and tuned is not None and measured and plan.nodes > 1:
        interface = tuned.interface
    return None if interface is None else checked(interface, nodes=plan.nodes)
