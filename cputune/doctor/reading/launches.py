"""From shell commands to launches: who starts how many ranks of what, with which flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cputune.doctor.reading.shell import ShellCommand

MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
IPEX_MODULES = ("intel_extension_for_pytorch.cpu.launch", "ipexrun")

_VALUE_OPTIONS = {
    "mpirun": ("-n", "-np", "-c", "--n", "--np"),
    "torchrun": ("--nproc_per_node",),
    "accelerate": ("--num_processes",),
    "ipexrun": ("--nprocs_per_node", "--nproc_per_node", "--ninstances"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command that trains.

    ``launcher`` is ``mpirun``, ``torchrun``, ``accelerate``, ``ipexrun`` or ``python``;
    ``program`` is the word that starts it, ``before`` are the words in front (numactl,
    taskset, srun), ``options`` are its own words, ``arguments`` those of the script.
    ``environment`` holds what the script exports and what the launcher passes on, ``removed``
    what the script unsets. ``part`` says that it is one of several ranks although its own
    words do not (a pod of a job, a task of srun); ``open_choice`` that the script holds other
    words for other machines.
    """

    line: int
    launcher: str
    options: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    words: tuple[str, ...]
    program: str = "python"
    before: tuple[str, ...] = ()
    removed: frozenset[str] = frozenset()
    part: bool = False
    open_choice: bool = False

    def option(self, *names: str) -> str | None:
        """The value of a launcher's option; "" for a bare flag, None where it is absent."""
        return value_of(self.options, names)

    def argument(self, name: str) -> str | None:
        """The value of a script's argument, as ``option`` gives it."""
        return value_of(self.arguments, (name,))

    def switched_on(self, name: str) -> bool:
        """Whether a boolean argument of the script is given, and not as ``False``."""
        value = self.argument(name)
        return value is not None and value.lower() not in ("false", "no", "0")

    @property
    def ranks(self) -> int | None:
        """Ranks that one machine is asked to start; None where only running would show."""
        if self.launcher == "python":
            return 1
        per_node = self.ranks_per_node
        if per_node is not None:
            return per_node
        total = self.option(*_VALUE_OPTIONS[self.launcher])
        if total is None:
            return 1 if self.launcher in ("torchrun", "accelerate") else None
        if not _number(total):
            return None
        machines = self.option("--num_machines") or "1"
        if self.launcher == "accelerate" and _number(machines):
            return max(1, int(total) // max(1, int(machines)))
        return int(total)

    @property
    def ranks_per_node(self) -> int | None:
        """What mpirun is told of ranks on each machine; None where it is not told."""
        if self.launcher != "mpirun":
            return None
        per_node = self.option("-ppn", "-perhost", "--npernode", "-npernode", "-N")
        if per_node and _number(per_node):
            return int(per_node)
        mapping = re.search(r"ppr:([0-9]{1,9}):node", self.option("--map_by", "-map_by") or "")
        return int(mapping[1]) if mapping else None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines that mpirun is told on its own line, by name."""
        listed = self.option("-hosts", "--hosts", "-host", "--host", "-H") or ""
        names = (part.partition(":")[0].strip() for part in listed.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def host_file(self) -> str | None:
        """The file with the machines of an mpirun."""
        if self.launcher != "mpirun":
            return None
        return self.option("-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile")

    @property
    def machines(self) -> int:
        """Machines that take part, at least, as far as the words say."""
        if self.launcher == "mpirun":
            total, here = self.option(*_VALUE_OPTIONS["mpirun"]), self.ranks_per_node
            by_ranks = -(-int(total) // here) if total and _number(total) and here else 1
            return max(len(self.hosts), by_ranks)
        nodes = self.option("--nnodes", "--num_machines") or value_of(
            self.before, ("-N", "--nodes")
        )
        most = (nodes or "1").rpartition(":")[2]
        return int(most) if _number(most) else 1

    @property
    def several(self) -> bool:
        """Whether more than one rank takes part, on this machine or on several."""
        if self.part or self.machines > 1:
            return True
        total = self.option(*_VALUE_OPTIONS.get(self.launcher, ()))
        nodes = self.option("--nnodes", "--num_machines") or "1"
        return any(
            text is not None and (not _number(text) or int(text) > 1)
            for text in (total, nodes.rpartition(":")[2])
        ) or bool(self.ranks_per_node and self.ranks_per_node > 1)


def read_launches(commands: tuple[ShellCommand, ...]) -> tuple[Launch, ...]:
    """The commands among these that train."""
    return tuple(found for command in commands if (found := _launch(command)) is not None)


def value_of(words: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The last value of an option in these words; dashes and underscores are the same."""
    wanted = {_spelled(name) for name in names}
    found = None
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if _spelled(name) not in wanted:
            continue
        following = words[position + 1 : position + 2]
        if not equals and following and not following[0].startswith("-"):
            value = following[0]
        found = value
    return found


def _spelled(name: str) -> str:
    dashes = re.match(r"-+", name)
    return name if dashes is None else dashes[0] + name[dashes.end() :].replace("-", "_")


def _number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", text) is not None


def _launch(command: ShellCommand) -> Launch | None:
    words = command.words
    names = [word.rpartition("/")[2] for word in words]
    at = next((i for i, name in enumerate(names) if _launcher(name, words, i)), None)
    if at is None:
        return None
    launcher = _launcher(names[at], words, at)
    first = at + 1
    if launcher == "accelerate":
        first = at + 2
    script = next((i for i in range(first, len(words)) if _is_script(words, i)), None)
    if launcher is None or script is None:
        return None
    if launcher == "mpirun":
        # mpirun … accelerate launch … is judged by the outer one.
        inner = next((i for i in range(first, script) if _starts(names[i], words, i)), script)
    else:
        inner = script
    if launcher == "python":
        inner = first
    passed = _environment(words[at:inner]) if launcher == "mpirun" else {}
    by_env = _environment(words[:at])
    return Launch(
        line=command.line,
        launcher=launcher,
        options=words[first:inner],
        script=words[script],
        arguments=words[script + 1 :],
        environment={**command.environment, **by_env, **passed},
        words=words,
        program=words[at],
        before=words[:at],
        removed=command.removed,
        part="srun" in names[:at],
        open_choice=command.open_choice,
    )


def _launcher(name: str, words: tuple[str, ...], at: int) -> str | None:
    following = words[at + 1] if at + 1 < len(words) else ""
    if name in MPI:
        return "mpirun"
    if name == "torchrun":
        return "torchrun"
    if name == "ipexrun":
        return "ipexrun"
    if name == "accelerate" and following == "launch":
        return "accelerate"
    if not re.fullmatch(r"python[\d.]*", name):
        return None
    module = words[at + 2] if following == "-m" and at + 2 < len(words) else ""
    if module in TORCHRUN_MODULES:
        return "torchrun"
    if module in IPEX_MODULES:
        return "ipexrun"
    if module == "accelerate.commands.launch":
        return "accelerate"
    return "python"


def _starts(name: str, words: tuple[str, ...], at: int) -> bool:
    return _launcher(name, words, at) is not None or name in ("numactl", "env", "taskset", "bash")


def _is_script(words: tuple[str, ...], at: int) -> bool:
    """Whether a word is what is trained: a .py file, or the module after ``-m``."""
    if words[at].endswith(".py"):
        return True
    if words[at - 1] != "-m" or words[at].startswith("-"):
        return False
    return words[at] not in (*TORCHRUN_MODULES, *IPEX_MODULES, "accelerate.commands.launch")


def _environment(words: tuple[str, ...]) -> dict[str, str]:
    """Variables that mpirun (``-genv K V``, ``-x K=V``) or ``env K=V`` hands to the ranks."""
    found: dict[str, str] = {}
    for position, word in enumerate(words):
        following = words[position + 1 : position + 3]
        if word in ("-genv", "-env", "--genv") and following:
            name, equals, value = following[0].partition("=")
            found[name] = value if equals else (following[1] if len(following) > 1 else "")
        elif word == "-x" and following and "=" in following[0]:
            name, _, value = following[0].partition("=")
            found[name] = value
        elif re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", word):
            name, _, value = word.partition("=")
            found[name] = value
    return found
