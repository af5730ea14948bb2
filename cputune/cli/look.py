"""``cputune`` alone: two lines of the doctor, and the next step for this machine and folder."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

from cputune.cli.given import DEFAULT_RESULT, choose_python, facts_of
from cputune.cli.output import console
from cputune.errors import CputuneError
from cputune.host.interpreter import has_module, install_tuning
from cputune.text import visible

_TRAINS = ("Trainer(", "accelerate", "torch.optim", "optimizer.step", "TrainingArguments")
_MOST_LOOKED_AT = 50
"""Python files of a folder; a larger folder is no training project."""
LEAST_BYTES = 1 << 20


def look() -> None:
    """Say what is seen and what to do next; whatever is wrong is no error of this command."""
    from cputune.doctor import diagnose
    from cputune.facts import HostFacts
    from cputune.report.diagnosis import verdict
    from cputune.report.machine import machine_lines

    choose_python(None)
    out = console()
    facts: HostFacts | None = None
    try:
        facts = facts_of()
        diagnosis = diagnose(facts)
    except CputuneError as error:
        out.print(visible(f"This machine cannot be looked at: {error}"))
    else:
        rows = dict(machine_lines(facts))
        seen = ", ".join(filter(None, (rows.get("CPU"), rows.get("cores", "").split(", ")[0])))
        out.print(visible(f"This machine: {seen}."))
        out.print(visible(f"For training: {verdict(diagnosis)}. More: cputune doctor"))
    why, command = next_step(Path())
    out.print(visible(f"Next, {why}:"))
    out.print(f"  {visible(command)}", style="bold", soft_wrap=True)
    out.print("All commands: cputune --help", style="dim")


def next_step(folder: Path) -> tuple[str, str]:
    """(why, command): what brings somebody on who stands in this folder."""
    if (folder / DEFAULT_RESULT).is_file():
        return "a result lies here, so look at it", "cputune show"
    stack = not has_module("torch")
    missing = ["torch"] * stack + ["optuna"] * (find_spec("optuna") is None)
    if missing:
        return f"tuning needs {' and '.join(missing)}", install_tuning(stack=stack)
    script = _training_script(folder)
    if script is not None:
        return (
            f"{script} looks like a training script, so tune it with its usual arguments",
            f"cputune tune --max-time 20m -- {shlex.quote(script)}",
        )
    return "no training script is seen here, so tune a small model", "cputune tune --max-time 10m"


def _training_script(folder: Path) -> str | None:
    """The Python file here that most looks like one that trains."""
    from cputune.host import read_document

    found: list[tuple[int, str]] = []
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".py")
    except OSError:
        return None
    for path in files[:_MOST_LOOKED_AT]:
        try:
            text = read_document(path, most_bytes=LEAST_BYTES)
        except OSError:
            continue
        signs = sum(sign in text for sign in _TRAINS)
        if signs:
            found.append((-signs - ("__main__" in text), path.name))
    return min(found)[1] if found else None
