"""``cputune doctor --pid N``: a job that runs, with all ranks below its launcher.

Its variables, CPUs, threads, libraries and memory are read from /proc. A job that computes nothing
is reported with what it waits for. It is not stopped.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cputune.doctor.checks import launch, libraries, limits, settings, threads
from cputune.doctor.finding import Finding, Severity, by_severity, checks_of, fault, findings_of
from cputune.errors import CannotError
from cputune.host import Host
from cputune.host.facts import HostFacts
from cputune.host.probing.limits import with_quota_of
from cputune.host.probing.scrub import Scrubber, read_environment
from cputune.host.process_tree import (
    Running,
    look_at_job,
    peers_of,
    python_stack,
)
from cputune.launch.shell import read_words
from cputune.text import cpulist
from cputune.text.hidden import without_secrets
from cputune.text.plain import GIB

# Share of a rank's memory on NUMA nodes without its CPUs, above which it is a finding. Assumed.
REMOTE_SHARE = 0.2
# Share of OMP_NUM_THREADS that must run. Assumed: parts of a step run in one thread.
FEW_RUN = 0.5

# Checks of variables and CPUs: they judge the environment of a rank.
_CHECKS = launch.CHECKS + libraries.CHECKS + settings.CHECKS + threads.CHECKS
_OF_CGROUP = (limits.quota_threads, limits.quota_throttled)
# Codes about a new launch.
_OF_NEW_LAUNCHES = ("ranks-alone", "shell-bound")


def judge_job(pid: int, facts: HostFacts, host: Host) -> tuple[Finding, ...]:
    """What is wrong with a running job, the worst first. Raises CannotError if it cannot be
    examined.
    """
    try:
        family = look_at_job(host, pid)
    except ProcessLookupError as error:
        hint = "ps -eo pid,args | grep python"
        raise CannotError(f"there is no process {pid}", hint=hint) from error
    except PermissionError as error:
        hint = "run the doctor as its user, or as root"
        raise CannotError(f"process {pid} belongs to another user", hint=hint) from error
    ranks = _ranks(family)
    if ranks:
        limits = with_quota_of(facts.limits, host, ranks[0].pid)
        facts = replace(facts, limits=limits)
    findings: list[Finding] = [job_seen.finding(_state_of(each)) for each in ranks]
    collectives = dict[str, str]()
    for each in ranks:
        findings += _of_rank(each, facts)
        wait = wait_of(each, _children(each, family), host)
        if wait is not None:
            findings.append(_finding_of(each, wait))
            if wait.collective:
                collectives[_name(each)] = wait.collective
    findings += _mismatch(collectives)
    findings += _shared_cpus(ranks)
    if ranks:
        findings += _variables(ranks[0], facts)
    return by_severity(findings)


def _ranks(family: tuple[Running, ...]) -> list[Running]:
    """The processes that a launcher numbered, else those that load torch.

    A launcher may load torch too, and DataLoader workers have the variables of their rank.
    """
    with_torch = [each for each in family if each.torch]
    numbered = [each for each in with_torch if each.rank]
    chosen = numbered or with_torch
    if not chosen:
        chosen = list(family)
    pids = {each.pid for each in chosen}
    return [each for each in chosen if each.parent not in pids]


def _children(parent: Running, family: Sequence[Running]) -> list[Running]:
    return [each for each in family if each.parent == parent.pid]


def _name(each: Running) -> str:
    if each.rank:
        return f"rank {each.rank} (process {each.pid})"
    return f"process {each.pid}"


def _state_of(each: Running) -> str:
    """One line about what a rank does."""
    parts = [f"{_name(each)}: CPUs {cpulist.render(each.cpus) or '(not known)'}"]
    parts.append(f"{each.running} of {len(each.threads)} threads run, {each.share:.1f} CPUs in use")
    parts += [path.rpartition("/")[2] for path in each.openmp + each.allocators]
    if not each.allocators:
        parts.append("malloc of libc")
    for node, size in each.memory_bytes.items():
        parts.append(f"{size / GIB:.1f} GiB on node {node}")
    parts += _precision(each)
    return ", ".join(parts)


def _precision(each: Running) -> Iterator[str]:
    """The precision in its words or variables; what it computes in is not seen."""
    launches = read_words(each.argv)
    for precision in ("bf16", "fp16"):
        if launches and launches[0].switched_on(f"--{precision}"):
            yield f"asks for {precision} by --{precision}"
            return
    mixed_precision = each.environment.get("ACCELERATE_MIXED_PRECISION", "")
    if mixed_precision not in ("", "no"):
        yield f"asks for {mixed_precision} by ACCELERATE_MIXED_PRECISION"


def _of_rank(each: Running, facts: HostFacts) -> Iterator[Finding]:
    setting = each.environment.get("OMP_NUM_THREADS", "").partition(",")[0]
    wanted = 0
    if setting.isdigit():
        wanted = int(setting)
    ready = 0
    if not each.waits:
        ready = sum(thread.ready for thread in each.threads)
    if each.running > len(each.cpus) > 0:
        yield job_threads.finding(
            f"{_name(each)}: {each.running} threads run on {len(each.cpus)} CPUs"
        )
    elif ready > each.running and each.share < FEW_RUN * min(ready, _cpus_of(each, facts)):
        yield job_threads.finding(
            f"{_name(each)}: {ready} threads are ready to run "
            f"and get {each.share:.1f} CPUs: other processes use them"
        )
    elif wanted > 1 and 0 < each.running < FEW_RUN * wanted:
        yield job_threads.finding(
            f"{_name(each)}: OMP_NUM_THREADS={wanted}, and {each.running} threads run",
            severity=Severity.ADVICE,
        )
    elif wanted > 1 and len(each.cpus) == 1:
        yield job_threads.finding(
            f"{_name(each)}: OMP_NUM_THREADS={wanted} on one CPU, {cpulist.render(each.cpus)}"
        )
    if len(each.openmp) > 1:
        yield job_openmp.finding(f"{_name(each)}: {', '.join(each.openmp)}")
    yield from _remote_memory(each, facts)


def _cpus_of(each: Running, facts: HostFacts) -> float:
    """The CPUs that a rank may use: its own, or the CPU time of its cgroup."""
    quota = facts.limits.cpu_quota
    if quota is None:
        return len(each.cpus)
    return min(quota, len(each.cpus))


def _remote_memory(each: Running, facts: HostFacts) -> Iterator[Finding]:
    nodes = set()
    for node in facts.topology.numa_nodes:
        if not set(each.cpus).isdisjoint(node.cpus or ()):
            nodes.add(node.id)
    total = sum(each.memory_bytes.values())
    local = sum(each.memory_bytes.get(node, 0) for node in nodes)
    remote = total - local
    if nodes and total and remote / total > REMOTE_SHARE:
        yield job_remote.finding(
            f"{_name(each)}: {remote / GIB:.1f} of {total / GIB:.1f} GiB are on other nodes "
            f"than its CPUs ({cpulist.render(nodes)})"
        )


def _shared_cpus(ranks: list[Running]) -> Iterator[Finding]:
    """Ranks that are bound to the same CPUs although others are free."""
    for at, one in enumerate(ranks):
        for other in ranks[at + 1 :]:
            shared = set(one.cpus) & set(other.cpus)
            busy = one.running + other.running
            if shared and busy > len(set(one.cpus) | set(other.cpus)):
                yield job_threads.finding(
                    f"{_name(one)} and {_name(other)} share CPUs {cpulist.render(shared)}, and "
                    f"{busy} of their threads run"
                )
                return


def _variables(each: Running, facts: HostFacts) -> Iterator[Finding]:
    """Findings for the variables, the CPUs and the cgroup of a rank."""
    around = replace(
        facts,
        environment=read_environment(each.environment, Scrubber()),
        topology=replace(facts.topology, allowed=each.cpus or facts.topology.allowed),
        preload_missing=(),
    )
    for finding in findings_of(_CHECKS + _OF_CGROUP, around):
        if finding.severity is not Severity.ADVICE and finding.code not in _OF_NEW_LAUNCHES:
            yield replace(finding, evidence=f"{_name(each)}: {finding.evidence}")


_WAITS = (
    # frames of a stack, and what the process waits for
    (r"init_process_group|rendezvous|TCPStore|connectFullMesh|_create_c10d_store|_store_based_barr",
     "it waits for other ranks to connect: {store}"),
    (r"\b(all_reduce|all_gather|barrier|broadcast|reduce_scatter|gather|scatter|wait_all)\b|"
     r"_allreduce|allreduce_hook|backward .*distributed",
     "it waits in a collective for another rank, which is late, hangs or has ended"),
    (r"hf_hub_download|snapshot_download|huggingface_hub|hf_xet|http_get|urllib3|httpx|httpcore",
     "it waits for the hub, or for another server: {peers}"),
    (r"filelock|FileLock|soft_file|lockf", "it waits for a lock file that another process holds"),
    (r"_try_get_data|_next_data|_get_data", "it waits for a worker of its DataLoader"),
    (r"multiprocess\w*/pool|_handle_results|iflatmap_unordered|pool\.py",
     "it waits for the processes of a pool"),
    (r"torch/_inductor|compile_fx|async_compile", "it waits for torch.compile"),
    (r"\binput\b|readline|pdb\.py", "it waits for keyboard input"),
)  # fmt: skip
_NETWORK = re.compile(r"inet_csk_accept|tcp_recv|sk_wait|wait_woken|unix_stream|skb_wait")


def _finding_of(each: Running, wait: Wait) -> Finding:
    text = without_secrets(f"{_name(each)}: {wait.cause} ({wait.place})", each.environment)
    remedy = None
    if wait.is_deadlock:
        remedy = FORK_REMEDY
    elif each.stopped:
        remedy = f"Let it go on: kill -CONT {each.pid}"
    elif not wait.has_stack and signal.SIGUSR1 in each.catches:
        remedy = f"It handles SIGUSR1: kill -USR1 {each.pid} may print its stacks to its own log."
    return job_waits.finding(text, remedy=remedy)


def _mismatch(collectives: Mapping[str, str]) -> Iterator[Finding]:
    """Ranks that wait in collectives of different kinds, which never meet."""
    if len(set(collectives.values())) > 1:
        text = ", ".join(f"{rank} is in {name}" for rank, name in collectives.items())
        yield job_mismatch.finding(text)


FORK_REMEDY = (
    "End it. Start the processes before torch computes or a tokenizer is used (num_proc=1 starts "
    "none), start them by spawn, or forbid the threads: OMP_NUM_THREADS=1 while the data is "
    "prepared, TOKENIZERS_PARALLELISM=false."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a process waits for.

    Attributes:
        cause: a clause that begins with "it" or "its".
        place: the frames that show it; or why no stack is known.
        is_deadlock: it waits for ever, whatever the rest of the job does.
        collective: the collective of torch that it waits in, if its stack shows one.
    """

    cause: str
    place: str
    has_stack: bool
    is_deadlock: bool = False
    collective: str = ""

    @property
    def as_text(self) -> str:
        """The cause, the place, and what to do about a deadlock."""
        text = f"{self.cause} ({self.place})"
        if self.is_deadlock:
            return f"{text}. {FORK_REMEDY}"
        return text


