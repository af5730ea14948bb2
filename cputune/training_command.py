"""A command that trains, as its words say it: the launcher, its options, the script, its arguments.

``python train.py``, ``python -m package.train``, ``accelerate launch --cpu train.py``, ``torchrun
--nproc-per-node 2 train.py``, ``mpirun -n 2 python train.py``, with numactl, srun or env in front.
What people type after ``--`` and what stands in a launch file is read by the same function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

MPIRUNS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "intel_extension_for_pytorch.cpu.launch": "ipexrun",
    "ipexrun": "ipexrun",
}
"""What ``python -m`` starts."""
_RANK_OPTIONS = {
    "mpirun": ("-n", "-np", "--np", "--n", "-c"),
    "torchrun": ("--nproc_per_node",),
    "accelerate": ("--num_processes",),
    "ipexrun": ("--nprocs_per_node", "--nproc_per_node", "--ninstances"),
}
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")
STARTERS = ("srun",)
"""Programs that start what follows them several times."""
_BEHIND_MPIRUN = ("numactl", "env", "taskset", "bash")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand:
    """A command that trains.

    Attributes:
        launcher: ``mpirun``, ``torchrun``, ``accelerate``, ``ipexrun`` or ``python``.
        program: the word that starts it.
        before: the words in front (numactl, taskset, srun).
        options: of the launcher.
        script: what is trained: a file, or the name of a ``module``.
        arguments: of the script.
        environment: what a file exports, and what the launcher passes on.
        removed: names that a file unsets, ``OMP_*`` for all of a beginning.
        part: whether it is one of several ranks although its own words do not say so (a pod of a
            job, a task of srun).
        inner: the launcher that an mpirun starts, and its own options; None where that is Python.
        line: of the file, from 1; 0 of what has no lines.
    """

    launcher: str
    options: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    words: tuple[str, ...]
    module: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = "python"
    before: tuple[str, ...] = ()
    removed: frozenset[str] = frozenset()
    part: bool = False
    inner: TrainingCommand | None = None
    line: int = 0

    @property
    def argv(self) -> tuple[str, ...]:
        """What python runs: the script, or ``-m`` and the module, with its arguments."""
        return (*(("-m",) if self.module else ()), self.script, *self.arguments)

    def option(self, *names: str) -> str | None:
        """The value of a launcher's option; "" for a bare flag, None where it is absent."""
        return value_of(self.options, *names)

    def argument(self, name: str) -> str | None:
        """The value of a script's argument, as ``option`` gives it."""
        return value_of(self.arguments, name)

    def switched_on(self, name: str) -> bool:
        """Whether a boolean argument of the script is given, and not as ``False``."""
        value = self.argument(name)
        return value is not None and value.lower() not in ("false", "no", "0")

    @property
    def total(self) -> str | None:
        """The ranks that the launcher is told, of all machines or of each."""
        return self.option(*_RANK_OPTIONS.get(self.launcher, ()))

    @property
    def ranks(self) -> int | None:
        """Ranks that one machine is asked to start; None where only running would show."""
        if self.launcher == "python":
            return 1
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        if self.total is None:
            return 1 if self.launcher in ("torchrun", "accelerate") else None
        total = number_of(self.total)
        machines = 1 if self.launcher == "torchrun" else self.machines
        return max(1, total // machines) if total and not self.host_file else None

    @property
    def ranks_per_node(self) -> int | None:
        """What mpirun is told of ranks on each machine; None where it is not told."""
        if self.launcher != "mpirun":
            return None
        mapped = re.search(r"ppr:([0-9]{1,9}):node", self.option("--map_by", "-map_by") or "")
        told = self.option("-ppn", "-perhost", "--npernode", "-npernode", "-N")
        return number_of(told or (mapped[1] if mapped else None))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines that mpirun is told on its own line, by name."""
        listed = self.option("-hosts", "--hosts", "-host", "--host", "-H") or ""
        names = (part.partition(":")[0].strip() for part in listed.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def host_file(self) -> str | None:
        """The file with the machines of an mpirun."""
        files = ("hostfile", "machinefile", "default-hostfile")
        named = ("-f", *(f"{dashes}{name}" for name in files for dashes in ("-", "--")))
        return self.option(*named) if self.launcher == "mpirun" else None

    @property
    def machines(self) -> int:
        """Machines that take part, at least, as far as the words say."""
        if self.launcher == "mpirun":
            total, here = number_of(self.total), self.ranks_per_node
            return max(1, len(self.hosts), -(-total // here) if total and here else 1)
        by_srun = value_of(self.before, "-N", "--nodes")
        told = self.option("--nnodes", "--num_machines") or by_srun or "1"
        return max(1, number_of(told.rpartition(":")[2]) or 1)

    @property
    def several(self) -> bool:
        """Whether more than one rank takes part, on this machine or on several."""
        if self.part or self.machines > 1 or (self.ranks_per_node or 1) > 1:
            return True
        return self.total is not None and number_of(self.total) not in (0, 1)


def launcher_at(words: Sequence[str], at: int) -> tuple[str, int] | None:
    """The launcher that is named at this place, and by how many words; None where none is."""
    name, following = words[at].rpartition("/")[2], tuple(words[at + 1 : at + 3])
    if name in MPIRUNS:
        return "mpirun", 1
    if name in ("torchrun", "ipexrun"):
        return name, 1
    if name in ("accelerate", "accelerate-launch"):
        with_launch = following[:1] == ("launch",)
        return ("accelerate", 1 + with_launch) if with_launch or "-" in name else None
    if _PYTHON.fullmatch(name):
        module = LAUNCHER_MODULES.get("".join(following[1:])) if following[:1] == ("-m",) else None
        return (module, 3) if module else ("python", 1)
    return None


def launch_of(words: Sequence[str]) -> TrainingCommand | None:
    """The launch that these words of one command are; None where they train nothing."""
    words = tuple(words)
    at = next((at for at in range(len(words)) if launcher_at(words, at)), len(words))
    found = launcher_at(words, at) if at < len(words) else None
    if found is None:
        return None
    launcher, first = found[0], at + found[1]
    before, names = words[:at], [word.rpartition("/")[2] for word in words]
    behind = words[first:]
    inner = _behind_mpirun(behind) if launcher == "mpirun" else None
    launch = inner if launcher == "mpirun" else _with_script(launcher, behind)
    if launch is None:
        return None
    end = len(words) - len(inner.words if inner else ())
    options = launch.options
    if inner:
        binder = (i for i in range(first, end) if names[i] in _BEHIND_MPIRUN)
        options = words[first : next(binder, end)]
    return replace(
        launch,
        launcher=launcher,
        options=options,
        words=words,
        environment={**_handed_on(before), **(_handed_on(words[at:end]) if inner else {})},
        program=words[at],
        before=before,
        part=any(name in STARTERS for name in names[:at]),
        inner=inner if inner and inner.launcher != "python" else None,
    )


def _behind_mpirun(words: tuple[str, ...]) -> TrainingCommand | None:
    """The dialects differ in which options have values: the first Python ends them."""
    for at, word in enumerate(words):
        if launcher_at(words, at):
            return launch_of(words[at:])
        if word.endswith(".py"):
            bare = launch_of(("python", *words[at:]))
            return bare and replace(bare, words=words[at:])
    return None


def _with_script(launcher: str, words: tuple[str, ...]) -> TrainingCommand | None:
    """Options, script and arguments of a launcher that starts Python itself.

    Which options of torchrun and accelerate have values differs from version to version: a word
    behind one is its value, unless it is the next option or a Python file.
    """
    at, module = 0, False
    while at < len(words) and words[at].startswith("-"):
        option, at = words[at], at + 1
        following = words[at] if at < len(words) else "-"
        if option in ("-", "-c") and launcher == "python":
            return None
        if option == "--":
            break
        if option in ("-m", "--module"):
            module = True
        elif launcher == "python":
            at += option in _PYTHON_VALUES
        elif not ("=" in option or following.startswith("-") or following.endswith(".py")):
            at += 1
    if at >= len(words):
        return None
    return TrainingCommand(
        launcher=launcher,
        options=words[:at],
        script=words[at],
        arguments=words[at + 1 :],
        words=words,
        module=module,
    )


def _handed_on(words: Sequence[str]) -> dict[str, str]:
    """Variables that mpirun (``-genv K V``, ``-x K=V``) or ``env K=V`` hands to the ranks."""
    found: dict[str, str] = {}
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word in ("-genv", "-env", "--genv"):
            name, value = (*words[position + 1 : position + 3], "", "")[:2]
            name, equals, told = name.partition("=")
            found[name] = told if equals else value
        elif equals and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
            found[name] = value
    return found


def pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option among these words, with ``_`` for ``-`` in its name, and its value or ""."""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        bare = name.lstrip("-")
        following = words[position + 1 : position + 2]
        if not equals and following and not following[0].startswith("-"):
            value = following[0]
        if bare != name:
            yield name[: len(name) - len(bare)] + bare.replace("-", "_"), value


def value_of(words: Sequence[str], *names: str) -> str | None:
    """The last value of an option in these words; dashes and underscores are the same."""
    wanted = {name for given in names for name, _ in pairs([given])}
    given = [value for name, value in pairs(words) if name in wanted]
    return given[-1] if given else None


def number_of(text: str | None) -> int | None:
    """A whole number of at most nine digits; None for anything else."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else None
