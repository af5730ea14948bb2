"""Reading a shell script far enough to see what it launches, with which variables.

Not a shell: assignments, exports, arrays, here-documents, continued lines and quotes are
understood. What only running would show (``$(…)``, arithmetic) becomes ``$?``, and is then taken
for unknown. Read by hand: shlex knows no here-documents, arrays or expansions, and bashlex is
under the GPL.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from cputune.errors import UsageError
from cputune.script import LAUNCHER_MODULES, MPI_RANKS, MPIRUNS

LETTERS_AT_MOST = 100_000
"""Of one word once its variables are filled in: ``x=$x$x`` doubles with every line."""

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\f\v]+ | \\\n | (?<![^\s;|&()])\#[^\n]*)
    | <<-?[ \t]*(?P<mark>['"]?)(?P<here>[A-Za-z_]\w*)(?P=mark)
    | (?P<array>[A-Za-z_]\w*\+?)=\(
    | (?P<separator>\n|&&|\|\||;;|\|&|[;|&()])
    | (?P<word>(?:'[^']*' | "[^"\\]*(?:\\.[^"\\]*)*" | \\. | [^\s;|&()'"\\]+ | \\\Z)+)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_QUOTED = re.compile(r"""'([^']*)'|"([^"\\]*(?:\\.[^"\\]*)*)"|\\(.)""", re.DOTALL)