def wait_of(each: Running, children: Sequence[Running], host: Host) -> Wait | None:
    """What a process and those that it has started wait for; None if one of them computes."""
    if each.stopped:
        return Wait(
            cause="it is stopped, by a signal (SIGSTOP, Ctrl-Z) or a debugger",
            place="its state in /proc is T",
            has_stack=True,
        )
    if not each.polls or not all(child.waits for child in children):
        return None
    stuck = _stuck_in_fork(each, children, host)
    if stuck is not None or not each.waits:
        return stuck
    stack, reason = python_stack(host, each)
    peers = peers_of(host, each.pid)
    port = each.environment.get("MASTER_PORT", "")
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    settings = []
    for name in names:
        if name in each.environment:
            settings.append(f"{name}={each.environment[name]}")
    settings += [f"connected to {peer}" for peer in peers]
    meant = {
        "store": ", ".join(settings) or "no address is in its variables",
        "peers": ", ".join(peers) or "no connection is open",
    }
    cause = _cause(each, stack, peers, port).format(**meant)
    if stack:
        place = _place(stack)
    else:
        place = reason
    return Wait(cause=cause, place=place, has_stack=bool(stack), collective=_collective_in(stack))


_COLLECTIVE = re.compile(
    r"^(all_reduce|all_gather\w*|all_to_all\w*|barrier|monitored_barrier|broadcast\w*|"
    r"reduce_scatter\w*|reduce|gather\w*|scatter\w*|send|recv)\b.*distributed_c10d"
)


