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


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a launcher that was typed; its name has ``_`` for ``-``."""

    name: str
    value: str | None
    shown: str


_MODULE = ("m", "module")
"""Options that make the script a module."""
_DIVIDES = "it divides a model over accelerators; on CPUs each rank holds the whole model"
_GPUS = "cputune tunes training on CPUs"
_UNFIT = {
    **dict.fromkeys(("use_deepspeed", "use_fsdp", "use_tp", "use_megatron_lm"), _DIVIDES),
    "use_parallelism_config": _DIVIDES,
    **dict.fromkeys(("multi_gpu", "tpu", "use_mps_device"), _GPUS),
}
_CARRIED = {
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "dynamo_backend": "ACCELERATE_DYNAMO_BACKEND",
    "dynamo_mode": "ACCELERATE_DYNAMO_MODE",
}
"""Options that a plan does not replace, as ``prepare_simple_launcher_cmd_env`` of accelerate sets
them and ``Accelerator`` reads them (gradient accumulation wherever the variable is set)."""


def _split(words: Sequence[str]) -> tuple[tuple[Option, ...], list[str]]:
    """The options of a launcher, and what follows them: the script and its arguments.

    Which options have values differs from version to version: a word behind one is its value,
    unless it is the next option or a Python file.
    """
    left, options = list(words), []
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name, shown = name.replace("-", "_"), word
        alone = equals or name in _MODULE or left[:1] == [] or left[0].startswith("-")
        if not alone and not left[0].endswith(".py"):
            value = left.pop(0)
            shown = f"{word} {value}"
        options.append(Option(name=name, value=value or None, shown=shown))
    return tuple(options), left


def _refuse_unfit(launcher: str, options: Sequence[Option]) -> None:
    """Raise UsageError for options that no job on the CPUs of one machine has."""
    for option in options:
        if option.name in _UNFIT:
            raise UsageError(
                f"{launcher} {option.shown}: {_UNFIT[option.name]}",
                hint=f"leave {option.shown.split()[0]} out",
            )
        if option.name in ("nnodes", "num_machines") and option.value not in ("1", "1:1"):
            raise UsageError(
                f"{launcher} {option.shown}: trials run on this machine alone",
                hint=f"leave it out; `cputune emit --nodes {option.value}` writes such launches",
            )
    kind = _in_config(options, "distributed_type")
    if kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP"):
        raise UsageError(
            f"the configuration of accelerate says {kind}: {_DIVIDES}",
            hint="write another one: accelerate config",
        )


def _ranks_of(launcher: str, options: Sequence[Option]) -> int:
    """How many processes the launch starts on this machine."""
    values = {option.name: option.value for option in options}
    if launcher == "torchrun":
        asked = values.get("nproc_per_node") or "1"
        if asked in ("auto", "cpu", "gpu"):
            return os.cpu_count() or 1
    else:
        # Of several processes on CPUs accelerate starts one, unless it has a file for mpirun.
        with_mpi = values.get("mpirun_hostfile") or _in_config(options, "mpirun_hostfile")
        asked = values.get("num_processes") or _in_config(options, "num_processes") or "1"
        asked = asked if with_mpi else "1"
    return _number(asked, launcher)


MPI_RANKS = ("-n", "-np", "--np", "--n", "-c")
_MPI_HOSTS = (
    *("-host", "--host", "-H", "-hosts", "--hosts", "-f", "-hostfile", "--hostfile"),
    *("-machinefile", "--machinefile", "-default-hostfile", "--default-hostfile"),
)
"""By these the dialects of mpirun take other machines."""

_RUNS_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*|.*\.py")


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


MPIRUNS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
CONFINERS = ("numactl", "taskset")
BINDERS = (*CONFINERS, "ipexrun", "srun", "deepspeed", "horovodrun")
WRAPPERS = ("env", "nohup", "time", "sudo", "bash", "sh", "uv", "poetry", "conda", "nice")

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "intel_extension_for_pytorch.cpu.launch": "ipexrun",
    "ipexrun": "ipexrun",
}
"""What ``python -m`` starts."""


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
    if not words or not words[0] or words == ("-m",):
        raise UsageError("no script was given", hint=EXAMPLE)
    first, name = words[0], os.path.basename(words[0])
    if first == "-m":
        return _module(words)
    if _PYTHON.fullmatch(first):
        return _python(words)
    if name in ("accelerate", "accelerate-launch", "torchrun"):
        return _launched(words)
    if name in MPIRUNS:
        return _mpirun(words)
    if name == "trl" and len(words) > 1:
        return _trl(words)
    if os.path.exists(first):
        return Typed(argv=words)
    if _ASSIGNMENT.match(first):
        raise UsageError(
            f"{first!r} is a variable, not a script",
            hint=f"put it in front of cputune: {first} {EXAMPLE}",
        )
    if first.startswith("-"):
        raise UsageError(f"{first!r} is an option, not a script", hint=EXAMPLE)
    _refuse_wrapper(name)
    return Typed(argv=(console_script(first) or first, *words[1:]))


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
    if os.path.isabs(words[0]):
        if not os.path.exists(words[0]):
            raise UsageError(f"there is no {words[0]}", hint=EXAMPLE)
        if not os.path.samefile(words[0], training_python()):
            notes.append(f"the script is run with {training_python()}, not with {words[0]}")
    launch = words if typed.launch else ()
    return replace(typed, launch=launch, notes=(*notes, *typed.notes))


def _module(words: tuple[str, ...]) -> Typed:
    launcher = LAUNCHER_MODULES.get(words[1])
    if launcher == "ipexrun" or words[1] == "torch.backends.xeon.run_cpu":
        _refuse_wrapper("ipexrun")
    if launcher is not None:
        launched = _launched((*launcher.split(), *words[2:]))
        return replace(launched, launch=("python", *words))
    return Typed(argv=words)


def _launched(words: tuple[str, ...]) -> Typed:
    """``accelerate launch`` or ``torchrun``, its options, and what it starts."""
    name, rest = os.path.basename(words[0]), words[1:]
    if name == "accelerate":
        if rest[:1] != ("launch",):
            raise UsageError("of accelerate, only `accelerate launch` trains", hint=EXAMPLE)
        rest = rest[1:]
    launcher = "torchrun" if name == "torchrun" else "accelerate launch"
    options, script = _split(rest)
    _refuse_unfit(launcher, options)
    if not script:
        raise UsageError(
            f"{launcher} was given no script", hint=f"cputune tune -- {launcher} train.py"
        )
    as_module = any(option.name in _MODULE for option in options)
    inner = read_typed(("-m", *script)) if as_module else Typed(argv=tuple(script))
    if inner.launch:
        raise UsageError("a launcher starts another launcher", hint="leave one of them out")
    carried = {_CARRIED[o.name]: o.value for o in options if o.name in _CARRIED and o.value}
    if "ACCELERATE_DYNAMO_BACKEND" in carried:
        carried["ACCELERATE_DYNAMO_BACKEND"] = carried["ACCELERATE_DYNAMO_BACKEND"].upper()
    replaced = [o.shown for o in options if o.name not in (*_MODULE, *_CARRIED)]
    with_options = f" and its {' '.join(replaced)}" if replaced else ""
    return replace(
        inner,
        launch=words,
        ranks=_ranks_of(launcher, options),
        variables=carried,
        notes=(f"a plan takes the place of {launcher}{with_options}", *inner.notes),
    )


def _mpirun(words: tuple[str, ...]) -> Typed:
    """The dialects differ in which options have values: the first Python ends them."""
    if ":" in words:
        raise UsageError(
            f"{words[0]} starts several programs", hint="tune one of them: -n 2 python train.py"
        )
    cut = next((i for i, w in enumerate(words) if i and _RUNS_PYTHON.fullmatch(w)), len(words))
    options, ranks = words[1:cut], 1
    for option, value in pairwise(options):
        if option in MPI_RANKS:
            ranks = _number(value, words[0])
        if option in _MPI_HOSTS and not {*value.split(",")} <= {"localhost", os.uname().nodename}:
            raise UsageError(
                f"{words[0]} {option} {value}: the launch that you type is measured on this "
                "machine alone",
                hint=f"leave {option} {value} out, and name the hosts before `--`: --hosts A,B",
            )
    if cut == len(words):
        raise UsageError(
            f"no python and no script is seen in the words of {words[0]}",
            hint=f"cputune tune -- {words[0]} -n 2 python train.py",
        )
    inner = read_typed(words[cut:])
    if inner.launch:
        raise UsageError(
            f"{words[0]} starts another launcher", hint="give the script with one of them"
        )
    note = f"a plan takes the place of {' '.join((words[0], *options))}"
    return replace(inner, launch=words, ranks=ranks, notes=(note, *inner.notes))


def _trl(words: tuple[str, ...]) -> Typed:
    """``trl sft ...`` starts ``accelerate launch`` with a script of its own package.

    What is tuned is that script (trl/cli.py of TRL 0.12 and later).
    """
    module = f"trl.scripts.{words[1]}"
    if not re.fullmatch(r"[a-z_]+", words[1]) or module_file(module) is None:
        raise UsageError(
            f"trl {words[1]} trains nothing that is known here",
            hint=f"is trl installed beside cputune? Else give the script itself: {EXAMPLE}",
        )
    note = f"trl starts accelerate by itself: its script {module} is what plans start"
    return Typed(argv=("-m", module, *words[2:]), launch=words, notes=(note,))


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