_HIDDEN = re.compile(
    r"""`[^`\n]*`|\$\(\([^()]*\)\)|\$\((?:[^()'"]|'[^']*'|"(?:[^"\\]|\\.)*")*\)""", re.DOTALL
)
"""What only running shows; of several inside each other the innermost."""
_DEEPEST = 20
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
_EXPANSION = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")
_ALL_OF_A_BEGINNING = re.compile(r"\$\{!([A-Za-z_]\w*)[@*]\}")
_WHOLE_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_KEYWORDS = (
    *("if", "then", "else", "elif", "do", "while", "until", "!", "{", "}"),
    *("time", "exec", "nohup", "command"),
)
_Word: TypeAlias = "str | tuple[str, list[str]]"
"""Of a command; ``(name, words)`` is an array that it sets, with a + where it is added to."""
_EXPORTS = ("export", "declare", "typeset", "readonly", "local")
_RANK_OPTIONS = {
    "mpirun": MPI_RANKS,
    "torchrun": ("--nproc_per_node",),
    "accelerate": ("--num_processes",),
    "ipexrun": ("--nprocs_per_node", "--nproc_per_node", "--ninstances"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand:
    """A command that trains.

    ``launcher`` is ``mpirun``, ``torchrun``, ``accelerate``, ``ipexrun`` or ``python``;
    ``program`` is the word that starts it, ``before`` are the words in front (numactl,
    taskset, srun), ``options`` are its own words, ``arguments`` those of the script.
    ``environment`` holds what the script exports and what the launcher passes on, ``removed``
    what the script unsets, ``OMP_*`` for all of a beginning. ``part`` says that it is one of
    several ranks although its own words do not (a pod of a job, a task of srun); ``open_choice``
    that the script holds other words for other machines: a variable that is set several times.
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
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        if self.total is None:
            return 1 if self.launcher in ("torchrun", "accelerate") else None
        total = number_of(self.total)
        machines = self.machines if self.launcher == "accelerate" else 1
        return total and max(1, total // machines)

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
        if self.launcher != "mpirun":
            return None
        return self.option("-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile")

    @property
    def machines(self) -> int:
        """Machines that take part, at least, as far as the words say."""
        if self.launcher == "mpirun":
            total, here = number_of(self.total), self.ranks_per_node
            return max(1, len(self.hosts), -(-total // here) if total and here else 1)
        by_srun = value_of(self.before, ("-N", "--nodes"))
        told = self.option("--nnodes", "--num_machines") or by_srun or "1"
        return max(1, number_of(told.rpartition(":")[2]) or 1)

    @property
    def several(self) -> bool:
        """Whether more than one rank takes part, on this machine or on several."""
        if self.part or self.machines > 1 or (self.ranks_per_node or 1) > 1:
            return True
        return self.total is not None and number_of(self.total) not in (0, 1)

    @property
    def total(self) -> str | None:
        """The ranks that the launcher is told, of all machines or of each."""
        return self.option(*_RANK_OPTIONS.get(self.launcher, ()))


def read_launches(text: str, name: str) -> tuple[TrainingCommand, ...]:
    """The commands of a script that train, in order. Raises UsageError at an open quote."""
    reader = _Reader()
    for line, words in _simple_commands(text, name):
        reader.read(line, words)
    return tuple(reader.launches)


def launch_of(words: tuple[str, ...], environment: Mapping[str, str]) -> TrainingCommand | None:
    """The launch that these words of one command are; None where they train nothing."""
    names = [word.rpartition("/")[2] for word in words]
    starts = (i for i in range(len(words)) if _launcher(names[i], words, i))
    at = next(starts, None)
    if at is None:
        return None
    launcher = _launcher(names[at], words, at) or "python"
    first = at + 1 + (launcher == "accelerate")
    script = next((i for i in range(first, len(words)) if _is_script(words, i)), None)
    if script is None:
        return None
    # mpirun … accelerate launch … is judged by the outer one.
    inner = {"python": first, "mpirun": min(next(starts, script), script)}.get(launcher, script)
    if launcher == "mpirun":
        binders = ("numactl", "env", "taskset", "bash")
        inner = next((i for i in range(first, inner) if names[i] in binders), inner)
    passed = _handed_on(words[at:inner]) if launcher == "mpirun" else {}
    return TrainingCommand(
        line=0,
        launcher=launcher,
        options=words[first:inner],
        script=words[script],
        arguments=words[script + 1 :],
        environment={**environment, **_handed_on(words[:at]), **passed},
        words=words,
        program=words[at],
        before=words[:at],
        part=any(name in STARTERS for name in names[:at]),
    )


STARTERS = ("srun",)
"""Programs that start what follows them several times."""


def shell_line(words: Sequence[str]) -> str:
    """The words of a container's command as a line of shell; of ``bash -c LINE`` that line."""
    if words and words[0].rpartition("/")[2] in ("sh", "bash") and "-c" in words[1:3]:
        return " ".join(words[words.index("-c") + 1 :])
    return shlex.join(words)


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
    bare = name.lstrip("-")
    return name[: len(name) - len(bare)] + bare.replace("-", "_")


def number_of(text: str | None) -> int | None:
    """A whole number of at most nine digits; None for anything else."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else None


def _launcher(name: str, words: tuple[str, ...], at: int) -> str | None:
    following, module = (*words[at + 1 : at + 3], "", "")[:2]
    if name in MPIRUNS:
        return "mpirun"
    if name in ("torchrun", "ipexrun"):
        return name
    if name == "accelerate":
        return name if following == "launch" else None
    if re.fullmatch(r"python[\d.]*", name):
        module = module if following == "-m" else ""
        return LAUNCHER_MODULES.get(module, "python").partition(" ")[0]
    return None


def _is_script(words: tuple[str, ...], at: int) -> bool:
    """Whether a word is what is trained: a .py file, or the module after ``-m``."""
    word = words[at]
    module = words[at - 1] == "-m" and not word.startswith("-") and word not in LAUNCHER_MODULES
    return word.endswith(".py") or module


def _handed_on(words: tuple[str, ...]) -> dict[str, str]:
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


class _Reader:
    """The state of the shell, as far as it is followed."""

    def __init__(self) -> None:
        self.launches: list[TrainingCommand] = []
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}
        self.exported: set[str] = set()
        self.removed: set[str] = set()
        self.times_set: Counter[str] = Counter()
        self.open_choice = False

    def read(self, line: int, raw: list[_Word]) -> None:
        """Follow one simple command."""
        self.open_choice = False
        words: list[str] = []
        for word in raw:
            if isinstance(word, str):
                words += self._expanded(word)
                continue
            name, more = word[0].rstrip("+"), word[0].endswith("+")
            found = [text for item in word[1] for text in self._expanded(item)]
            self.arrays[name] = ([*self.arrays.get(name, []), *found] if more else found)[:10_000]
            self.times_set[name] += not more
        while words and words[0] in _KEYWORDS:
            words.pop(0)
        inline: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            before = self.variables.get(match["name"], "") if match["more"] else ""
            inline[match["name"]] = (before + match["value"])[:LETTERS_AT_MOST]
            words.pop(0)
        if words and words[0] in _EXPORTS:
            self._export(words)
        elif words and words[0] == "unset":
            self._unset(words[1:])
        elif words:
            self._run(line, tuple(words), inline)
        else:
            self.times_set.update(inline.keys())
            self.variables.update(inline)

    def _run(self, line: int, words: tuple[str, ...], inline: dict[str, str]) -> None:
        launch = launch_of(words, inline)
        if launch is None:
            return
        kept = {n: self.variables[n] for n in self.exported if n in self.variables}
        self.launches.append(
            replace(
                launch,
                line=line,
                environment={**kept, **launch.environment},
                removed=frozenset(self.removed),
                open_choice=self.open_choice,
            )
        )

    def _export(self, words: list[str]) -> None:
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if equals:
                self.variables[name] = value
            if words[0] == "export" or "-x" in words:
                self.exported.add(name)

    def _unset(self, words: list[str]) -> None:
        for word in words:
            beginning = _ALL_OF_A_BEGINNING.fullmatch(word)
            for name in list(self.variables) if beginning else [word]:
                if name == word or (beginning and name.startswith(beginning[1])):
                    self.variables.pop(name, None)
                    self.exported.discard(name)
            self.removed.add(f"{beginning[1]}*" if beginning else word)

    def _expanded(self, word: str) -> list[str]:
        whole = _WHOLE_ARRAY.fullmatch(word)
        if whole and whole[1] in self.arrays:
            self.open_choice |= self.times_set[whole[1]] > 1
            return self.arrays[whole[1]]
        text = _EXPANSION.sub(self._value, word)
        return [text if len(text) <= max(LETTERS_AT_MOST, len(word)) else "$?"]

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        self.open_choice |= self.times_set[name] > 1
        return self.variables.get(name) or (match[0] if match[3] is None else match[3])


def _simple_commands(text: str, name: str) -> Iterator[tuple[int, list[_Word]]]:
    """Each simple command with its line (from 1)."""
    words: list[_Word] = []
    array: list[str] | None = None
    first = 1
    for line, kind, token in _tokens(text, name):
        first = first if words else line
        if array is not None:
            if kind == "word":
                array.append(token)
            elif token == ")":
                array = None
        elif kind == "array":
            array = []
            words.append((token, array))
        elif kind == "word":
            words.append(token)
        elif words:
            yield first, words
            words = []
    if words:
        yield first, words


def _tokens(text: str, name: str) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of each ``word``, ``separator`` and ``array`` that is opened."""
    for _ in range(_DEEPEST):
        text, count = _HIDDEN.subn(lambda found: "$?" + "\\\n" * found[0].count("\n"), text)
        if not count:
            break
    tags: list[str] = []
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UsageError(
                f"{name}:{line}: a quote is opened and never closed",
                hint="close it, or give a file that bash can read",
            )
        kind, position = str(match.lastgroup), match.end()
        if kind == "here":
            tags.append(match[kind])
        elif kind != "skip":
            yield line, kind, _QUOTED.sub(_plain, match[kind])
        line += match[0].count("\n")
        while match[0] == "\n" and tags:
            ended = re.compile(rf"^[ \t]*{tags.pop(0)}[ \t\r]*$", re.MULTILINE)
            found = ended.search(text, position)
            end = found.end() if found else len(text)
            line += text.count("\n", position, end)
            position = end


def _plain(found: re.Match[str]) -> str:
    """What is quoted, without its quotes."""
    single, double, escaped = found.groups()
    if escaped is not None:
        return "" if escaped == "\n" else str(escaped)
    return str(single) if double is None else re.sub(r'\\(?:\n|(["\\$`]))', r"\1", double)
