"""From a result (or a machine alone) to a ``Job``: the plan made ready to be written down."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cputune.carrier.command import carried
from cputune.emitters import header
from cputune.emitters.command import (
    CARRY_SCRIPT,
    RECIPE_FILE,
    TRAIN_SCRIPT,
    refuse_impossible,
    refuse_lost,
    refuse_unchosen_batch,
    training_command,
)
from cputune.emitters.extrapolated import is_extrapolated, scale_lines, scale_promise
from cputune.emitters.interface import (
    MPI_DIALECTS,
    Beside,
    Cluster,
    EmittedFile,
    Job,
    Word,
)
from cputune.emitters.network import interface_of
from cputune.errors import UsageError
from cputune.facts import HostFacts, Network, Package
from cputune.inside import carry_script, lightning_script, recipe_script, torch_script
from cputune.inside.state import digest
from cputune.knobs.interface import interface_of as interface_named
from cputune.layout import guide_plan
from cputune.nodes.named import Node, choose
from cputune.plan import Plan
from cputune.result import Result, host_fingerprint
from cputune.stack import Versions
from cputune.workload import DEFAULT_RECIPE, Workload

RANK_SCRIPT = "rank.py"
TRAINING_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "intel_extension_for_pytorch",
    "oneccl_bind_pt",
)


def make_job(
    result: Result | None,
    *,
    facts: HostFacts | None = None,
    workload: Workload | None = None,
    nodes: int | None = None,
    hosts: tuple[Node, ...] = (),
    mpi: str | None = None,
    python: str | None = None,
    versions: Mapping[str, str] | None = None,
    cluster: Cluster | None = None,
    networks: Mapping[str, Network] | None = None,
    carrier: bool = True,
) -> Job:
    """Bring plan, workload, nodes and versions together.

    Without a result the plan is the guide's for ``facts``. ``workload`` replaces the one
    that was tuned. Raises UsageError for what does not fit together.
    """
    if mpi is not None and mpi not in MPI_DIALECTS:
        raise UsageError(f"no MPI is called {mpi!r}", hint="one of: " + ", ".join(MPI_DIALECTS))
    if nodes is not None and nodes < 1:
        raise UsageError(f"a job has 1 node or more, not {nodes}", hint="--nodes 1")
    if result is not None:
        found, host = result.best.plan, result.host
        known: Mapping[str, str] = result.versions
    elif facts is not None:
        there = with_versions(facts, versions or {})
        job = workload or Workload.from_recipe(DEFAULT_RECIPE)
        found, host = guide_plan(there, job), host_fingerprint(facts)
        known = versions_of(facts)
    else:
        raise UsageError(
            "there is nothing to write down", hint="give a result, or the facts of a machine"
        )
    workload = workload or (result.workload if result else Workload.from_recipe(DEFAULT_RECIPE))
    if result is not None and not hosts and (nodes or found.nodes) <= len(result.hosts):
        hosts = tuple(Node(name=name) for name in result.hosts)
        nodes = nodes or found.nodes
    nodes = nodes or len(hosts) or found.nodes
    hosts = choose(hosts, nodes, found.processes_per_node) if hosts else ()
    plan = replace(placed_on(found, nodes, hosts, result.hosts if result else ()), as_found=False)
    for library in plan.preload:
        if not library.startswith("/") or any(c in library for c in ": \t\n"):
            raise UsageError(
                f"LD_PRELOAD cannot carry the path {library!r}",
                hint="link the library to an absolute path without spaces and colons, tune again",
            )
    chosen = {**known, **(versions or {})}
    refuse_impossible(plan, Versions.from_names(chosen))
    try:
        way = carried(workload, plan, chosen, by_flags=not carrier)
    except ValueError as error:
        raise UsageError(
            str(error), hint="--batch-per-rank N keeps the guides' way, N samples for each rank"
        ) from error
    if not carrier:
        refuse_lost(workload, plan, way, result)
    refuse_unchosen_batch(workload, plan, way)
    scale = scale_lines(result, plan, workload)
    said = header.measured(result, plan) if result is not None else header.unmeasured(host, plan)
    said = (*said, *scale)
    interface, of_network = interface_of(
        hosts,
        asked=(cluster or Cluster()).interface,
        measured=_measured_on(plan, result, hosts),
        here=facts.network if facts is not None else None,
        seen=networks or {},
        wanted=plan.nodes,
    )
    command, notes = training_command(workload, way, carrier=carrier)
    return Job(
        plan=plan,
        workload=workload,
        command=command,
        environment=way.variables,
        companions=companions(workload, command, said),
        header=said,
        promise=promise(plan, workload, result, way.variables, command, hosts),
        notes=(*notes, *of_network),
        threads_per_core=threads_per_core(host, facts),
        physical_cores=_count(host, "physical_cores"),
        nodes=hosts,
        mpi=mpi or ("intelmpi" if plan.backend == "ccl" else mpi_of(facts)),
        python=python,
        versions=chosen,
        cluster=cluster or Cluster(),
        interface=interface,
        aloud=scale,
    )


def _measured_on(plan: Plan, result: Result | None, hosts: tuple[Node, ...]) -> str | None:
    """The interface on which these very hosts were measured; None for other hosts."""
    if result is None or plan.nodes == 1 or not hosts:
        return None
    known = all(node.name in result.hosts for node in hosts)
    return interface_named(plan) or result.interface if known else None


def placed_on(plan: Plan, nodes: int, hosts: tuple[Node, ...], measured: tuple[str, ...]) -> Plan:
    """The plan on ``nodes`` nodes; where they differ each host has its CPUs, in any order.

    ``measured`` are the hosts whose CPUs the plan holds, in its order. Raises UsageError for
    a host that is not among them, and for more nodes than the plan has CPUs for.
    """
    if not plan.node_cpus or not hosts or not measured:
        try:
            return plan.on_first_nodes(nodes)
        except ValueError as error:
            raise UsageError(str(error), hint="tune over all these hosts") from error
    places = measured[: plan.nodes]
    unknown = [node.name for node in hosts if node.name not in places]
    if unknown:
        raise UsageError(
            f"the plan has no CPUs for {unknown[0]}: it is of {', '.join(places)}, which differ",
            hint="name those hosts, or tune over these",
        )
    order = [places.index(node.name) for node in hosts]
    return plan.on_nodes(
        [plan.cpus_on(node) for node in order],
        [plan.ccl_cpus_on(node) for node in order] if plan.ccl_cpus else (),
    )


def promise(
    plan: Plan,
    workload: Workload,
    result: Result | None,
    variables: Mapping[str, str],
    command: tuple[Word, ...],
    hosts: tuple[Node, ...] = (),
) -> dict[str, Any]:
    """What `cputune verify` holds an artefact against, beside its format.

    The speed only where it was measured on as many nodes.
    """
    said: dict[str, Any] = {"plan": plan.to_json(), "environment": dict(variables)}
    if plan.nodes > 1 and hosts:
        said["hosts"] = [node.name for node in hosts]
    if result is not None and not result.disturbed and not is_extrapolated(result, plan):
        said["samples_per_second"] = asdict(result.best.samples_per_second)
    samples = workload.samples_per_rank(plan.world_size)
    if samples is not None:
        said["global_batch_size"] = samples * plan.world_size
    said.update(scale_promise(result, plan, workload))
    if workload.recipe is not None:
        said["sequence_length"] = workload.recipe.sequence_length
    said["words"] = promised_words(workload, command)
    return said


def promised_words(workload: Workload, command: tuple[Word, ...]) -> list[str | None]:
    """The command line of a rank as digests (``cputune.inside.state``), the script first.

    ``file:`` stands before the digest of what a file of the artefact holds. None is any
    word: the user's own script by whatever path, a place for output, a secret.
    """
    texts = {file.name: file.text for file in companions(workload, command, ())}
    if Beside(CARRY_SCRIPT) in command:
        command = command[2:]  # carry.py takes itself and its first word away
    if workload.recipe is None:
        command = command[len(workload.program) :]
    said: list[str | None] = [] if workload.recipe is not None else [None]
    for word in command:
        if isinstance(word, Beside):
            said.append("file:" + digest(texts[word.name].encode()))
        else:
            said.append(digest(word.encode()) if isinstance(word, str) else None)
    return said


def rank_script() -> Path:
    """What numbers and binds one rank; emitted beside launches as ``rank.py``."""
    return Path(__file__).with_name("_rank.py")


def companions(
    workload: Workload, command: tuple[Word, ...], said: tuple[str, ...]
) -> tuple[EmittedFile, ...]:
    """rank.py, and what the command needs: carry.py and its files, train.py and recipe.json."""
    files = [_program(RANK_SCRIPT, rank_script(), said)]
    if Beside(CARRY_SCRIPT) in command:
        files.append(_program(CARRY_SCRIPT, carry_script(), said))
        plan = str(command[1])
        beside = [torch_script()] if '"torch":' in plan else []
        if '"world_size":' in plan and workload.framework in (None, "lightning"):
            beside.append(lightning_script())
        files += [EmittedFile(name=f.name, text=f.read_text(encoding="utf-8")) for f in beside]
    if workload.recipe is not None:
        recipe = json.dumps(workload.recipe.to_json(), indent=2, ensure_ascii=False) + "\n"
        files += [
            EmittedFile(name=TRAIN_SCRIPT, text=recipe_script().read_text(encoding="utf-8")),
            EmittedFile(name=RECIPE_FILE, text=recipe),
        ]
    return tuple(files)


def _program(name: str, source: Path, said: tuple[str, ...]) -> EmittedFile:
    """A program of ours, with what was measured in a comment at its head."""
    first, _, rest = source.read_text(encoding="utf-8").partition("\n")
    return EmittedFile(name=name, text=f"{first}\n{header.comment(said)}{rest}", executable=True)


def job_name(job: Job) -> str:
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
    packages = ((name, facts.package(name)) for name in TRAINING_PACKAGES)
    return {name: found.version for name, found in packages if found and found.version}


def with_versions(facts: HostFacts, versions: Mapping[str, str]) -> HostFacts:
    """The machine with these versions in place of its own."""
    kept = tuple(package for package in facts.packages if package.name not in versions)
    named = (Package(name=name, version=v, location=None) for name, v in versions.items())
    return replace(facts, packages=(*kept, *named))


def mpi_of(facts: HostFacts | None) -> str | None:
    """The dialect of the first ``mpirun`` on PATH; None where there is none that we know."""
    launchers = facts.launchers if facts is not None else ()
    return next((one.dialect for one in launchers if one.dialect in MPI_DIALECTS), None)


def usual_format(facts: HostFacts) -> str:
    """The format of a launch that this machine can run: torchrun comes with torch."""
    return "torchrun" if mpi_of(facts) is None else "mpirun"


def threads_per_core(host: Mapping[str, Any], facts: HostFacts | None) -> int:
    """SMT siblings of a core on the machine that was measured; 1 where that is not known."""
    count = _count(host, "threads_per_core")
    return count or (facts.topology.threads_per_core if facts is not None else 1)


def _count(host: Mapping[str, Any], name: str) -> int | None:
    count = header.section(host, "topology").get(name)
    return count if isinstance(count, int) and count > 0 else None
