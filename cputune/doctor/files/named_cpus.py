"""CPUs, cores and NUMA nodes that a launch names and its machine does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.host.facts import Topology
from cputune.launch.launch import CONFINERS
from cputune.launch.located_words import number_of, value_of
from cputune.text import cpulist


@fault("cpus-absent", Severity.ERROR)
def cpus_absent() -> None:
    """The launch names CPUs or NUMA nodes that this machine does not have

    Symptom: "Please make sure ninstances * ncores_per_instance <= total_cores", "Invalid node id",
    "node argument 1 is out of range", "cpu argument 0-27 is out of range", "failed to set pid's
    affinity: Invalid argument", "Requested CPUs are not available".

    Cause: the numbers are those of another machine.

    Remedy: Name CPUs and nodes of this machine; `lscpu` lists them.

    Source: torch/backends/xeon/run_cpu.py (2.13), numactl(8), taskset(1),
    https://docs.docker.com/engine/containers/resource_constraints/
    """


def judge_named_cpus(launch: JudgedLaunch) -> Iterator[Finding]:
    """Launches that end at once because of CPUs that are not there."""
    topology, container = launch.facts.topology, launch.container
    elsewhere = launch.context.target.elsewhere
    if container is not None and launch.context.target.source == container.called:
        elsewhere = container.cpus > 0  # then only the number of its CPUs is known
    if not launch.context.here or elsewhere or not topology.online:
        return
    texts = [*_of_run_cpu(launch, topology), *_of_confiners(launch, topology)]
    if container is not None:
        texts += _listed("--cpuset-cpus", container.cpuset, topology.online, "CPUs")
    for text in texts:
        yield cpus_absent.finding(launch.at(text))


def _of_run_cpu(launch: JudgedLaunch, topology: Topology) -> Iterator[str]:
    """``run_cpu`` counts physical cores, or with an option hyperthreads."""
    decides = launch.option("--throughput_mode", "--latency_mode") is None
    if launch.launcher != "run_cpu" or not decides:
        return
    nodes = tuple(node.id for node in topology.numa_nodes)
    yield from _listed("--node_id", launch.option("--node_id"), nodes, "NUMA nodes")
    if launch.option("--core_list") is not None or not topology.cores_known:
        return
    cores, kind = topology.physical_cores, "cores"
    if launch.option("--use_logical_core") is not None:
        cores, kind = len(topology.online), "CPUs"
    instances, threads = launch.total_ranks, number_of(launch.meant("threads"))
    if (instances or 1) * (threads or 1) > cores:
        named = f"--ninstances {instances}" if instances else ""
        if threads:
            named = f"{named} --ncores_per_instance {threads}".strip()
        yield f"run_cpu {named}, and this machine has {cores} {kind}"


def _of_confiners(launch: JudgedLaunch, topology: Topology) -> Iterator[str]:
    names = [word.rpartition("/")[2] for word in launch.before]
    for at, name in enumerate(names):
        if name not in CONFINERS:
            continue
        words = launch.before[at + 1 :]
        if name == "taskset":
            named = value_of(words, "-c", "--cpu_list")
            if not _there(named, topology.online):
                online = cpulist.render(topology.online)
                yield f"taskset -c {named}, and this machine has CPUs {online}"
            continue
        nodes = tuple(node.id for node in topology.numa_nodes)
        for options in (("-N", "--cpunodebind"), ("-m", "--membind")):
            yield from _listed(f"numactl {options[1]}", value_of(words, *options), nodes, "nodes")
        cpus = value_of(words, "-C", "--physcpubind")
        yield from _listed("numactl --physcpubind", cpus, topology.online, "CPUs")


def _listed(option: str, named: str | None, present: Sequence[int], kind: str) -> Iterator[str]:
    """A text if not all that are named are present; a word that is no list is passed over."""
    with contextlib.suppress(ValueError):
        if named and present and not set(cpulist.parse(named)) <= set(present):
            yield f"{option} {named}, and this machine has {kind} {cpulist.render(present)}"


def _there(named: str | None, present: Sequence[int]) -> bool:
    """Whether one of the named CPUs is present: the kernel leaves out the others."""
    with contextlib.suppress(ValueError):
        return not named or bool(set(cpulist.parse(named)) & set(present))
    return True


CHECKS = checks_of(__name__)
