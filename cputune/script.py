"""From the words of a training command to the script in it.

``python train.py``, ``-m package.train``, ``accelerate launch --cpu train.py``,
``torchrun --nproc-per-node 2 train.py``, ``mpirun -n 2 python train.py``, ``trl sft``: each
is a script or a module with its arguments, and perhaps a launcher in front of it. A plan
starts the script itself; what the launcher decides is the plan's to decide.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from cputune.errors import UsageError
from cputune.host import console_script, module_file, read_document
from cputune.host.interpreter import training_python

_AFTER_DASHES = "after -- comes the script itself, then its arguments: -- train.py --epochs 3"
MOST_BYTES = 4 << 20
"""Of a script; the longest of the transformers examples has 60 KiB."""

SHARDED = ("--deepspeed", "--fsdp", "--fsdp_config", "--fsdp-config")


def require_trainable(argv: Sequence[str]) -> None:
    """Raise UsageError where python cannot run this, or no plan for CPUs can.

    ``argv`` is a script or ``-m`` and a module, with its arguments.
    """
    _refuse_sharded(argv)
    path = script_file(argv)
    if path is None:
        return
    text = _text_of(path)
    if text is None:
        return
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
    """The text of the script; "" where it has none that can be read (a zip, a C module)."""
    path = script_file(argv)
    return ("" if path is None else _text_of(path)) or ""


def script_file(argv: Sequence[str]) -> Path | None:
    """The file that python would run; None where only python can know."""
    if argv[0] != "-m":
        return _runnable(Path(argv[0]))
    name = argv[1]
    if not re.fullmatch(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*", name):
        raise UsageError(
            f"{name!r} is no name of a module",
            hint="-m package.train, with dots and without .py",
        )
    found = module_file(name)
    if found is None:
        raise UsageError(
            f"there is no module {name!r} here",
            hint=f"it is looked for in {os.getcwd()} and among the installed packages",
        )
    return Path(found)


def _runnable(path: Path) -> Path:
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(
                f"{str(path)!r} is a directory without __main__.py",
                hint=f"give the script in it: {_AFTER_DASHES}",
            )
        return path / "__main__.py"
    if not path.exists():
        raise UsageError(f"there is no script {str(path)!r}", hint=_AFTER_DASHES)
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{path.name} is a notebook, and trials need a script",
            hint=f"jupyter nbconvert --to script {path.name}",
        )
    return path


def _text_of(path: Path) -> str | None:
    """The text of a file of Python; None for a zip archive and for bytecode, which run too."""
    try:
        return read_document(path, most_bytes=MOST_BYTES)
    except OSError as error:
        head = _head(path)
        if head.startswith(b"PK\x03\x04") or path.suffix == ".pyc":
            return None
        if re.match(rb"(?:#.*\n)?#.*coding[:=]", head):
            return None  # Python reads it in its own encoding
        if head and b"\0" in head:
            raise UsageError(
                f"{str(path)!r} is a binary, no Python script", hint=_AFTER_DASHES
            ) from error
        raise UsageError(
            f"cannot read the script {str(path)!r}: {error.strerror}", hint=_AFTER_DASHES
        ) from error


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(1024)
    except OSError:
        return b""


def _refuse_sharded(argv: Sequence[str]) -> None:
    for position, word in enumerate(argv):
        name, _, value = word.partition("=")
        following = "".join(argv[position + 1 : position + 2])
        if name in SHARDED and (value or following) not in ("", "''", "None"):
            raise UsageError(
                f"{name} divides a model over accelerators; on CPUs each rank holds all of it",
                hint=f"leave {name} and its value out of the script's arguments",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherWords:
    """How the words of one launcher are read. Names of options have ``_`` for ``-``.

    Attributes:
        switches: options without a value.
        module_options: those that make the script a module.
        unfit: options that no job on CPUs has, and why.
        variables: options that a plan does not replace, and the variable that says the same.
    """

    name: str
    switches: frozenset[str]
    module_options: tuple[str, ...]
    unfit: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option that was typed."""

    name: str
    value: str | None
    shown: str


_SHARDED = "it divides a model over accelerators; on CPUs each rank holds the whole model"
_GPUS = "cputune tunes training on CPUs"

