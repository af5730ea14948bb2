"""What ``tune`` takes of a launch that is typed after ``--``.

``read_typed`` takes the script, and refuses what no plan for CPUs can start; ``require_trainable``
checks the file that Python would run.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cputune.errors import UsageError
from cputune.host import Interpreter, process, read_document, this_interpreter
from cputune.host.files import exists, is_file, is_folder, real_path
from cputune.host.process import folder, machine_name
from cputune.launch.launch import CONFINERS, Launch, launch_of, launcher_at
from cputune.launch.launchers import BY_MODULE
from cputune.launch.located_words import number_of, pairs
from cputune.launch.shell import read_launches

EXAMPLE = "cputune tune -- train.py --its-arguments"
_AFTER_DASHES = "after -- give the script, then its arguments: -- train.py --epochs 3"
# The largest script that is read; the longest transformers example has 60 KiB.
MOST_BYTES = 4 << 20

_SHARDED = ("--deepspeed", "--fsdp", "--fsdp_config", "--fsdp-config")


def require_trainable(
    argv: Sequence[str], *, python: Interpreter | None = None, sharded: bool = False
) -> None:
    """Raise UsageError if python cannot run this, or no plan for CPUs can.

    ``python`` trains; None: ours. ``sharded``: skip the search for arguments that divide the model.
    """
    if not sharded:
        _refuse_sharded(argv)
    path, text = script_file(argv, python), script_text(argv, python)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own words: python says it too
            ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = ""
        if isinstance(error, SyntaxError) and error.lineno:
            line = f", line {error.lineno}"
        if isinstance(error, SyntaxError):
            what = error.msg
        else:
            what = str(error)
        raise UsageError(
            f"{path}{line}: {what}", hint="fix it first: python cannot run this file either"
        ) from error


def _refuse_sharded(argv: Sequence[str]) -> None:
    for position, word in enumerate(argv):
        name, _, value = word.partition("=")
        following = "".join(argv[position + 1 : position + 2])
        if name in _SHARDED and (value or following) not in ("", "''", "None"):
            raise UsageError(
                f"{name} divides a model over accelerators; on CPUs each rank holds all of it",
                hint=f"remove {name} and its value from the script's arguments",
            )


def script_text(argv: Sequence[str], python: Interpreter | None = None) -> str:
    """The text of the script. Raises UsageError if it cannot be read."""
    path = script_file(argv, python)
    try:
        return read_document(path, most_bytes=MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"cannot read the script {str(path)!r}: {error.strerror}", hint=_AFTER_DASHES
        ) from error


def script_file(argv: Sequence[str], python: Interpreter | None = None) -> Path:
    """The file that python would run. Raises UsageError if it is missing."""
    if argv[0] != "-m":
        return _runnable(Path(argv[0]))
    name = argv[1]
    path = None
    if re.fullmatch(r"\w+(?:\.\w+)*", name):
        path = (python or this_interpreter()).module_file(name)
    if path is None:
        raise UsageError(
            f"there is no module {name!r} here",
            hint=f"-m package.train, with dots and without .py; it is looked for in {folder()} "
            "and among the installed packages",
        )
    return Path(path)


def _runnable(path: Path) -> Path:
    if is_folder(path) and is_file(path / "__main__.py"):
        return path / "__main__.py"
    if is_folder(path):
        raise UsageError(
            f"{str(path)!r} is a directory without __main__.py",
            hint=f"name the script in it: {_AFTER_DASHES}",
        )
    if not exists(path):
        raise UsageError(f"there is no script {str(path)!r}", hint=_AFTER_DASHES)
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{path.name} is a notebook; trials need a script",
            hint=f"jupyter nbconvert --to script {path.name}",
        )
    return path


_DIVIDES = "it divides a model over accelerators; on CPUs each rank holds the whole model"
_GPUS = "cputune tunes training on CPUs"
_GIVEN = "plans start the script without its launcher; pass it to the script"
_UNFIT = {
    **dict.fromkeys(("use_deepspeed", "use_fsdp", "use_tp", "use_megatron_lm"), _DIVIDES),
    "use_parallelism_config": _DIVIDES,
    **dict.fromkeys(("multi_gpu", "tpu", "use_mps_device"), _GPUS),
    **dict.fromkeys(("gradient_accumulation_steps", "dynamo_backend"), _GIVEN),
}
_FOREIGN = ("ipexrun", "run_cpu", "deepspeed")
BINDERS = (*CONFINERS, *_FOREIGN, "srun", "horovodrun")
WRAPPERS = ("env", "nohup", "time", "sudo", "bash", "sh", "uv", "poetry", "conda", "nice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A training command that can be tuned.

    Attributes:
        argv: the script and its arguments: ``train.py ...`` or ``-m package.train ...``.
        launch: all words, if a launcher starts the script; the baseline runs them.
        ranks: processes that this launch starts on one machine.
        notes: what is ignored.
    """

    argv: tuple[str, ...]
    launch: tuple[str, ...] = ()
    ranks: int = 1
    notes: tuple[str, ...] = ()