def _collective_in(stack: Sequence[str]) -> str:
    """The outermost call of torch.distributed in a stack: objects are sent by several others."""
    names = []
    for frame in stack:
        match = _COLLECTIVE.search(frame)
        if match:
            names.append(match[1])
    if names:
        return names[-1]
    return ""


def wait_in_family(family: Sequence[Running], host: Host) -> Wait | None:
    """What the processes of a launch wait for, a deadlock first; None if one of them computes."""
    if not all(each.waits for each in family):
        return None
    waits: list[Wait] = []
    for each in _ranks(tuple(family)):
        wait = wait_of(each, _children(each, family), host)
        if wait is not None:
            waits.append(wait)
    waits.sort(key=lambda wait: not wait.is_deadlock)
    if waits:
        return waits[0]
    return None


def _place(stack: Sequence[str]) -> str:
    """The innermost two frames of a stack, and the outermost of the script."""
    script = []
    for frame in stack:
        if not _BY_WHICH.search(frame):
            script.append(frame)
    return "; ".join(dict.fromkeys(list(stack[:2]) + script[-1:]))


# Frames by which Python and a trial start a script.
_BY_WHICH = re.compile(r"\(<|runpy\.py|[(/]cputune/(?:inside|ranks)/")


# Frames in which an idle process of a pool waits for its next task.
_LOCKED_BY_PYTHON = re.compile(
    r"multiprocess\w*/|billiard/|loky/|/queue\.py|threading\.py|selectors\.py|concurrent/"
)


