"""The options of the launchers that people type, as far as they must be told from the script.

Sources: ``torch/distributed/run.py`` (torch 2.13) and ``accelerate/commands/launch.py``
(accelerate 1.15). An option that is not known here is taken to have a value, unless what
follows is an option itself or a Python file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cputune.errors import UsageError
from cputune.host import read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
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
    "torchrun": Launcher(
        name="torchrun",
        switches=frozenset(
            ("standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env")
        ),
        module_options=("m", "module"),
    ),
    "accelerate": Launcher(
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


def split(launcher: Launcher, words: Sequence[str]) -> tuple[tuple[Option, ...], list[str]]:
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


def refuse_unfit(launcher: Launcher, options: Sequence[Option]) -> None:
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


def ranks_of(launcher: Launcher, options: Sequence[Option]) -> int:
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


def carried_variables(launcher: Launcher, options: Sequence[Option]) -> dict[str, str]:
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
