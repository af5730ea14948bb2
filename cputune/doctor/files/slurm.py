"""A batch script of Slurm as a whole: its header, and the steps that run at the same time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cputune.doctor.files.at_once import (
    in_background,
    is_waited_for,
    loop_around,
    until_wait,
    words_of,
)
from cputune.doctor.files.context import Context
from cputune.doctor.files.judged_launch import JudgedLaunch
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.launch.grammar import Tree
from cputune.launch.launchers.srun import step_of
from cputune.launch.located_words import span_of
from cputune.launch.shell import ShellFile
from cputune.launch.target import slurm_header

if TYPE_CHECKING:
    from tree_sitter import Node

_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
# Options with which a step leaves the rest of the job to others.
_SHARES = ("--overlap", "--exact", "--exclusive")
# Programs that start what follows them on other machines.
_REACHES = ("srun", "ssh", "pdsh", "clush", "blaunch", "mpirun", "mpiexec", "mpiexec.hydra")
_REACHING = re.compile(
    r"\b(?:" + "|".join(re.escape(name) for name in _REACHES) + r"|ray|dask\w*|submitit|horovodrun"
    r"|hostfile|jsrun|aprun|charmrun|prun|orterun|parallel)\b"
)
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*")
_NUMBERS = re.compile(
    r"nodes|N|ntasks|n|ntasks-per-(?:node|core|socket)|tasks-per-node|cpus-per-(?:task|gpu)|c"
)
_COUNT = re.compile(r"\d+[kKmM]?(?:[-:,]\d+[kKmM]?)*")
# The long options of sbatch (Slurm 20.11 to 24.11), which may be shortened, and those of pyxis.
_OPTIONS = frozenset(
    re.findall(
        r"\S+",
        """
    account acctg-freq array batch bb bbf begin chdir clusters cluster-constraint comment
    constraint container container-id contiguous container-image container-mounts container-name
    container-workdir container-mount-home container-writable container-env container-remap-root
    core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
    dependency distribution error exclude exclusive export export-file extra extra-node-info
    get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
    gres-flags help hint hold ignore-pbs input job-name kill-on-invalid-dep licenses mail-type
    mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill
    no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
    ntasks-per-socket oom-kill-step open-mode output overcommit oversubscribe parsable partition
    power prefer priority profile propagate qos quiet reboot requeue reservation resv-ports
    segment share signal sockets-per-node spread-job stepmgr switches tasks tasks-per-node
    test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-job
    tres-per-task uid umask usage use-min-nodes verbose version wait wait-all-nodes wckey
    workdir wrap x11
    """,
    )
)
_NODES = re.compile(r"scontrol\s+show\s+hostname|SLURM_(?:JOB_)?NODELIST|SLURM_(?:JOB_NUM_)?NODES")


@fault("slurm-memory-twice", Severity.ERROR)
def memory_twice() -> None:
    """The job asks for memory in two ways

    Symptom: "--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive".

    Cause: sbatch takes one of them; srun reads the others as variables of the job.

    Remedy: Keep --mem, the memory of each node, or --mem-per-cpu.

    Source: https://slurm.schedmd.com/sbatch.html
    """


@fault("slurm-number", Severity.ERROR)
def no_number() -> None:
    """The job's header has a word in place of a number

    Symptom: "sbatch: error: Invalid numeric value", or "Invalid node count".

    Cause: sbatch reads its header as it is written: it fills in no variable, and a placeholder of a
    template is no number.

    Remedy: Write the number, or pass the option on the command line: sbatch --nodes=N FILE.

    Source: https://slurm.schedmd.com/sbatch.html
    """


@fault("slurm-option-unknown", Severity.WARNING)
def option_unknown() -> None:
    """sbatch does not know an option of the job's header

    Symptom: "sbatch: unrecognized option".

    Cause: the option is misspelled, or one of srun or of another system. Only a plugin of the site
    could add it.

    Remedy: Correct or remove it.

    Source: https://slurm.schedmd.com/sbatch.html, https://slurm.schedmd.com/spank.html
    """


@fault("slurm-cpus-unset", Severity.WARNING)
def cpus_unset() -> None:
    """SLURM_CPUS_PER_TASK is not set in this job

    Symptom: "libgomp: Invalid value for environment variable OMP_NUM_THREADS", and one CPU or a
    thread for every core of the node.

    Cause: Slurm sets the variable only for a job that asks for --cpus-per-task.

    Remedy: Write #SBATCH --cpus-per-task=N, with --ntasks=1 for one process.

    Source: https://slurm.schedmd.com/sbatch.html
    """


@fault("slurm-one-cpu", Severity.ADVICE)
def one_cpu() -> None:
    """The job does not ask for CPUs

    Symptom: the training runs on one core of a node that has many.

    Cause: Slurm gives a task one CPU unless --cpus-per-task asks for more. In a partition of whole
    nodes a job has all of their CPUs.

    Remedy: Write #SBATCH --cpus-per-task=N.

    Source: https://slurm.schedmd.com/sbatch.html
    """


@fault("slurm-variable", Severity.ERROR)
def no_variable() -> None:
    """Slurm has no such variable

    Symptom: an option gets an empty value: "invalid literal for int() with base 10: ''".

    Cause: the name is misspelled; the shell reads a variable that nothing sets as nothing.

    Remedy: Write the name that the evidence has.

    Source: https://slurm.schedmd.com/sbatch.html
    """


_MISNAMED = {
    "SLURM_NODES": "SLURM_NNODES",
    "SLURM_NUM_NODES": "SLURM_NNODES",
    "SLURM_NUM_TASKS": "SLURM_NTASKS",
    "SLURM_TASKS": "SLURM_NTASKS",
    "SLURM_RANK": "SLURM_PROCID",
    "SLURM_LOCAL_ID": "SLURM_LOCALID",
    "SLURM_NODE_ID": "SLURM_NODEID",
}


def _cpus(
    header: list[tuple[str, str]], file: ShellFile, context: Context, tree: Tree
) -> Iterator[Finding]:
    """What a job without --cpus-per-task gets, and variables that are empty in it."""
    read = dict[str, int]()
    for kind in ("simple_expansion", "expansion"):
        for node in tree.nodes(kind):
            match = re.fullmatch(r"\$\{?(SLURM_\w+)\}?", tree.of(node))
            if match is not None:
                read.setdefault(match[1], tree.text.count("\n", 0, tree.span(node).start) + 1)
    for name, meant in _MISNAMED.items():
        if name in read and not _assigned(name, tree):
            yield no_variable.finding(context.at(read[name], f"${name}: write ${meant}"))
    names = {name for name, _ in header}
    if names & {"c", "cpus-per-task", "cpus-per-gpu", "exclusive", "tres-per-task"}:
        return
    line = read.get("SLURM_CPUS_PER_TASK")
    if line is not None and not _assigned("SLURM_CPUS_PER_TASK", tree):
        yield cpus_unset.finding(context.at(line, "$SLURM_CPUS_PER_TASK, without --cpus-per-task"))
        return
    target = context.target
    for launch in file.launches[:1]:
        asks = launch.step is not None and (launch.step.asks_cpus or launch.step.unknown)
        if (target.tasks_per_node or 1) == 1 and not target.gpus and not asks:
            text = "no --cpus-per-task: a task gets one CPU"
            yield one_cpu.finding(context.at(launch.line, text))


@fault("slurm-first-node", Severity.WARNING)
def first_node() -> None:
    """Only the first node of the job trains

    Symptom: no error, and the other nodes are idle; or torchrun waits for them for ever.

    Cause: a batch script runs on the first node of its job. Only srun, mpirun or ssh reach the
    others.

    Remedy: Start the launch by srun, one task on each node, or ask for one node.

    Source: https://slurm.schedmd.com/sbatch.html
    """


@fault("slurm-step-whole", Severity.WARNING)
def step_whole() -> None:
    """A step in the background takes the whole job

    Symptom: "Job step creation temporarily disabled, retrying (Requested nodes are busy)"; the
    second step never begins.

    Cause: srun without a number of tasks or nodes starts a step on all that the job has. The next
    step waits until it ends.

    Remedy: Give each step its size (--nodes=1 --ntasks=1 --exact), or --overlap.

    Source: https://slurm.schedmd.com/srun.html
    """


@fault("slurm-loop-local", Severity.WARNING)
def loop_local() -> None:
    """A loop over the nodes starts every launch on the first one

    Symptom: the first node is overloaded, and the others are idle; ranks wait for each other.

    Cause: a batch script runs on the first node of its job. Only srun starts something on the
    others.

    Remedy: Start each launch by srun --nodes=1 --ntasks=1 -w NODE, or all of them by one srun.

    Source: https://slurm.schedmd.com/sbatch.html
    """


def judge_slurm(text: str, file: ShellFile, context: Context) -> Iterator[Finding]:
    """Faults of a batch script of Slurm that no single launch shows."""
    header = slurm_header(text)
    if not header:
        return
    asked = []
    for name, value in header:
        if name in _MEMORY:
            asked.append(f"--{name}={value}")
    if len({word.partition("=")[0] for word in asked}) > 1:
        yield memory_twice.finding(context.at(None, " and ".join(asked)))
    yield from _header(header, context)
    tree = Tree(text)
    yield from _steps(tree, context)
    yield from _cpus(header, file, context, tree)
    looped = list[Finding]()
    if (context.target.nodes or 2) > 1:
        for launch in file.launches:
            looped += _loop(JudgedLaunch.of(launch, context), tree)
    yield from looped or _alone(text, file, context)


def _header(header: list[tuple[str, str]], context: Context) -> Iterator[Finding]:
    """Numbers and names of the header that sbatch refuses."""
    for name, value in header:
        dashes = "--" if len(name) > 1 else "-"
        span = span_of(value)
        line = None
        if span is not None and context.places is not None:
            line = context.places.text.count("\n", 0, span.start) + 1
        if _NUMBERS.fullmatch(name) and value and _COUNT.fullmatch(value.strip("\"'")) is None:
            yield no_number.finding(context.at(line, f"{dashes}{name} {value}"))
        elif len(name) > 1 and not any(known.startswith(name) for known in _OPTIONS):
            yield option_unknown.finding(context.at(line, f"--{name}"))


def _alone(text: str, file: ShellFile, context: Context) -> Iterator[Finding]:
    """A job of several nodes in which nothing starts anything on the others."""
    nodes = context.target.nodes
    code = _COMMENT.sub("", text)
    if nodes is None or nodes < 2 or file.unread or _REACHING.search(code) is not None:
        return
    for launch in file.launches[-1:]:
        program = launch.program.rpartition("/")[2]
        evidence = f"the job has {nodes} nodes, and {program} starts on the first"
        severity = None
        if launch.launcher == "torchrun" and (launch.machines or 1) > 1:
            evidence += f" and waits for {launch.machines} nodes"
            severity = Severity.ERROR
        yield first_node.finding(context.at(launch.line, evidence), severity=severity)


def _steps(tree: Tree, context: Context) -> Iterator[Finding]:
    commands = list(tree.nodes("command"))
    for number, node in enumerate(commands):
        words = words_of(node, tree)
        if not _takes_all(words) or not in_background(node):
            continue
        others = until_wait(commands[number + 1 :], tree, None)
        loop = loop_around(node)
        if loop is not None and not is_waited_for(commands[number + 1 :], tree, loop):
            others.append(words)
        if any("srun" in other and not _shares(other) for other in others):
            line = tree.text.count("\n", 0, tree.span(node).start) + 1
            text = f"{' '.join(words[:4])} … & without a size, and another step starts meanwhile"
            yield step_whole.finding(context.at(line, text))


def _takes_all(words: list[str]) -> bool:
    """Whether this is an srun that starts a step on everything that the job has."""
    if words[:1] != ["srun"] or _shares(words):
        return False
    step = step_of(words)
    if step is None or step.unknown:
        return False
    return step.tasks is None and step.tasks_per_node is None and step.nodes is None


def _shares(words: list[str]) -> bool:
    return any(word.partition("=")[0] in _SHARES for word in words)


def _loop(launch: JudgedLaunch, tree: Tree) -> Iterator[Finding]:
    """A launch in a loop over the nodes of the job that is not started on them."""
    programs = {word.rpartition("/")[2] for word in launch.words}
    if launch.span is None or programs & set(_REACHES):
        return
    for loop in tree.nodes("for_statement"):
        start, end = tree.span(loop)
        if start <= launch.span.start < end and _is_over_nodes(loop, tree):
            program = launch.program.rpartition("/")[2]
            text = f"{program} in a loop over the nodes, without srun"
            yield loop_local.finding(launch.at(text))
            return


def _is_over_nodes(loop: Node, tree: Tree) -> bool:
    """Whether the values of a loop are the nodes of the job, also by variables that hold them."""
    body = loop.child_by_field_name("body")
    start, end = tree.span(loop)
    if body is not None:
        end = tree.span(body).start
    values = tree.text[start:end]
    for _ in range(3):
        if _NODES.search(values):
            return True
        names = re.findall(r"\$\{?[!#]?(\w+)", values)
        values = " ".join(_assigned(name, tree) for name in names)
    return False


def _assigned(name: str, tree: Tree) -> str:
    texts = list[str]()
    for node in tree.nodes("variable_assignment"):
        if tree.of(node).startswith((f"{name}=", f"{name}+=")):
            texts.append(tree.of(node))
    return " ".join(texts)


CHECKS = checks_of(__name__)
