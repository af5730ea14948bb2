"""What stands around a training command: its launcher, its variables, its CPUs, its address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from cputune import cpulist
from cputune.doctor.checks import (
    affinity,
    binders,
    collectives,
    libraries,
    precision,
    rendezvous,
    threads,
)
from cputune.doctor.checks.rendezvous import LOOPBACK
from cputune.doctor.files.context import Context
from cputune.doctor.finding import Check, Finding, Severity
from cputune.doctor.reading.launches import Launch, value_of
from cputune.facts import HostFacts
from cputune.host import Host
from cputune.probing.surroundings import dead_preloads

LAUNCHER_MISSING = Check(
    code="file-launcher-missing",
    severity=Severity.ERROR,
    title="A program of this launch is not installed",
    remedy="Install it, or launch with what is here (cputune emit writes such launches).",
    source="https://huggingface.co/docs/transformers/perf_train_cpu_many",
    story="""Symptom: "command not found".

Cause: mpirun, torchrun, numactl and the like belong to packages of their own. They are looked
for on PATH, and beside the Python that is examined.""",
)
CPUS_OUTSIDE = Check(
    code="file-cpus-outside",
    severity=Severity.ERROR,
    title="The launch is bound to CPUs that are not there",
    remedy="Name CPUs and nodes of this machine; cputune doctor draws them.",
    source="https://man7.org/linux/man-pages/man1/taskset.1.html",
    story="""Symptom: "taskset: failed to set affinity", "libnuma: … out of range", or fewer CPUs
than were asked for.

Cause: the list was made for another machine. The kernel drops CPUs that are not there, and
refuses a list of which none is left.""",
)
ADDRESS = Check(
    code="file-master-addr",
    severity=Severity.WARNING,
    title="Ranks do not know where the first one is",
    remedy="Export MASTER_ADDR and MASTER_PORT: the first host, or 127.0.0.1 on one.",
    source="https://huggingface.co/docs/transformers/perf_train_cpu_many",
    story="""Symptom: "MASTER_ADDR expected, but not set", or a start that waits for ever.

