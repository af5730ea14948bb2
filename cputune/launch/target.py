"""Where a launch will run: this machine or a recording, hosts, what a job requests, or unknown.

The header of a batch script says what the job gets. CPUs and network of another machine say nothing
about the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cputune.launch.edit import Edit
from cputune.launch.located_words import Span, Word, number_of, span_of

Kind = Literal["this machine", "hosts", "job", "pod", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The machines that a launch will run on.

    Attributes:
        kind: what is known of them.
        source: what says it: ``#SBATCH``, ``hosts``; "" for this machine and a recording of one.
        nodes: machines that the job gets; None if that is not said.
        tasks_per_node: tasks that the job has on each of them.
        cpus_per_task: CPUs of each task.
        cpus_per_node: CPUs of the job on each machine; None if only running shows it.
        gpus: whether the job asks for GPUs; None if that is not known.
        variables: what the batch system sets for the script, as far as it follows from the header.
    """

    kind: Kind = "this machine"
    source: str = ""
    nodes: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    cpus_per_node: int | None = None
    gpus: bool | None = False
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def elsewhere(self) -> bool:
        """Whether the launch runs on other machines than the examined one."""
        return self.kind in ("job", "pod", "unknown")


HERE = Target()


def target_of(text: str) -> Target:
    """What the header of a batch script requests.

    Without one it is this machine, or a job of Slurm that somebody else asked for, if the script
    uses what only such a job has.
    """
    for mark, read in _HEADERS.items():
        words = list(_header(text, mark))
        if words:
            return read(words)
    if _IN_A_JOB.search(_COMMENT.sub("", text)):
        return Target(kind="job", source="srun", gpus=None)
    return HERE


_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*")
# What a script does only in a job of Slurm; ``${SLURM_NNODES:-1}`` also runs without one.
_IN_A_JOB = re.compile(
    r"(?m)^\s*(?:exec\s+|time\s+)?srun\s|\bscontrol\s+show\s+hostname"
    r"|\$\{?SLURM_(?:JOB_?ID|(?:JOB_)?NODELIST|(?:JOB_NUM_|N)NODES|PROCID|NODEID|NTASKS)\b(?!:?[-=+])"
)


def _header(text: str, mark: str) -> Iterator[Word]:
    """The words of the header's lines with their places, without comments behind them."""
    for line in re.finditer(rf"(?m)^{re.escape(mark)}[ \t]+([^\n]*)", text):
        for match in re.compile(r"\S+").finditer(text, line.start(1), line.end()):
            if match[0].startswith("#"):
                break
            yield Word(match[0], Span(match.start(), match.end()))


def _options(words: Sequence[str], glued: str) -> dict[str, str]:
    """The options of a header by name without dashes; of one that is repeated the last."""
    return {name: value.strip("\"'") for name, value in _given(words, glued)}


def _given(words: Sequence[str], glued: str) -> Iterator[tuple[str, str]]:
    """``--name=value``, ``--name value``, ``-n value`` and ``-n4``: name and value of each.

    The value of a word that has a place has one, too.
    """
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        short = re.fullmatch(rf"-([{glued}])(\S+)", word)
        if short and not word.startswith("--"):
            name, value = short[1], short[2].lstrip("=")
        elif not equals and at < len(words) and not words[at].startswith("-"):
            value = words[at]
            at += 1
        yield name.replace("_", "-"), _behind(word, value)


def _behind(word: str, value: str) -> str:
    """The value at the end of an option's word, with its place."""
    span = span_of(word)
    if span is None or span_of(value) is not None:
        return value
    return Word(value, Span(span.end - len(value), span.end))


def _asks_gpus(name: str, value: str) -> bool:
    return (name.startswith("gpu") or name == "G") and value != "0"


_MAY_NAME_GPUS = ("gres", "partition", "p", "constraint", "C")
# Options of sbatch whose value may follow without a blank.
_SLURM_LETTERS = "NncpAtJoewxCDGmq"


