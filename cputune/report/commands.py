"""The commands that a result gives: train with the best plan, make such a study again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from cputune.result import Result
from cputune.workload import Workload


def launch_commands(file: str, nodes: int = 1) -> tuple[str, ...]:
    """Train with the best plan of a result file: at once, and by files that launch it."""
    words = shlex.quote(file)
    now = f"cputune run {words}"
    if nodes > 1:
        now = f"cputune emit --format mpirun -o launch {words} && sh launch/mpirun.sh"
    return now, f"cputune emit --format torchrun -o launch {words}"


def tune_command(result: Result) -> str:
    """The command of the study, as far as its result knows: it does not say what was varied."""
    job = result.workload
    words = ["cputune", "tune"]
    for option, value in (
        ("--budget", result.budget),
        ("--seed", result.seed),
        ("--batch-per-rank", job.batch_per_rank),
        ("--hosts", ",".join(result.hosts) or None),
    ):
        words += [] if value is None else [option, str(value)]
    if job.recipe is None:
        return f"{shlex.join(words)} -- {for_shell(job, job.launch or job.argv)}"
    if job.global_batch_size not in (None, job.recipe.global_batch_size):
        words += ["--global-batch-size", str(job.global_batch_size)]
    return shlex.join([*words, "--recipe", job.recipe.name])


_CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


def install_command(versions: Mapping[str, str]) -> str | None:
    """What installs these versions of the training stack; None where none is known.

    A version of torch that ends in ``+cpu`` is on PyTorch's own page alone.
    """
    pins = [f"{n}=={v}" for n, v in sorted(versions.items()) if n not in ("python", "cputune")]
    page = ["--extra-index-url", _CPU_WHEELS] if any(p.endswith("+cpu") for p in pins) else []
    return shlex.join(["pip", "install", *pins, *page]) if pins else None


def for_shell(workload: Workload, words: Sequence[str]) -> str:
    """Words of a command for bash: secrets as the variables that hold them."""
    found = []
    for word in words:
        secret = workload.secret_of(word)
        found.append(
            shlex.quote(word)
            if secret is None
            else (shlex.quote(secret[0]) if secret[0] else "") + f'"${secret[1]}"'
        )
    return " ".join(found)