LAUNCHERS = {
    "torchrun": LauncherWords(
        name="torchrun",
        switches=frozenset(
            ("standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env")
        ),
        module_options=("m", "module"),
    ),
    "accelerate": LauncherWords(
        name="accelerate launch",
        switches=frozenset(
            (
                *("q", "quiet", "cpu", "multi_gpu", "tpu", "ipex", "use_xpu", "use_mps_device"),
                *("enable_cpu_affinity", "dynamo_use_fullgraph", "dynamo_use_dynamic"),
                *("dynamo_use_regional_compilation", "use_deepspeed", "use_fsdp", "use_tp"),
                *("use_parallelism_config", "use_megatron_lm", "same_network", "m", "module"),
                *("no_python", "tpu_cluster", "tpu_use_sudo", "downcast_bf16", "debug"),
                "fp8_use_autocast_during_eval",
            )
        ),
        module_options=("m", "module"),
        unfit={
            "use_deepspeed": _SHARDED,
            "use_fsdp": _SHARDED,
            "use_tp": _SHARDED,
            "use_megatron_lm": _SHARDED,
            "use_parallelism_config": _SHARDED,
            "multi_gpu": _GPUS,
            "tpu": _GPUS,
            "use_mps_device": _GPUS,
        },
        variables={
            "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            "dynamo_backend": "ACCELERATE_DYNAMO_BACKEND",
            "dynamo_mode": "ACCELERATE_DYNAMO_MODE",
        },
    ),
}
"""``variables``: as ``prepare_simple_launcher_cmd_env`` of accelerate sets them, and
``Accelerator`` reads them (gradient accumulation wherever the variable is set)."""


def split(launcher: LauncherWords, words: Sequence[str]) -> tuple[tuple[Option, ...], list[str]]:
    """The options of a launcher, and what follows them: the script and its arguments."""
    left, options = list(words), []
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        shown = word
        if not equals and name not in launcher.switches and left and _is_value(left[0]):
            value = left.pop(0)
            shown = f"{word} {value}"
        options.append(Option(name=name, value=value or None, shown=shown))
    return tuple(options), left


def _is_value(word: str) -> bool:
    return not word.startswith("-") and not word.endswith(".py")


def refuse_unfit(launcher: LauncherWords, options: Sequence[Option]) -> None:
    """Raise UsageError for options that no job on the CPUs of one machine has."""
    for option in options:
        if option.name in launcher.unfit:
            raise UsageError(
                f"{launcher.name} {option.shown}: {launcher.unfit[option.name]}",
                hint=f"leave {option.shown.split()[0]} out",
            )
        if option.name in ("nnodes", "num_machines") and option.value not in ("1", "1:1"):
            raise UsageError(
                f"{launcher.name} {option.shown}: trials run on this machine alone",
                hint=f"leave it out; `cputune emit --nodes {option.value}` writes such launches",
            )
    kind = _in_config(options, "distributed_type")
    if kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP"):
        raise UsageError(
            f"the configuration of accelerate says {kind}: {_SHARDED}",
            hint="write another one: accelerate config",
        )


def ranks_of(launcher: LauncherWords, options: Sequence[Option]) -> int:
    """How many processes the launch starts on this machine."""
    values = {option.name: option.value for option in options}
    if launcher.name == "torchrun":
        asked = values.get("nproc_per_node") or "1"
        if asked in ("auto", "cpu", "gpu"):
            return os.cpu_count() or 1
    else:
        # Of several processes on CPUs accelerate starts one, unless it has a file for mpirun.
        with_mpi = values.get("mpirun_hostfile") or _in_config(options, "mpirun_hostfile")
        asked = values.get("num_processes") or _in_config(options, "num_processes") or "1"
        asked = asked if with_mpi else "1"
    return _number(asked, launcher.name)


def carried_variables(launcher: LauncherWords, options: Sequence[Option]) -> dict[str, str]:
    """Variables of every rank, for the options that a plan does not replace."""
    found = {
        launcher.variables[option.name]: option.value
        for option in options
        if option.name in launcher.variables and option.value is not None
    }
    return {
        name: value.upper() if name == "ACCELERATE_DYNAMO_BACKEND" else value
        for name, value in found.items()
    }


_MPI_RANKS = ("-n", "-np", "--np", "--n", "-c")
_MPI_HOSTS = (
    *("-host", "--host", "-H", "-hosts", "--hosts", "-f", "-hostfile", "--hostfile"),
    *("-machinefile", "--machinefile", "-default-hostfile", "--default-hostfile"),
)
"""By these the dialects of mpirun take other machines."""

_RUNS_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*|.*\.py")


