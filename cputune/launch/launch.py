"""A launch: variables, wrappers, launcher, options, script and arguments.

``launch_of`` reads it from words (``mpirun -n 2 python train.py``, with numactl, srun or env in
front). Each word keeps the span that it was read from (``Word``), so that a change of the file can
be limited to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cputune.launch.container import Container, container_of
from cputune.launch.launchers import BY_MODULE, BY_NAME, BY_PROGRAM
from cputune.launch.launchers.accelerate import ON_GPUS
from cputune.launch.launchers.srun import Step, step_of
from cputune.launch.located_words import Span, Word, number_of, pairs, plain, value_of
from cputune.launch.option import Given
from cputune.launch.script import Batch, batch_of

# Programs that start another one on some CPUs.
CONFINERS = ("numactl", "taskset")
# Programs that start what follows them several times.
STARTERS = ("srun",)
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_BEHIND_MPIRUN = ("numactl", "env", "taskset", "bash")
# Programs whose words may name a launcher, but start none.
_TRAIN_NOTHING = (
    *("echo", "printf", "which", "type", "pkill", "pgrep", "killall", "kill", "grep", "egrep"),
    *("ps", "ls", "cat", "cp", "mv", "rm", "ln", "mkdir", "chmod", "touch", "alias", "git"),
    *("pip", "pip3", "apt", "apt-get", "yum", "dnf", "conda-build", "sed", "awk", "tee", "source"),
    *("test", "[", "[[", "cd", "pushd", "wget", "curl", "module", "ml", "man", "head", "tail"),
)
# Modules of Python that train nothing.
_TOOLS = (
    "pip",
    "venv",
    "virtualenv",
    "ensurepip",
    "json.tool",
    "http.server",
    "site",
    "compileall",
)
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True, kw_only=True)  # without slots: what its words mean is read once and kept
class Launch:
    """A command that starts a training.

    Attributes:
        launcher: ``mpirun``, ``torchrun``, ``accelerate``, ``python``, ``ipexrun``, ``run_cpu``,
            ``deepspeed``.
        program: the word that starts it.
        before: the words in front of it: variables, numactl, taskset, srun.
        options: of the launcher.
        script: what is trained: a file, or the name of a ``module``; "" if it is not known.
        words: all of them, in their order.
        environment: what the file exports, and what the launcher passes on, with spans.
        set_in: the places in sourced files that set variables of it, ``path.sh:3``.
        removed: names that a file unsets, ``OMP_*`` for a prefix.
        outside: variables that are set around its container and do not reach it.
        part: it is one of several ranks although its words do not say so (a pod, a task).
        inner: the launcher that an mpirun starts, and its options; None if that is Python.
        line: of the file, from 1; 0 without lines.
        span: of the whole command; None without a text.
    """

    launcher: str
    options: tuple[str, ...] = ()
    script: str = ""
    arguments: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    module: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = "python"
    before: tuple[str, ...] = ()
    set_in: Mapping[str, str] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    outside: Mapping[str, str] = field(default_factory=dict)
    part: bool = False
    inner: Launch | None = None
    line: int = 0
    span: Span | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """What python runs: the script, or ``-m`` and the module, with its arguments, as plain
        text.
        """
        argv = [self.script, *self.arguments]
        if self.module:
            argv.insert(0, "-m")
        return tuple(map(str, argv))

    @cached_property
    def given(self) -> tuple[Given, ...]:
        """The options of the launcher, each with its value and meaning."""
        return tuple(BY_NAME[self.launcher].given(self.options))

    def meant(self, *means: str) -> str | None:
        """The last value of the options that decide this; None if none is given."""
        values = []
        for one in self.given:
            if one.option and one.option.means in means:
                values.append(one.value)
        if values:
            return values[-1]
        return None

    def option(self, *names: str) -> str | None:
        """The value of a launcher's option; "" for a bare flag, None if it is absent."""
        return value_of(self.options, *names)

    @cached_property
    def _values(self) -> Mapping[str, str]:
        """The last value of each of the script's arguments."""
        return dict(pairs(self.arguments))

    def argument(self, name: str) -> str | None:
        """The value of a script's argument, as ``option`` gives it."""
        return self._values.get(plain(name))

    def number(self, name: str) -> int:
        """The whole number that a script's argument has; 0 without one."""
        return number_of(self.argument(name)) or 0

    def switched_on(self, name: str) -> bool:
        """Whether a boolean argument of the script is given, and not as ``False``."""
        value = self.argument(name)
        return value is not None and value.lower() not in ("false", "no", "0")

    @property
    def inside(self) -> Launch:
        """The launcher that starts the ranks: that behind an mpirun, or this one."""
        return self.inner or self

    @cached_property
    def total(self) -> str | None:
        """The requested ranks, of all machines or of each, as written."""
        if self.launcher == "mpirun":
            return self.meant("ranks")
        return self.meant("ranks", "ranks per node")

    @cached_property
    def total_ranks(self) -> int | None:
        """The requested ranks as a number; None if it is a word such as ``auto``."""
        return number_of(self.total)

    @cached_property
    def ranks(self) -> int | None:
        """Ranks that one machine is asked to start; None if only running would show."""
        if self.launcher == "python":
            return 1
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        if self.total is None:
            if self.launcher in ("torchrun", "accelerate"):
                return 1
            return None
        machines = 1
        if self.launcher in ("mpirun", "accelerate"):
            machines = self.machines
        if self.total_ranks and not self.host_file:
            return max(1, self.total_ranks // machines)
        return None

    @cached_property
    def ranks_per_node(self) -> int | None:
        """The ranks on each machine that mpirun is asked for; None if it is not."""
        if self.launcher != "mpirun":
            return None
        mapped = re.search(r"ppr:([0-9]{1,9}):node", self.meant("map") or "")
        count = self.meant("ranks per node")
        if not count and mapped:
            count = mapped[1]
        return number_of(count)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines that are listed on the line, by name."""
        listed = self.meant("hosts") or ""
        names = (part.partition(":")[0].strip() for part in listed.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def host_file(self) -> str | None:
        """The file with the machines of an mpirun."""
        if self.launcher == "mpirun":
            return self.meant("host file")
        return None

    @cached_property
    def machines(self) -> int:
        """The least number of machines that take part, as far as the words say."""
        if self.launcher == "mpirun":
            total, here = self.total_ranks, self.ranks_per_node
            return max(1, len(self.hosts), -(-total // here) if total and here else 1)
        count = self.meant("nodes") or value_of(self.before, "-N", "--nodes")
        if not count:
            return 1
        # Of a range of an elastic job (2:4) the most; it may also be a variable.
        return max(1, number_of(count.rpartition(":")[2]) or 1)

    @cached_property
    def elastic_nodes(self) -> tuple[int | None, int | None] | None:
        """The least and the most machines of an elastic launch (``--nnodes 1:4``), or None."""
        least, between, most = (self.meant("nodes") or "").partition(":")
        return (number_of(least), number_of(most)) if between else None

    @property
    def several(self) -> bool:
        """Whether more than one rank takes part, on this machine or on several."""
        if self.part or self.machines > 1 or (self.ranks_per_node or 1) > 1:
            return True
        return self.total is not None and self.total_ranks not in (0, 1)

    @property
    def threads(self) -> str | None:
        """OpenMP threads of a rank, as its launcher or its environment says them."""
        return self.meant("threads") or self.environment.get("OMP_NUM_THREADS")

    @property
    def cpus(self) -> str | None:
        """The CPUs that numactl or taskset leave it, as written (``0-3,8``)."""
        names = [word.rpartition("/")[2] for word in self.before]
        at = next((names.index(name) for name in CONFINERS if name in names), len(names))
        return value_of(self.before[at:], "-C", "--physcpubind", "-c", "--cpu-list")

    @property
    def precision(self) -> str:
        """The words that request a precision: ``--bf16``, ``--mixed_precision fp16``; or ""."""
        requested = None
        if self.inside.launcher == "accelerate":
            requested = self.inside.meant("precision")
        if self.switched_on("--bf16"):
            return "--bf16"
        if requested in ("bf16", "fp16"):
            return f"--mixed_precision {requested}"
        return ""

    @property
    def backend(self) -> str | None:
        """The backend that Trainer is given, or None."""
        return self.argument("--ddp_backend")

    @cached_property
    def batch(self) -> Batch:
        """The samples of each rank, by Trainer's arguments."""
        return batch_of(self.arguments)

    @property
    def asks_for_gpus(self) -> bool:
        """Whether its words or variables are for GPUs: ``srun --gpus``, ``--multi_gpu``, NCCL_*."""
        of_gpus = [word for word in self.before if re.match(r"--gpus|--gres=.*gpu|-G\d", word)]
        if of_gpus or self.total == "gpu":
            return True
        if self.inside.launcher == "accelerate" and self.inside.option(*ON_GPUS) is not None:
            return True
        for name, value in self.environment.items():
            if name.startswith("NCCL_") or (name in _VISIBLE and value not in ("", "-1")):
                return True
        return False

    @cached_property
    def container(self) -> Container | None:
        """The container that the command starts for it, or None."""
        return container_of(self.before)

    @property
    def sealed(self) -> Container | None:
        """Its container, if that takes only those variables of the shell that it names."""
        container = self.container
        return container if container is not None and container.apart else None

    @cached_property
    def step(self) -> Step | None:
        """The srun that starts it, or None."""
        return step_of(self.before)


def is_python(program: str) -> bool:
    """Whether a word starts a Python, by its name."""
    return _PYTHON.fullmatch(program) is not None


def launcher_at(words: Sequence[str], at: int) -> tuple[str, int] | None:
    """The launcher that is named at this place, and by how many words, or None."""
    name, following = words[at].rpartition("/")[2], tuple(words[at + 1 : at + 3])
    if name in BY_PROGRAM:
        launcher = BY_PROGRAM[name]
        return launcher, 1
    if name == "accelerate":
        if following[:1] == ("launch",):
            return ("accelerate", 2)
        return None
    if name == "ipex" and following[:1] == ("launch",):
        return "ipexrun", 2
    if is_python(name):
        module = None
        if following[:1] == ("-m",):
            module = BY_MODULE.get("".join(following[1:]))
        if module:
            return (module, 3)
        return ("python", 1)
    return None


def launch_of(words: Sequence[str]) -> Launch | None:
    """The launch that these words of one command are; None if they train nothing."""
    words = tuple(words)
    if _first_program(words) in _TRAIN_NOTHING:
        return None
    at = next((at for at in range(len(words)) if launcher_at(words, at)), len(words))
    named = None
    if at < len(words):
        named = launcher_at(words, at)
    if named is None:
        return None
    launcher, first = named[0], at + named[1]
    before, names = words[:at], [word.rpartition("/")[2] for word in words]
    behind = words[first:]
    inner = None
    if launcher == "mpirun":
        launch = inner = _behind_mpirun(behind)
    else:
        launch = _with_script(launcher, behind)
    if launch is None or (launch.module and launch.script in _TOOLS):
        return None
    end = len(words) - len(inner.words if inner else ())
    container, around = container_of(before), before
    if container is not None and container.apart:
        around = container.words
    options = launch.options
    if inner:
        binder = (i for i in range(first, end) if names[i] in _BEHIND_MPIRUN)
        options = words[first : next(binder, end)]
    read = replace(
        launch,
        launcher=launcher,
        options=options,
        words=words,
        environment={
            **_handed_on(around),
            **launch.environment,
            **(_handed_on(words[at:end]) if inner else {}),
        },
        program=words[at],
        before=before,
        part=any(name in STARTERS for name in names[:at]),
        inner=inner if inner and inner.launcher != "python" else None,
    )
    if around is before:
        return read
    return with_variables(read, _handed_on(before[: len(before) - len(around)]))


def with_variables(launch: Launch, variables: Mapping[str, str]) -> Launch:
    """The launch with variables of the shell that starts it, if they reach it."""
    reaching, outside = dict[str, str](), dict(launch.outside)
    for name, value in variables.items():
        if launch.sealed is None or {name, "*"} & launch.sealed.passed:
            reaching[name] = value
        elif name not in launch.environment:
            outside[name] = value
    return replace(launch, environment={**reaching, **launch.environment}, outside=outside)


def _first_program(command: Sequence[str]) -> str:
    """The program of a command, behind the variables that are set for it."""
    first = next((word for word in command if not re.match(rf"{_NAME}=", word)), "")
    return first.rpartition("/")[2]


def _behind_mpirun(words: tuple[str, ...]) -> Launch | None:
    """The dialects differ in which options have values: the first Python ends them.

    Nested mpiruns are one launcher.
    """
    for at, word in enumerate(words):
        named = launcher_at(words, at)
        if named is not None and named[0] != "mpirun":
            return launch_of(words[at:])
        if word.endswith(".py"):
            bare = launch_of(("python", *words[at:]))
            return bare and replace(bare, words=words[at:])
    return None


def _with_script(launcher: str, words: tuple[str, ...]) -> Launch | None:
    """Options, script and arguments of a launcher that starts Python itself.

    A word behind an unknown option is its value, unless it is the next option or a Python file.
    """
    syntax = BY_NAME[launcher]
    at, module = 0, False
    while at < len(words) and words[at].startswith("-"):
        name = words[at]
        option = syntax.option(name)
        means = "" if option is None else option.means
        if means == "program" and (inner := _behind_mpirun(words[at + 1 :])):
            options = words[: len(words) - len(inner.words)]
            variables = _handed_on(options)
            return replace(
                inner, launcher=launcher, options=options, words=words, environment=variables
            )
        if name in ("-", "-c") and launcher == "python":
            return None
        at += 1
        if name == "--":
            break
        module |= means == "module"
        following = words[at] if at < len(words) else "-"
        if option is not None:
            takes = option.takes - ("=" in name and name.startswith("--"))
            at += max(0, takes)
        elif launcher != "python" and not (
            "=" in name or following.startswith("-") or following.endswith(".py")
        ):
            at += 1
        if module and launcher == "python":
            break
    if at >= len(words):
        return None
    return Launch(
        launcher=launcher,
        options=words[:at],
        script=words[at],
        arguments=words[at + 1 :],
        words=words,
        module=module,
    )


def _handed_on(words: Sequence[str]) -> dict[str, str]:
    """Variables that mpirun (``-genv K V``, ``-x K=V``) or ``env K=V`` passes to the ranks."""
    variables: dict[str, str] = {}
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word in ("-genv", "-env", "--genv"):
            # hydra takes -genv NAME VALUE and -genv NAME=VALUE.
            name, value = (*words[position + 1 : position + 3], "", "")[:2]
            name, equals, given = name.partition("=")
            variables[name] = _part(words[position + 1], given) if equals else value
        elif equals and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
            variables[name] = _part(word, value)
    return variables


def _part(word: str, value: str) -> str:
    """The value of ``NAME=VALUE``, with its span if its text is as written."""
    if not isinstance(word, Word) or word.span is None or not word.exact:
        return value
    if word.span.end - word.span.start != len(word):
        return value
    return Word(value, Span(word.span.end - len(value), word.span.end))
