"""A command that trains, as its words say it: the launcher, its options, the script, its arguments.

``python train.py``, ``python -m package.train``, ``accelerate launch --cpu train.py``, ``torchrun
--nproc-per-node 2 train.py``, ``mpirun -n 2 python train.py``, with numactl, srun or env in front.
What people type after ``--`` and what stands in a launch file is read by ``launch_of``. For
``tune`` ``read_typed`` takes of it what a plan starts itself, the script, and refuses what no plan
for CPUs can start; ``require_trainable`` looks at the file that Python would run.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cputune.errors import UsageError
from cputune.host import console_script, module_file, read_document
from cputune.host.interpreter import training_python

MPIRUNS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "intel_extension_for_pytorch.cpu.launch": "ipexrun",
    "ipexrun": "ipexrun",
    "torch.backends.xeon.run_cpu": "run_cpu",
}
"""What ``python -m`` starts."""
_RANK_OPTIONS = {
    "mpirun": ("-n", "-np", "--np", "--n", "-c"),
    "torchrun": ("--nproc_per_node",),
    "accelerate": ("--num_processes",),
    "ipexrun": ("--nprocs_per_node", "--nproc_per_node", "--ninstances"),
    "run_cpu": ("--ninstances",),
    "deepspeed": ("--num_accelerators", "--num_gpus"),
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
        launcher: ``mpirun``, ``torchrun``, ``accelerate``, ``python``; or one that no plan starts:
            ``ipexrun``, ``run_cpu``, ``deepspeed``.
        program: the word that starts it.
        before: the words in front (numactl, taskset, srun).
        options: of the launcher.
        script: what is trained: a file, or the name of a ``module``; "" where it is not known.
        arguments: of the script.
        environment: what a file exports, and what the launcher passes on.
        removed: names that a file unsets, ``OMP_*`` for all of a beginning.
        part: whether it is one of several ranks although its own words do not say so (a pod of a
            job, a task of srun).
        inner: the launcher that an mpirun starts, and its own options; None where that is Python.
        line: of the file, from 1; 0 of what has no lines.
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
        count = self.option("-ppn", "-perhost", "--npernode", "-npernode", "-N")
        if not count and mapped:
            count = mapped[1]
        return number_of(count)

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
        count = self.option("--nnodes", "--num_machines") or by_srun or "1"
        return max(1, number_of(count.rpartition(":")[2]) or 1)

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
    if name in ("torchrun", "ipexrun", "deepspeed"):
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
        environment={
            **_handed_on(before),
            **launch.environment,
            **(_handed_on(words[at:end]) if inner else {}),
        },
        program=words[at],
        before=before,
        part=any(name in STARTERS for name in names[:at]),
        inner=inner if inner and inner.launcher != "python" else None,
    )


def _behind_mpirun(words: tuple[str, ...]) -> TrainingCommand | None:
    """The dialects differ in which options have values: the first Python ends them.

    Of an mpirun that starts an mpirun, and so on, all are one launcher.
    """
    for at, word in enumerate(words):
        found = launcher_at(words, at)
        if found is not None and found[0] != "mpirun":
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
        if option in ("--no_python", "--no-python") and (inner := _behind_mpirun(words[at:])):
            options = words[: len(words) - len(inner.words)]
            variables = _handed_on(options)
            return replace(
                inner, launcher=launcher, options=options, words=words, environment=variables
            )
        following = words[at] if at < len(words) else "-"
        if option in ("-", "-c") and launcher == "python":
            return None
        if option == "--":
            break
        if option in ("-m", "--module"):
            module = True
        elif launcher == "python":
            if option in _PYTHON_VALUES:
                at += 1
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
            name, equals, given = name.partition("=")
            found[name] = given if equals else value
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


EXAMPLE = "cputune tune -- train.py --its-arguments"
_AFTER_DASHES = "after -- comes the script itself, then its arguments: -- train.py --epochs 3"
MOST_BYTES = 4 << 20
"""Of a script; the longest of the transformers examples has 60 KiB."""

_SHARDED = ("--deepspeed", "--fsdp", "--fsdp_config", "--fsdp-config")


def require_trainable(argv: Sequence[str]) -> None:
    """Raise UsageError where python cannot run this, or no plan for CPUs can.

    ``argv`` is a script or ``-m`` and a module, with its arguments.
    """
    for position, word in enumerate(argv):
        name, _, value = word.partition("=")
        following = "".join(argv[position + 1 : position + 2])
        if name in _SHARDED and (value or following) not in ("", "''", "None"):
            raise UsageError(
                f"{name} divides a model over accelerators; on CPUs each rank holds all of it",
                hint=f"leave {name} and its value out of the script's arguments",
            )
    path, text = script_file(argv), script_text(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own words: python says it too
            ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"{path}{line}: {what}", hint="python cannot run this file either; mend it first"
        ) from error


def script_text(argv: Sequence[str]) -> str:
    """The text of the script. Raises UsageError where it has none that can be read."""
    path = script_file(argv)
    try:
        return read_document(path, most_bytes=MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"cannot read the script {str(path)!r}: {error.strerror}", hint=_AFTER_DASHES
        ) from error


def script_file(argv: Sequence[str]) -> Path:
    """The file that python would run. Raises UsageError where there is none."""
    if argv[0] != "-m":
        return _runnable(Path(argv[0]))
    name = argv[1]
    found = module_file(name) if re.fullmatch(r"\w+(?:\.\w+)*", name) else None
    if found is None:
        raise UsageError(
            f"there is no module {name!r} here",
            hint=f"-m package.train, with dots and without .py; it is looked for in {os.getcwd()} "
            "and among the installed packages",
        )
    return Path(found)


def _runnable(path: Path) -> Path:
    if path.is_dir() and (path / "__main__.py").is_file():
        return path / "__main__.py"
    if path.is_dir():
        raise UsageError(
            f"{str(path)!r} is a directory without __main__.py",
            hint=f"give the script in it: {_AFTER_DASHES}",
        )
    if not path.exists():
        raise UsageError(f"there is no script {str(path)!r}", hint=_AFTER_DASHES)
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{path.name} is a notebook, and trials need a script",
            hint=f"jupyter nbconvert --to script {path.name}",
        )
    return path


_DIVIDES = "it divides a model over accelerators; on CPUs each rank holds the whole model"
_GPUS = "cputune tunes training on CPUs"
_GIVEN = "plans start the script without its launcher; say it to the script itself"
_UNFIT = {
    **dict.fromkeys(("use_deepspeed", "use_fsdp", "use_tp", "use_megatron_lm"), _DIVIDES),
    "use_parallelism_config": _DIVIDES,
    **dict.fromkeys(("multi_gpu", "tpu", "use_mps_device"), _GPUS),
    **dict.fromkeys(("gradient_accumulation_steps", "dynamo_backend"), _GIVEN),
}
CONFINERS = ("numactl", "taskset")
_FOREIGN = ("ipexrun", "run_cpu", "deepspeed")
BINDERS = (*CONFINERS, *_FOREIGN, "srun", "horovodrun")
WRAPPERS = ("env", "nohup", "time", "sudo", "bash", "sh", "uv", "poetry", "conda", "nice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A training command that can be tuned.

    Attributes:
        argv: the script and its arguments, as ``python`` takes them: ``train.py ...`` or
            ``-m package.train ...``.
        launch: all words, where a launcher starts the script; the baseline is run by them.
        ranks: processes that this launch starts on one machine.
        notes: what is not taken over, in words.
    """

    argv: tuple[str, ...]
    launch: tuple[str, ...] = ()
    ranks: int = 1
    notes: tuple[str, ...] = ()