def read_typed(command: Sequence[str], python: Interpreter | None = None) -> Typed:
    """Read a training command. Raises UsageError if it is not one."""
    command, python = tuple(command), python or this_interpreter()
    if not command or not command[0] or command == ("-m",):
        raise UsageError("no script was given", hint=EXAMPLE)
    if command[0] == "-m":
        command = ("python", *command)
    if launcher_at(command, 0) is None:
        return _program(command, python)
    launch = launch_of(command)
    if launch is None:
        raise UsageError(
            f"`{' '.join(command)}` contains no training script",
            hint=f"{EXAMPLE}; code from -c or standard input cannot be tuned",
        )
    if launch.launcher in _FOREIGN:
        _refuse_wrapper(launch.launcher)
    if launch.launcher == "python":
        return Typed(argv=launch.argv, notes=tuple(_python_notes(launch, python)))
    _refuse_unfit(launch)
    launcher = " ".join([_SHOWN.get(launch.launcher, launch.program), *launch.options])
    note = f"a plan replaces {launcher}"
    return Typed(argv=launch.argv, launch=command, ranks=_ranks_of(launch), notes=(note,))


_SHOWN = {"accelerate": "accelerate launch", "torchrun": "torchrun"}


def _program(command: tuple[str, ...], python: Interpreter) -> Typed:
    first, name = command[0], os.path.basename(command[0])
    if name == "trl" and not is_file("trl"):  # a checkout of it may lie here
        return _script_of_trl(command, python)
    _refuse_shell_script(command)
    if exists(first):
        return Typed(argv=command)
    if re.match(r"[A-Za-z_][A-Za-z0-9_]*=", first):
        raise UsageError(
            f"{first!r} is a variable, not a script",
            hint=f"put it before cputune: {first} {EXAMPLE}",
        )
    if first.startswith("-"):
        raise UsageError(
            f"{first!r} is an option, not a script",
            hint=f"name the script before it: -- train.py {first}; a recipe takes options from its "
            "launch file (`cputune emit`)",
        )
    if name == "accelerate":
        raise UsageError(
            "only `accelerate launch` trains, no other command of accelerate", hint=EXAMPLE
        )
    _refuse_wrapper(name)
    return Typed(argv=(python.console_script(first) or first, *command[1:]))


# Scripts of trl that do not train.
_TRAIN_NOTHING = ("chat", "env", "utils", "vllm_serve")
_OF_ACCELERATE = ("--accelerate_config", "--num_processes", "--num_machines", "--config_file")


def _script_of_trl(command: tuple[str, ...], python: Interpreter) -> Typed:
    """``trl sft ...`` starts accelerate, which starts this script; a plan starts it directly."""
    name = "".join(command[1:2]).replace("-", "_")
    module = f"trl.scripts.{name}"
    is_name = re.fullmatch("[a-z][a-z_]*", name) is not None
    exists_there = is_name and python.module_file(module) is not None
    if not exists_there or name in _TRAIN_NOTHING:
        raise UsageError(
            f"`{' '.join(command[:2])}` is not a training command of the installed trl",
            hint="install trl, or type a command of it: cputune tune -- trl sft ARGUMENTS",
        )
    for option, _ in pairs(command[2:]):
        if option in _OF_ACCELERATE:
            raise UsageError(
                f"trl {name} {option} is for accelerate; here a plan starts the ranks",
                hint=f"remove {option} and its value",
            )
    note = f"a plan replaces the launcher that trl {name} starts"
    return Typed(argv=("-m", module, *command[2:]), notes=(note,))


def _python_notes(launch: Launch, python: Interpreter) -> Iterator[str]:
    """Which options of the typed ``python`` are ignored."""
    if os.path.isabs(launch.program):
        if not exists(launch.program):
            raise UsageError(f"{launch.program} does not exist", hint=EXAMPLE)
        if real_path(launch.program) != real_path(python.executable):
            yield f"the script is run with {python.executable}, not with {launch.program}"


