"""From a result, or a plan alone, to a ``LaunchJob``: made ready to be written down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

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
from cputune.emitters.format import Emission, LaunchJob
from cputune.emitters.from_result import Tuned, tuned_of
from cputune.emitters.imported import digests, unreachable_parts
from cputune.emitters.training_claims import promise
from cputune.errors import UsageError
from cputune.host import Host
from cputune.host.facts import HostFacts, Package
from cputune.host.probing import probe
from cputune.host.remote.named import Node, choose
from cputune.inside.applying.parts import needed
from cputune.launch.launchers.mpirun import DIALECTS
from cputune.plans.cores import usable_cores
from cputune.plans.delivery.applied_command import AppliedCommand, applied_command
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


def make_job(result: Result | None, asked: Emission) -> LaunchJob:
    """Bring plan, workload, nodes and versions together.

    Without a result the plan is the guides' for the facts that are given. The workload that is
    asked for replaces the one that was tuned. Raises UsageError for what does not fit together.
    """
    facts = asked.facts
    if result is not None:
        tuned = tuned_of(result)
        return _job(tuned, tuned.plan, asked.workload or tuned.workload, asked)
    if facts is None:
        raise UsageError(
            "emit needs a result, or the facts of a machine",
            hint="emit(result), or facts=cputune.probe()",
        )
    job = with_parser(asked.workload or Workload.from_recipe(DEFAULT_RECIPE), asked.host)
    nodes = asked.nodes or len(asked.hosts) or 1
    found = guide_plan(with_versions(facts, asked.versions or {}), job, nodes=max(1, nodes))
    if job.framework == "pytorch":
        found = mild_plan(facts)
    return _job(None, found, job, asked, named=asked.ranks_per_node is not None)


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


def plan_job(plan: Plan, workload: Workload, asked: Emission) -> LaunchJob:
    """The job of a plan that was not measured, for a trial. Raises UsageError as ``make_job``."""
    return _job(None, plan, workload, asked, named=True)


def _job(
    tuned: Tuned | None, found: Plan, workload: Workload, asked: Emission, *, named: bool = False
) -> LaunchJob:
    """The job of a plan and a workload; ``named``: a caller named the plan, unmeasured."""
    found = _with_ranks(found, asked.facts, asked.ranks_per_node)
    mpi, nodes, hosts, facts = asked.mpi, asked.nodes, asked.hosts, asked.facts
    host: Mapping[str, object] = {} if facts is None else host_fingerprint(facts)
    known: Mapping[str, str] = {} if facts is None else versions_of(facts)
    if tuned is not None:
        host, known = tuned.host, tuned.versions
    _refuse_unknown(mpi, nodes)
    if tuned is not None and not hosts and (nodes or found.nodes) <= len(tuned.hosts):
        hosts = tuple(Node(name=HostName(name)) for name in tuned.hosts)
        nodes = nodes or found.nodes
    nodes = nodes or len(hosts) or found.nodes
    hosts = choose(hosts, nodes, found.processes_per_node) if hosts else ()
    plan = replace(found, nodes=nodes, as_found=False)
    chosen = {**known, **(asked.versions or {})}
    refuse_impossible(plan, Versions.from_names(chosen))
    interface = interface_of(asked, plan, tuned, hosts)
    context = ClaimContext(
        workload=workload,
        host=None if facts is None else host_fingerprint(facts),
        nodes=nodes,
        versions={} if facts is None else {**versions_of(facts), **(asked.versions or {})},
        plan=found,
        files={} if asked.host is None else digests(workload.argv, asked.host),
    )
    threads_per_core = counted(host, "threads_per_core")
    physical_cores = counted(host, "physical_cores")
    # What of the result applies to this launch.
    rate, held, claimed = None, None, None
    trials: tuple[tuple[Mapping[str, object], ...], ...] = ()
    is_same_work = tuned is not None and workload == tuned.workload
    if tuned is not None:
        held = tuned.rank_bytes(found)
        claimed = tuned.claim.in_context(context)
        if claimed.applies and not tuned.disturbed:
            rate = tuned.samples_per_second
        if chosen == known:
            trials = tuned.observed(found)
    # How the plan gets into the training.
    workload = workload.with_typed_batch()
    try:
        whole = applied_command(workload, plan, chosen)
    except ValueError as error:
        raise UsageError(
            str(error), hint="--batch-per-rank N sets the samples of each rank"
        ) from error
    way, left_out = whole, dict[str, str]()
    if is_same_work:
        way, left_out = fitted(whole, workload, plan, chosen, found=found, trials=trials)
    way, unreachable = _reachable(way, workload, asked.host)
    left_out |= unreachable
    refuse_unchosen_batch(workload, plan, way)
    target = target_facts(facts, chosen)
    command, notes = training_command(workload, way, context_of(workload, target, asked.host))
    # What it says of itself.
    if tuned is not None and claimed is not None:
        lines = header.measured(tuned, plan, claimed)
    else:
        own = workload.framework == "pytorch"
        lines = header.unmeasured(host, plan, asked=named, own_loop=own)
    scale = header.scale_lines(tuned, plan, workload)
    siblings = 1 if facts is None else facts.topology.threads_per_core
    found_mpi = "intelmpi" if plan.backend == "ccl" else mpi_of(facts)
    job = LaunchJob(
        plan=plan,
        workload=workload,
        command=command,
        environment=typed(way.variables),
        header=(*lines[:2], *scale, *lines[2:]),
        notes=notes,
        threads_per_core=threads_per_core or siblings,
        physical_cores=physical_cores,
        nodes=hosts,
        mpi=mpi or found_mpi,
        mpi_asked=mpi is not None,
        python=asked.python,
        versions=chosen,
        cluster=asked.cluster or Cluster(),
        interface=interface,
        printed_notes=scale,
        target=target,
        host=asked.host,
        force=way.force,
        named=None if tuned is None else asked.named,
        context=context,
        surrounding=frozenset(() if facts is None else facts.environment),
        patch=asked.patch,
        rank_bytes=held,
        self_contained=asked.self_contained or not asked.importable or nodes > 1,
        guard=not asked.no_guard and way.comparable,
        draws_apart=whole.force is not None and whole.force.other_ranks,
        left_out=left_out,
        flags=way.flags,
    )
    return replace(job, companions=companions(job), promise=promise(job, rate))


def _refuse_unknown(mpi: str | None, nodes: int | None) -> None:
    """Raise UsageError for an MPI that has no dialect here, and for less than one node."""
    if mpi is not None and mpi not in DIALECTS:
        raise UsageError(f"no MPI is called {mpi!r}", hint="one of: " + ", ".join(DIALECTS))
    if nodes is not None and nodes < 1:
        raise UsageError(f"a job has 1 node or more, not {nodes}", hint="--nodes 1")


def _reachable(
    way: AppliedCommand, workload: Workload, host: Host | None
) -> tuple[AppliedCommand, dict[str, str]]:
    """A plan without the parts that no line of the script reaches, and why each is left out."""
    force = way.force
    if force is None or workload.recipe is not None:
        return way, {}
    modules = [part.module for part in needed(force)]
    found = unreachable_parts(workload.argv[0], host or Host())
    left_out = {module: why for module, why in found.items() if module in modules}
    if not left_out:
        return way, {}
    force = replace(force, without=(*force.without, *left_out))
    return replace(way, force=force), left_out


def job_name(job: LaunchJob) -> str:
    """A name for clusters (DNS-1035): the one that was given, or made of the workload's."""
    given = job.cluster.job_name
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
    packages = ((name, facts.package(name)) for name in header.TRAINING_PACKAGES)
    return {name: found.version for name, found in packages if found and found.version}