def split_mpirun(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """The options of an mpirun, what it starts, and with how many ranks.

    The dialects differ in which options have values, so the first word that is a Python
    or a Python file ends them. Raises UsageError for several programs with colons.
    """
    if ":" in words:
        raise UsageError(
            f"{words[0]} starts several programs", hint="tune one of them: -n 2 python train.py"
        )
    cut = next((i for i, w in enumerate(words) if i and _RUNS_PYTHON.fullmatch(w)), len(words))
    options = tuple(words[1:cut])
    ranks = 1
    for option, value in pairwise(options):
        if option in _MPI_RANKS:
            ranks = _number(value, words[0])
    return options, tuple(words[cut:]), ranks


def _number(text: str, launcher: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) < 1:
        raise UsageError(f"{text!r} is no number of processes", hint=f"{launcher} starts 1 or more")
    return int(text)


def _in_config(options: Sequence[Option], key: str) -> str | None:
    """A value of the file that ``--config_file`` names; None where there is none."""
    path = next((o.value for o in options if o.name == "config_file"), None)
    if path is None:
        return None
    try:
        text = read_document(path, most_bytes=1 << 20)
    except OSError as error:
        raise UsageError(
            f"cannot read the configuration {path!r}: {error.strerror}",
            hint="accelerate config --config_file FILE writes one",
        ) from error
    match = re.search(rf"^\s*[\"']?{key}[\"']?\s*:\s*[\"']?([^\"'\s#,]+)", text, re.MULTILINE)
    return None if match is None or match[1] in ("null", "~") else match[1]


EXAMPLE = "cputune tune -- train.py --its-arguments"

MPIRUNS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun")
CONFINERS = ("numactl", "taskset")
BINDERS = (*CONFINERS, "ipexrun", "srun", "deepspeed", "horovodrun")
WRAPPERS = ("env", "nohup", "time", "sudo", "bash", "sh", "uv", "poetry", "conda", "nice")

SCRIPTS_OF = {"trl": "trl.scripts.{}"}
"""Console scripts that start ``accelerate launch`` with a script of their own package: what
is tuned is that script (trl/cli.py of TRL 0.12 and later)."""

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A training command, read.

    Attributes:
        argv: the script and its arguments, as ``python`` takes them: ``train.py ...`` or
            ``-m package.train ...``.
        launch: all words, where a launcher starts the script; the baseline is run by them.
        ranks: processes that this launch starts on one machine.
        variables: of every rank, for words of the launcher that no plan replaces.
        notes: what is not taken over, in words.
    """

    argv: tuple[str, ...]
    launch: tuple[str, ...] = ()
    ranks: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_typed(words: Sequence[str]) -> Typed:
    """Read a training command. Raises UsageError for what is none."""
    words = tuple(words)
    if not words:
        raise UsageError("no script was given", hint=EXAMPLE)
    first, name = words[0], os.path.basename(words[0])
    if not first or (first == "-m" and len(words) == 1):
        raise UsageError("no script was given", hint=EXAMPLE)
    if first == "-m":
        return _module(words[1], words[2:], words)
    if _ASSIGNMENT.match(first) and not os.path.exists(first):
        raise UsageError(
            f"{first!r} is a variable, not a script",
            hint=f"put it in front of cputune: {first} {EXAMPLE}",
        )
    if first.startswith("-") and not os.path.exists(first):
        raise UsageError(f"{first!r} is an option, not a script", hint=EXAMPLE)
    if _is_python(first):
        return _python(words)
    if name in ("accelerate", "accelerate-launch", "torchrun"):
        return _launched(name, words)
    if name in MPIRUNS:
        return _mpirun(words)
    if name in SCRIPTS_OF and len(words) > 1:
        return _script_of(name, words)
    if not os.path.exists(first):
        _refuse_wrapper(name)
        found = console_script(first)
        if found is not None:
            return Typed(argv=(found, *words[1:]))
    return Typed(argv=words)


def _is_python(word: str) -> bool:
    return bool(_PYTHON.fullmatch(word))


def _python(words: tuple[str, ...]) -> Typed:
    """``python [options] SCRIPT`` or ``python [options] -m MODULE``."""
    left, options = list(words[1:]), []
    while left and left[0].startswith("-") and left[0] != "-m":
        option = left.pop(0)
        if option in ("-", "-c"):
            raise UsageError(
                "there is no script: what python reads from its input or from -c is not tuned",
                hint="write it to a file: " + EXAMPLE,
            )
        if option in _PYTHON_VALUES and left:
            option += f" {left.pop(0)}"
        options.append(option)
    if not left:
        raise UsageError("python was given no script", hint=EXAMPLE)
    typed = read_typed(left) if left[0] == "-m" else Typed(argv=tuple(left))
    notes = []
    if options:
        notes.append(f"options of python are left out: {' '.join(options)}")
    if os.path.isabs(words[0]) and not os.path.samefile(_place(words[0]), training_python()):
        notes.append(f"the script is run with {training_python()}, not with {words[0]}")
    launch = words if typed.launch else ()
    return replace(typed, launch=launch, notes=(*notes, *typed.notes))


def _place(word: str) -> str:
    if not os.path.exists(word):
        raise UsageError(f"there is no {word}", hint=EXAMPLE)
    return word


def _module(name: str, rest: tuple[str, ...], words: tuple[str, ...]) -> Typed:
    if name in ("torch.distributed.run", "torch.distributed.launch"):
        return _launched("torchrun", ("torchrun", *rest), words)
    if name == "accelerate.commands.launch":
        return _launched("accelerate", ("accelerate", "launch", *rest), words)
    if name in ("torch.backends.xeon.run_cpu", "intel_extension_for_pytorch.cpu.launch"):
        _refuse_wrapper("ipexrun")
    return Typed(argv=("-m", name, *rest))


def _launched(name: str, words: tuple[str, ...], typed: tuple[str, ...] | None = None) -> Typed:
    """``accelerate launch`` or ``torchrun``, its options, and what it starts."""
    rest = list(words[1:])
    if name == "accelerate":
        if rest[:1] != ["launch"]:
            raise UsageError("of accelerate, only `accelerate launch` trains", hint=EXAMPLE)
        del rest[0]
    launcher = LAUNCHERS["torchrun" if name == "torchrun" else "accelerate"]
    options, script = split(launcher, rest)
    refuse_unfit(launcher, options)
    if not script:
        raise UsageError(
            f"{launcher.name} was given no script", hint=f"cputune tune -- {launcher.name} train.py"
        )
    as_module = any(option.name in launcher.module_options for option in options)
    inner = _inner(("-m", *script) if as_module else tuple(script))
    return replace(
        inner,
        launch=words if typed is None else ("python", *typed),
        ranks=ranks_of(launcher, options),
        variables=carried_variables(launcher, options),
        notes=(*_replaced(launcher, options), *inner.notes),
    )


def _mpirun(words: tuple[str, ...]) -> Typed:
    options, command, ranks = split_mpirun(words)
    for option, value in pairwise(options):
        if option in _MPI_HOSTS and not {*value.split(",")} <= {"localhost", os.uname().nodename}:
            raise UsageError(
                f"{words[0]} {option} {value}: the launch that you type is measured on this "
                "machine alone",
                hint=f"leave {option} {value} out, and name the hosts before `--`: --hosts A,B",
            )
    if not command:
        raise UsageError(
            f"no python and no script is seen in the words of {words[0]}",
            hint=f"cputune tune -- {words[0]} -n 2 python train.py",
        )
    inner = read_typed(command)
    if inner.launch:
        raise UsageError(
            f"{words[0]} starts another launcher", hint="give the script with one of them"
        )
    note = f"a plan takes the place of {' '.join((words[0], *options))}"
    return replace(inner, launch=words, ranks=ranks, notes=(note, *inner.notes))


def _inner(command: tuple[str, ...]) -> Typed:
    """What a launcher starts: a script, or a module."""
    typed = read_typed(command) if command[0] == "-m" else Typed(argv=command)
    if typed.launch:
        raise UsageError("a launcher starts another launcher", hint="leave one of them out")
    return typed


def _script_of(name: str, words: tuple[str, ...]) -> Typed:
    """``trl sft ...``: the script of the package; options of its launch are left out."""
    module = SCRIPTS_OF[name].format(words[1])
    if not re.fullmatch(r"[a-z_]+", words[1]) or module_file(module) is None:
        raise UsageError(
            f"{' '.join(words[:2])} trains nothing that is known here",
            hint=f"is {name} installed beside cputune? Else give the script itself: {EXAMPLE}",
        )
    note = f"{name} starts accelerate by itself: its script {module} is what plans start"
    return Typed(argv=("-m", module, *words[2:]), launch=words, notes=(note,))


def _replaced(launcher: LauncherWords, options: Sequence[Option]) -> tuple[str, ...]:
    words = [
        option.shown
        for option in options
        if option.name not in launcher.module_options and option.name not in launcher.variables
    ]
    if not words:
        return (f"a plan takes the place of {launcher.name}",)
    return (f"a plan takes the place of {launcher.name} and its {' '.join(words)}",)


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