def _refuse_unfit(launch: Launch) -> None:
    """Raise UsageError for a job that does not run on the CPUs of one machine."""
    for name, value in pairs(launch.options):
        bare = name.lstrip("-")
        if bare in _UNFIT:
            raise UsageError(f"{launch.program} {name}: {_UNFIT[bare]}", hint=f"leave {name} out")
        if bare in ("nnodes", "num_machines") and value not in ("1", "1:1"):
            raise UsageError(
                f"{launch.program} {name} {value}: trials run on this machine alone",
                hint=f"remove it; `cputune emit --nodes {value}` writes such launches",
            )
    others = {launch.host_file or "", *launch.hosts} - {"", "localhost", machine_name()}
    if launch.launcher == "mpirun" and others:
        raise UsageError(
            f"{launch.program} is to start ranks on {', '.join(sorted(others))}: the launch that "
            "you type is measured on this machine alone",
            hint="remove the hosts, and name them before `--`: --hosts A,B",
        )
    kind = _configured(launch).get("distributed_type")
    if kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP"):
        raise UsageError(
            f"the configuration of accelerate says {kind}: {_DIVIDES}",
            hint="write another configuration: accelerate config",
        )
    if launch.inner is not None or launch.script in BY_MODULE:
        raise UsageError("a launcher starts another launcher", hint="remove one of them")
    if launch.launcher == "mpirun" and ":" in launch.words:
        raise UsageError(
            f"{launch.program} starts several programs",
            hint="tune one of them: -n 2 python train.py",
        )


def _configured(launch: Launch) -> Mapping[str, Any]:
    """The file of ``accelerate launch --config_file``; empty without that option."""
    path = None
    if launch.launcher == "accelerate":
        path = launch.option("--config_file")
    if not path:
        return {}
    import yaml

    try:
        config = yaml.safe_load(read_document(path, most_bytes=1 << 20))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(
            f"cannot read the configuration {path!r}: {getattr(error, 'strerror', error)}",
            hint="accelerate config --config_file FILE writes one",
        ) from error
    if isinstance(config, dict):
        return config
    return {}


def _ranks_of(launch: Launch) -> int:
    """How many processes the launch starts on this machine."""
    requested: object = launch.total
    if launch.launcher == "accelerate":
        # Of several processes on CPUs accelerate starts one, unless it has a file for mpirun.
        config = _configured(launch)
        by_mpi = config.get("mpirun_config")
        named = isinstance(by_mpi, dict) and by_mpi.get("mpirun_hostfile")
        with_mpi = launch.option("--mpirun_hostfile") or named
        if with_mpi:
            requested = requested or config.get("num_processes")
        else:
            requested = None
    if launch.launcher == "torchrun" and requested in ("auto", "cpu", "gpu"):
        return process.cpu_count()
    ranks = number_of(str(requested or 1))
    if not ranks:
        raise UsageError(
            f"{requested!r} is not a number of processes", hint="give a whole number, 1 or more"
        )
    return ranks


# What starts a shell script, or hands it to a cluster.
_SHELLS = ("bash", "sh", "dash", "zsh", "sbatch", "source", ".")
_OF_SHELL = re.compile(r"#!.*\b(?:bash|dash|zsh|sh)\b|#(?:SBATCH|PBS|BSUB)\b")


def _refuse_shell_script(command: Sequence[str]) -> None:
    """Raise UsageError for a script of the shell, with the training command that is in it."""
    started = os.path.basename(command[0]) in _SHELLS
    words = command[1:] if started else command[:1]
    path = next((Path(word) for word in words if is_file(word)), None)
    if path is None:
        return
    try:
        text = read_document(path, most_bytes=MOST_BYTES)
    except OSError:
        return
    by_name = path.suffix in (".sh", ".bash", ".slurm", ".sbatch")
    if not (started or by_name or _OF_SHELL.match(text)):
        return
    launches = read_launches(text, str(path))
    hint = f"name the training command that is in it: {EXAMPLE}"
    if launches:
        launch = launches[-1]
        typed = " ".join(map(str, launch.words[len(launch.before) :]))
        hint = f"name the command that is in it: cputune tune -- {typed}"
    raise UsageError(f"{path} is a shell script, which starts a training", hint=hint)


def _refuse_wrapper(name: str) -> None:
    if name in BINDERS:
        hint = f"remove {name} and its options: {EXAMPLE}"
        if name in CONFINERS:
            hint = f"put {name} before cputune to stay within its CPUs, or {hint}"
        raise UsageError(
            f"cputune starts and binds the ranks itself, in place of {name}", hint=hint
        )
    if name in WRAPPERS:
        raise UsageError(
            f"{name} is not the training script",
            hint=f"put it before cputune, or remove it: {EXAMPLE}",
        )