Cause: mpirun numbers the ranks, and torch.distributed asks where the first one listens, on one
machine too. torchrun and accelerate launch take 127.0.0.1 unless told otherwise. On several
machines that is each machine itself.""",
)

_VARIABLE_CHECKS = (
    threads.threads_malformed,
    threads.threads_mkl,
    threads.threads_limit,
    threads.threads_subset,
    affinity.affinity_shrinks,
    affinity.affinity_gomp,
    binders.bound_twice,
    affinity.places_outside,
    collectives.ccl_affinity,
    collectives.ccl_transport,
    libraries.preload_dead,
    libraries.openmp_two,
    libraries.setting_without_library,
    libraries.blocktime_long,
    libraries.schedule_dynamic,
    precision.isa_capped,
    precision.fp16_ignored,
    rendezvous.rank_impossible,
    rendezvous.master_port,
    rendezvous.interface_missing,
)
"""Checks of the machine that variables alone decide."""
_POD_CHECKS = (
    threads.threads_malformed,
    threads.threads_mkl,
    threads.threads_limit,
    affinity.affinity_shrinks,
    affinity.affinity_gomp,
    libraries.preload_dead,
    libraries.openmp_two,
    libraries.schedule_dynamic,
)
"""Those of them that hold on any machine."""


def judge_around(launch: Launch, context: Context) -> Iterator[Finding]:
    """Every fault of what stands around one training command on this machine."""
    if not context.here:
        return
    yield from _launcher(launch, context)
    yield from _address(launch, context)
    yield from _binding(launch, context)
    yield from _variables(launch, context)


def bound_cpus(launch: Launch, facts: HostFacts) -> tuple[int, ...] | None:
    """The CPUs that taskset or numactl in front of the launch names; None where neither does."""
    words = launch.before
    names = [word.rpartition("/")[2] for word in words]
    listed = None
    if "taskset" in names:
        listed = value_of(words[names.index("taskset") :], ("-c", "--cpu_list", "-pc", "-ac"))
    elif "numactl" in names:
        after = words[names.index("numactl") :]
        listed = value_of(after, ("-C", "--physcpubind"))
        nodes = _numbers(value_of(after, ("-N", "--cpunodebind")))
        if nodes is not None:
            here = [node.cpus or () for node in facts.topology.numa_nodes if node.id in nodes]
            return tuple(sorted(cpu for cpus in here for cpu in cpus))
    return _numbers(listed)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else cpulist.parse(text)
    except ValueError:
        return None


def _launcher(launch: Launch, context: Context) -> Iterator[Finding]:
    """Programs are looked for on the live machine only: a recording knows a few of them."""
    programs = [word for word in launch.before if word in ("numactl", "taskset", "srun")]
    for program in (*programs, launch.program) if context.host.live else ():
        if "$" not in program and context.host.which(program) is None:
            text = f"{program} is not on PATH" if "/" not in program else f"{program} is not there"
            yield LAUNCHER_MISSING.finding(context.at(launch.line, text))


def _address(launch: Launch, context: Context) -> Iterator[Finding]:
    variables = context.variables(launch)
    address, by_hand = variables.get("MASTER_ADDR"), _numbered_by_hand(variables)
    hosts = launch.hosts or _host_file(launch, context)
    machines = launch.machines
    if launch.launcher == "mpirun" or launch.part:
        machines = max(machines, len(hosts or ()), context.batch_nodes)
    if launch.launcher == "torchrun":
        # It sets MASTER_ADDR itself, from these.
        asked = launch.option("--rdzv_endpoint", "--master_addr")
        asked = asked or variables.get("PET_RDZV_ENDPOINT") or variables.get("PET_MASTER_ADDR")
        address = asked or "127.0.0.1"
    elif launch.launcher == "accelerate":
        if launch.option("--config_file") is not None:
            return
        address = launch.option("--main_process_ip") or "127.0.0.1"
    elif launch.launcher == "python" and not (by_hand or launch.part):
        return
    if not address and (by_hand or (launch.launcher == "mpirun" and launch.several)):
        known = launch.host_file is None or hosts is not None
        first = (hosts or ("",))[0] if machines > 1 else "127.0.0.1"
        yield ADDRESS.finding(
            context.at(launch.line, "several ranks and no MASTER_ADDR"),
            command=f"export MASTER_ADDR={first} MASTER_PORT=29500" if known and first else None,
        )
    elif address and machines > 1 and address.startswith(LOOPBACK):
        text = f"{machines} machines are to meet at {address}, which is each machine itself"
        yield ADDRESS.finding(
            context.at(launch.line, text),
            severity=Severity.ERROR,
            title="Ranks on several machines are told to meet on loopback",
            remedy="Name the first machine as the others reach it.",
            command=f"export MASTER_ADDR={hosts[0]}" if hosts else None,
        )


def _numbered_by_hand(variables: dict[str, str]) -> bool:
    """Whether RANK and WORLD_SIZE say that this process is one of several."""
    ranks = variables.get("WORLD_SIZE", "")
    return "RANK" in variables and re.fullmatch(r"[0-9]{1,9}", ranks) is not None and ranks != "1"


def _host_file(launch: Launch, context: Context) -> tuple[str, ...] | None:
    """The machines of the host file, where it can be read."""
    text = context.text_of(launch.host_file) if launch.host_file else None
    if text is None:
        return None
    rows = (re.split(r"[\s:]", line.partition("#")[0].strip())[0] for line in text.splitlines())
    return tuple(dict.fromkeys(row for row in rows if row))


def _binding(launch: Launch, context: Context) -> Iterator[Finding]:
    topology, cpus = context.facts.topology, bound_cpus(launch, context.facts)
    there = set(context.facts.limits.cpuset or topology.online)
    if cpus is None or not there or set(cpus) <= there:
        return
    outside = cpulist.render(set(cpus) - there)
    text = f"CPUs {outside} are named, and there are {cpulist.render(there)}"
    yield CPUS_OUTSIDE.finding(context.at(launch.line, text))


def _variables(launch: Launch, context: Context) -> Iterator[Finding]:
    """What the machine's checks find with the file's variables, and do not find without."""
    variables = context.variables(launch)
    preload = _expanded(variables.get("LD_PRELOAD", ""), variables, context)
    set_here = {**variables, "LD_PRELOAD": preload}
    for finding in _judged(set_here, context, _VARIABLE_CHECKS, context.host):
        yield replace(finding, evidence=context.at(launch.line, finding.evidence))


def judge_pod_variables(
    variables: dict[str, str], line: int | None, context: Context
) -> Iterator[Finding]:
    """What is wrong with the variables of a container, wherever it runs."""
    elsewhere = replace(context, facts=replace(context.facts, environment={}))
    for finding in _judged(variables, elsewhere, _POD_CHECKS, Host()):
        yield replace(finding, evidence=context.at(line, finding.evidence), command=None)


def _judged(
    variables: dict[str, str], context: Context, checks: tuple[Check, ...], host: Host
) -> Iterator[Finding]:
    preload = variables.get("LD_PRELOAD", "")
    kept = {n: text for n, text in variables.items() if "$" not in text or n == "LD_PRELOAD"}
    inside = replace(
        context.facts,
        environment=kept,
        preload_missing=dead_preloads(preload, host, context.facts),
    )
    for check in checks:
        known = check(context.facts)
        yield from (finding for finding in check(inside) if finding not in known)


def _expanded(preload: str, variables: dict[str, str], context: Context) -> str:
    """LD_PRELOAD as a shell of ours would hand it over; "" where only running would show it."""
    outside = context.host.environment()
    text = re.sub(
        r"\$\{?([A-Za-z_]\w*)\}?",
        lambda found: variables.get(found[1]) or outside.get(found[1]) or found[0],
        preload,
    )
    return "" if "$?" in text else text


CHECKS: tuple[Check, ...] = (LAUNCHER_MISSING, CPUS_OUTSIDE, ADDRESS)