def read_typed(words: Sequence[str]) -> Typed:
    """Read a training command. Raises UsageError for what is none."""
    words = tuple(words)
    if not words or not words[0] or words == ("-m",):
        raise UsageError("no script was given", hint=EXAMPLE)
    words = ("python", *words) if words[0] == "-m" else words
    if launcher_at(words, 0) is None:
        return _program(words)
    launch = launch_of(words)
    if launch is None:
        raise UsageError(
            f"no script is seen in `{' '.join(words)}`",
            hint=f"{EXAMPLE}; what python reads from -c or from its input is not tuned",
        )
    if launch.launcher in _FOREIGN:
        _refuse_wrapper(launch.launcher)
    if launch.launcher == "python":
        return Typed(argv=launch.argv, notes=tuple(_python_notes(launch)))
    _refuse_unfit(launch)
    launcher = " ".join((_SHOWN.get(launch.launcher, launch.program), *launch.options))
    note = f"a plan takes the place of {launcher}"
    return Typed(argv=launch.argv, launch=words, ranks=_ranks_of(launch), notes=(note,))


_SHOWN = {"accelerate": "accelerate launch", "torchrun": "torchrun"}


def _program(words: tuple[str, ...]) -> Typed:
    """A script, or a program of Python's that is on PATH."""
    first, name = words[0], os.path.basename(words[0])
    if name == "trl" and not os.path.isfile("trl"):  # a checkout of it may lie here
        return _script_of_trl(words)
    if os.path.exists(first):
        return Typed(argv=words)
    if re.match(r"[A-Za-z_][A-Za-z0-9_]*=", first):
        raise UsageError(
            f"{first!r} is a variable, not a script",
            hint=f"put it in front of cputune: {first} {EXAMPLE}",
        )
    if first.startswith("-"):
        raise UsageError(
            f"{first!r} is an option, not a script",
            hint=f"name the script before it: -- train.py {first}; a recipe takes options from its "
            "launch file (`cputune emit`)",
        )
    if name == "accelerate":
        raise UsageError("of accelerate, only `accelerate launch` trains", hint=EXAMPLE)
    _refuse_wrapper(name)
    return Typed(argv=(console_script(first) or first, *words[1:]))


_TRAIN_NOTHING = ("chat", "env", "utils", "vllm_serve")
"""Scripts of trl that train nothing."""
_OF_ACCELERATE = ("--accelerate_config", "--num_processes", "--num_machines", "--config_file")