def _stuck_in_fork(each: Running, children: Sequence[Running], host: Host) -> Wait | None:
    """The deadlock of a process that was forked after threads had started, or None.

    A fork has none of the threads of its parent. OpenMP's pool and Rust's still count on them.
    """
    forks = [child for child in children if child.argv == each.argv and _in_futex(child)]
    for child in forks:
        stack, _ = python_stack(host, child)
        if stack and not _LOCKED_BY_PYTHON.search(stack[0]):
            threads = "OpenMP threads"
            if "token" in " ".join(stack[:2]):
                threads = "threads of the tokenizer"
            return Wait(
                cause=f"its pool was forked after {threads} had started, which a forked process "
                f"does not have: process {child.pid} waits for them for ever",
                place=_place(stack),
                has_stack=True,
                is_deadlock=True,
            )
    # One of the processes of an idle pool reads from a pipe, and the others wait for it to do so.
    if children and len(forks) == len(children):
        stack, reason = python_stack(host, each)
        return Wait(
            cause="its pool waits for a lock: it was forked after OpenMP threads had started",
            place=_place(stack) if stack else reason,
            has_stack=bool(stack),
        )
    return None


def _in_futex(child: Running) -> bool:
    """Whether all of its few threads wait for a lock."""
    return 0 < len(child.threads) <= 2 and all("futex" in t.waits_in for t in child.threads)


