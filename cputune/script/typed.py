"""From the words of a training command to the script in it.

``python train.py``, ``-m package.train``, ``accelerate launch --cpu train.py``,
``torchrun --nproc-per-node 2 train.py``, ``mpirun -n 2 python train.py``, ``trl sft``: each
is a script or a module with its arguments, and perhaps a launcher in front of it. A plan
starts the script itself; what the launcher decides is the plan's to decide.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cputune.errors import UsageError
from cputune.host import console_script, module_file
from cputune.script.launchers import (
    LAUNCHERS,
    Launcher,
    Option,
    carried_variables,
    ranks_of,
    refuse_unfit,
    split,
    split_mpirun,
)

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
    if os.path.isabs(words[0]) and not os.path.samefile(_place(words[0]), sys.executable):
        notes.append(
            f"the script is run with {sys.executable}, where cputune is installed, "
            f"not with {words[0]}"
        )
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


def _replaced(launcher: Launcher, options: Sequence[Option]) -> tuple[str, ...]:
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