def with_versions(facts: HostFacts, versions: Mapping[str, str]) -> HostFacts:
    """The machine with these versions."""
    kept = tuple(package for package in facts.packages if package.name not in versions)
    named = (Package(name=name, version=v, location=None) for name, v in versions.items())
    return replace(facts, packages=(*kept, *named))


def target_facts(facts: HostFacts | None, versions: Mapping[str, str]) -> HostFacts:
    """Facts of the machine that runs the job: those given, else this one's, with those packages."""
    packages = (Package(name=name, version=v, location=None) for name, v in versions.items())
    known = probe(Host()) if facts is None else facts
    return replace(known, packages=tuple(packages), environment={})


def mpi_of(facts: HostFacts | None) -> str | None:
    """The dialect of the first ``mpirun`` on PATH; None for an unknown one."""
    launchers = facts.launchers if facts is not None else ()
    return next((launcher.dialect for launcher in launchers if launcher.dialect in DIALECTS), None)


def usual_format(facts: HostFacts) -> str:
    """The format of a launch that this machine can run: torchrun comes with torch."""
    return "torchrun" if mpi_of(facts) is None else "mpirun"


def interface_of(
    asked: Emission, plan: Plan, tuned: Tuned | None, hosts: tuple[Node, ...]
) -> str | None:
    """The interface's name; None if each layer may choose.

    The one that the user names, else the one on which these hosts were measured. Raises UsageError
    for an invalid name, or one that does not reach other hosts.
    """
    found = None if asked.cluster is None else asked.cluster.interface
    measured = tuned is not None and all(node.name in tuned.hosts for node in hosts)
    if found is None and tuned is not None and measured and plan.nodes > 1:
        found = tuned.interface
    return None if found is None else checked(found, nodes=plan.nodes)