def _cause(each: Running, stack: tuple[str, ...], peers: tuple[str, ...], port: str) -> str:
    """A sentence about the innermost frame that explains the wait; else what the kernel shows."""
    for frame in stack:
        for pattern, sentence in _WAITS:
            if re.search(pattern, frame):
                return sentence
    ports = {peer.rpartition(":")[2] for peer in peers}
    if port and port in ports:
        return "it is connected to the store of its ranks, and waits for one of them: {store}"
    if not ports.isdisjoint(("443", "80")):
        return "it waits for the hub, or for another server: {peers}"
    main = next((thread for thread in each.threads if thread.id == each.pid), None)
    if main is not None and _NETWORK.search(main.waits_in):
        return "it waits for another process: {peers}"
    if main is not None and "nanosleep" in main.waits_in:
        return "it sleeps"
    if main is not None and "futex" in main.waits_in:
        return "it waits for another of its threads"
    return (
        f"it computes nothing; the kernel says {main.waits_in or 'nothing' if main else 'nothing'}"
    )


@fault("job-seen", Severity.ADVICE)
def job_seen() -> None:
    """What this job does

    Each rank was looked at twice within a second: its allowed CPUs, threads that used more than
    half of a CPU, mapped OpenMP runtimes and allocators, memory on each NUMA node.

    Remedy: This alone is not a fault.

    Source: https://man7.org/linux/man-pages/man5/proc_pid_numa_maps.5.html
    """


@fault("job-threads", Severity.WARNING)
def job_threads() -> None:
    """This job does not use its CPUs as requested

    Symptom: steps take longer than the CPUs explain.

    Cause: more threads run than the rank has CPUs, ranks share CPUs, or a binding leaves a rank
    fewer CPUs than threads. This was counted in one second; a step that loads data may look the
    same.

    Remedy: Give each rank its own CPUs, and as many threads: `cputune doctor -- LAUNCH` says which
    options bind them.

    Source: https://docs.kernel.org/scheduler/sched-design-CFS.html
    """


@fault("job-openmp-two", Severity.WARNING)
def job_openmp() -> None:
    """Several OpenMP runtimes are loaded into a rank

    Symptom: twice as many threads as requested, which compete for the cores.

    Cause: torch, scikit-learn, MKL and others each contain an OpenMP runtime.

    Remedy: Preload the runtime that torch should use, or install all packages with one tool.

    Source: pytorch/pytorch#98836
    """


@fault("job-memory-remote", Severity.WARNING)
def job_remote() -> None:
    """Memory of a rank is on another NUMA node than its CPUs

    Symptom: half of the memory bandwidth, or less.

    Cause: the rank was bound after it had allocated, its node was full, or numactl bound memory to
    another node. numa_maps counts its pages.

    Remedy: Bind CPUs and memory of the rank at its start: numactl -N NODE -m NODE.

    Source: https://docs.kernel.org/mm/numa.html
    """


@fault("job-waits", Severity.ERROR)
def job_waits() -> None:
    """A rank computes nothing: it waits

    Symptom: no progress, no error.

    Cause: none of its threads used the CPU within a second. What it waits for is in the stack of
    its main thread, which py-spy reads without stopping the process; else in its connections and
    the kernel.

    Remedy: Check the other rank, the address or the file in the evidence.

    Source: https://github.com/benfred/py-spy
    """


@fault("job-collectives", Severity.ERROR)
def job_mismatch() -> None:
    """Ranks wait in different collectives

    Symptom: no progress, no error; later "Detected mismatch between collectives" or a timeout.

    Cause: a rank took another way through the script: a branch on its rank, an evaluation or a
    checkpoint on rank 0 alone, or fewer batches. Its collective meets that of the others never.

    Remedy: Let all ranks call the same collectives in the same order.

    Source: https://docs.pytorch.org/docs/stable/distributed.html
    """


CHECKS = checks_of(__name__)