def _slurm(words: Sequence[str]) -> Target:
    """``#SBATCH``. Slurm gives a task one CPU unless it is asked for more."""
    options = _options(words, _SLURM_LETTERS)
    nodes = _number(options.get("nodes") or options.get("N"), last=True)
    tasks = _number(options.get("ntasks") or options.get("n"))
    each = _number(options.get("ntasks-per-node") or options.get("tasks-per-node"))
    asked = options.get("cpus-per-task") or options.get("c")
    cpus = _number(asked)
    unknown = asked is not None and cpus is None
    if tasks is not None and nodes is None and each:
        nodes = -(-tasks // each)
    if tasks is not None:
        # If both are given, --ntasks-per-node is only the most that a node gets (sbatch(1)).
        spread = -(-tasks // (nodes or 1))
        each = min(spread, each or spread)
    return slurm_job(
        nodes=nodes,
        tasks=tasks,
        tasks_per_node=each,
        asks_per_node=_number(options.get("ntasks-per-node")) is not None,
        cpus_per_task=cpus,
        exclusive=unknown or "exclusive" in options or "gpus-per-task" in options,
        gpus=any(_asks_gpus(name, value) for name, value in options.items())
        or any("gpu" in options.get(name, "").lower() for name in _MAY_NAME_GPUS),
    )


def slurm_header(text: str) -> list[tuple[str, str]]:
    """The options of an ``#SBATCH`` header, in their order: name without dashes, and value."""
    return list(_given(list(_header(text, "#SBATCH")), _SLURM_LETTERS))


def slurm_job(
    *,
    nodes: int | None,
    tasks_per_node: int | None,
    cpus_per_task: int | None,
    tasks: int | None = None,
    asks_per_node: bool = True,
    exclusive: bool = False,
    gpus: bool = False,
) -> Target:
    """A job of Slurm, with the variables that its script finds set.

    ``tasks`` are those of all machines. ``asks_per_node``: the tasks of each machine are asked for,
    and not those of all. ``exclusive``: the job has whole machines, or how many CPUs it asks for is
    not known.
    """
    if tasks is None and tasks_per_node is not None:
        tasks = tasks_per_node * (nodes or 1)
    per_node = None
    if not exclusive and (cpus_per_task is not None or tasks is not None):
        per_node = (cpus_per_task or 1) * (tasks_per_node or 1)
    variables = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": tasks_per_node if asks_per_node else None,
        "SLURM_TASKS_PER_NODE": tasks_per_node if (nodes or 1) == 1 else None,
        "SLURM_CPUS_PER_TASK": cpus_per_task,
        "SLURM_CPUS_ON_NODE": per_node,
    }
    return Target(
        kind="job",
        source="#SBATCH",
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        cpus_per_task=cpus_per_task,
        cpus_per_node=per_node,
        gpus=gpus,
        variables={name: str(value) for name, value in variables.items() if value is not None},
    )


def slurm_options(target: Target) -> tuple[str, ...]:
    """The options of sbatch that request machines, tasks and CPUs."""
    numbers = {
        "--nodes": target.nodes,
        "--ntasks-per-node": target.tasks_per_node,
        "--cpus-per-task": target.cpus_per_task,
    }
    texts: list[str] = []
    for name, number in numbers.items():
        if number is not None:
            texts.append(f"{name}={number}")
    return tuple(texts)


def allocated(text: str, *, tasks: int, cpus_per_task: int) -> Iterator[Edit]:
    """Change the numbers of the options that an ``#SBATCH`` header has."""
    wanted = dict.fromkeys(("cpus-per-task", "c"), cpus_per_task)
    wanted |= dict.fromkeys(("ntasks", "ntasks-per-node", "n"), tasks)
    for name, value in _given(list(_header(text, "#SBATCH")), _SLURM_LETTERS):
        number, span = wanted.get(name), span_of(value)
        if number is None or span is None or number_of(value) in (None, number):
            continue
        yield Edit(start=span.start, end=span.end, text=str(number))


def _pbs(words: Sequence[str]) -> Target:
    """``#PBS -l select=2:ncpus=32:mpiprocs=4``, ``-l nodes=2:ppn=16``, ``-l ncpus=8``."""
    header = " ".join(words)
    select = re.search(r"\bselect=(\d+)?((?::\w+=[^\s:,]+)*)", header)
    nodes = re.search(r"\bnodes=(\d+)(?::ppn=(\d+))?", header)
    if select:
        chunk = dict(re.findall(r":(\w+)=(\d+)", select[2]))
    else:
        chunk = {}
    alone = re.search(r"(?<![:\w])ncpus=(\d+)", header)
    count, cpus, variables = None, None, dict[str, str]()
    if select:
        count, cpus = int(select[1] or 1), _number(chunk.get("ncpus"))
        if cpus is not None:
            # PBS Professional sets both for each chunk.
            variables["NCPUS"] = str(cpus)
        if "ompthreads" in chunk:
            variables["OMP_NUM_THREADS"] = chunk["ompthreads"]
    elif nodes:
        count, cpus = int(nodes[1]), _number(nodes[2])
        if cpus is not None:
            variables["PBS_NUM_PPN"] = str(cpus)
        variables["PBS_NUM_NODES"] = str(count)
    elif alone:
        count, cpus = 1, _number(alone[1])
        variables["NCPUS"] = alone[1]
    return Target(
        kind="job",
        source="#PBS",
        nodes=count,
        tasks_per_node=_number(chunk.get("mpiprocs")),
        cpus_per_node=cpus,
        gpus="gpu" in header,
        variables=variables,
    )


def _lsf(words: Sequence[str]) -> Target:
    """``#BSUB -n 16 -R "span[ptile=8]"``."""
    options = _options(words, "nqJWoeRM")
    slots = _number(options.get("n", "").partition(",")[0])
    tile = re.search(r"ptile=(\d+)", " ".join(words))
    each = None
    if tile:
        each = int(tile[1])
    one_host = "span[hosts=1]" in " ".join(words)
    if slots is not None and each is None and one_host:
        each = slots
    nodes = None
    if slots and each:
        nodes = -(-slots // each)
    return Target(
        kind="job",
        source="#BSUB",
        nodes=nodes,
        cpus_per_node=each,
        gpus="gpu" in options,
        variables={} if slots is None else {"LSB_DJOB_NUMPROC": str(slots)},
    )


_HEADERS = {"#SBATCH": _slurm, "#PBS": _pbs, "#BSUB": _lsf}


def _number(text: str | None, *, last: bool = False) -> int | None:
    """A number, of a range the first or the last; None for a variable, and for 0."""
    if text is None:
        return None
    parts = text.partition("-")
    return number_of(parts[2] if last and parts[2] else parts[0]) or None