def _script_of_trl(words: tuple[str, ...]) -> Typed:
    """``trl sft ...`` starts accelerate, which starts this script: a plan starts it itself."""
    name = "".join(words[1:2]).replace("-", "_")
    module = f"trl.scripts.{name}"
    known = re.fullmatch("[a-z][a-z_]*", name) is not None and module_file(module) is not None
    if not known or name in _TRAIN_NOTHING:
        raise UsageError(
            f"`{' '.join(words[:2])}` is no training that trl knows here",
            hint="cputune tune -- trl sft ARGUMENTS; trl has to be installed",
        )
    for option, _ in pairs(words[2:]):
        if option in _OF_ACCELERATE:
            raise UsageError(
                f"trl {name} {option} is for accelerate, in whose place a plan starts the ranks",
                hint=f"leave {option} and its value out",
            )
    note = f"a plan takes the place of the launcher that trl {name} starts"
    return Typed(argv=("-m", module, *words[2:]), notes=(note,))


def _python_notes(launch: TrainingCommand) -> Iterator[str]:
    """What of a ``python`` that was typed is not taken over."""
    if os.path.isabs(launch.program):
        if not os.path.exists(launch.program):
            raise UsageError(f"there is no {launch.program}", hint=EXAMPLE)
        if not os.path.samefile(launch.program, training_python()):
            yield f"the script is run with {training_python()}, not with {launch.program}"


def _refuse_unfit(launch: TrainingCommand) -> None:
    """Raise UsageError for what is no job on the CPUs of one machine."""
    for name, value in pairs(launch.options):
        bare = name.lstrip("-")
        if bare in _UNFIT:
            raise UsageError(f"{launch.program} {name}: {_UNFIT[bare]}", hint=f"leave {name} out")
        if bare in ("nnodes", "num_machines") and value not in ("1", "1:1"):
            raise UsageError(
                f"{launch.program} {name} {value}: trials run on this machine alone",
                hint=f"leave it out; `cputune emit --nodes {value}` writes such launches",
            )
    others = {launch.host_file or "", *launch.hosts} - {"", "localhost", os.uname().nodename}
    if launch.launcher == "mpirun" and others:
        raise UsageError(
            f"{launch.program} is to start ranks on {', '.join(sorted(others))}: the launch that "
            "you type is measured on this machine alone",
            hint="leave the hosts out, and name them before `--`: --hosts A,B",
        )
    kind = _configured(launch).get("distributed_type")
    if kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP"):
        raise UsageError(
            f"the configuration of accelerate says {kind}: {_DIVIDES}",
            hint="write another one: accelerate config",
        )
    if launch.inner is not None or launch.script in LAUNCHER_MODULES:
        raise UsageError("a launcher starts another launcher", hint="leave one of them out")
    if launch.launcher == "mpirun" and ":" in launch.words:
        raise UsageError(
            f"{launch.program} starts several programs",
            hint="tune one of them: -n 2 python train.py",
        )


def _configured(launch: TrainingCommand) -> Mapping[str, Any]:
    """The file that ``accelerate launch --config_file`` names; empty where none is named."""
    path = launch.option("--config_file") if launch.launcher == "accelerate" else None
    if not path:
        return {}
    import yaml

    try:
        found = yaml.safe_load(read_document(path, most_bytes=1 << 20))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(
            f"cannot read the configuration {path!r}: {getattr(error, 'strerror', error)}",
            hint="accelerate config --config_file FILE writes one",
        ) from error
    return found if isinstance(found, dict) else {}


def _ranks_of(launch: TrainingCommand) -> int:
    """How many processes the launch starts on this machine."""
    asked: object = launch.total
    if launch.launcher == "accelerate":
        # Of several processes on CPUs accelerate starts one, unless it has a file for mpirun.
        config = _configured(launch)
        by_mpi = config.get("mpirun_config")
        named = isinstance(by_mpi, dict) and by_mpi.get("mpirun_hostfile")
        with_mpi = launch.option("--mpirun_hostfile") or named
        asked = (asked or config.get("num_processes")) if with_mpi else None
    if launch.launcher == "torchrun" and asked in ("auto", "cpu", "gpu"):
        return os.cpu_count() or 1
    ranks = number_of(str(asked or 1))
    if not ranks:
        raise UsageError(
            f"{asked!r} is no number of processes", hint=f"{launch.program} starts 1 or more"
        )
    return ranks


def _refuse_wrapper(name: str) -> None:
    if name in BINDERS:
        hint = f"leave {name} and its options out: {EXAMPLE}"
        if name in CONFINERS:
            hint = f"put {name} in front of cputune to stay within its CPUs, or {hint}"
        raise UsageError(
            f"cputune starts and binds the ranks itself, in place of {name}", hint=hint
        )
    if name in WRAPPERS:
        raise UsageError(
            f"{name} is not the training script",
            hint=f"put it in front of cputune, or leave it out: {EXAMPLE}",
        )
