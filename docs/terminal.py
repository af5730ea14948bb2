"""``docs/terminal/``: what commands print at 80 and 140 columns, with and without colour.

The machine is built file by file and the study on it simulated, so that the pictures are the same
wherever they are drawn, and no figure in them is of a machine that somebody has. ``make doc`` draws
them; ``python docs/terminal.py`` makes the study anew, where a result has new fields to show.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from click import unstyle
from click.testing import CliRunner
from hosts.builder import machine
from rich.console import Console
from rich.text import Text

import cputune
from cputune.cli import cli
from cputune.cli.output import set_verbosity
from cputune.host import RecordedHost

FOLDER = Path(__file__).parent / "terminal"
RESULT = FOLDER / "result.json"
WIDTHS = (80, 140)
COMMANDS = {"doctor": ("doctor",), "show": ("show", RESULT.name)}


def simulated_machine(folder: Path) -> RecordedHost:
    """Two sockets of eight cores with AMX, as Linux would show them."""
    packages = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
    library = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    record = {
        "python": "3.11.7",
        "packages": packages,
        "directories": {str(Path(library).parent): [Path(library).name]},
        "real_paths": {library: library},
    }
    machine(folder, sockets=2, cores=8, smt=2, like="sapphire-rapids", record=record)
    cpuinfo = folder / "proc" / "cpuinfo"
    cpuinfo.write_text(re.sub("model name.*", "model name\t: Simulated", cpuinfo.read_text()))
    return RecordedHost(folder)


@contextmanager
def in_the_folder() -> Iterator[None]:
    """With ``docs/terminal`` as the working directory."""
    before = Path.cwd()
    os.chdir(FOLDER)
    try:
        yield
    finally:
        os.chdir(before)


def printed(command: str, width: int, *, color: bool) -> str:
    """What a command prints about that machine, with the codes of its colours.

    It runs in the folder of the result, whose name alone it then prints: lines break at other words
    if a path is longer.
    """
    with in_the_folder(), tempfile.TemporaryDirectory() as folder:
        there = simulated_machine(Path(folder))
        words = [*COMMANDS[command], *(["--root", folder] if command == "doctor" else [])]
        set_verbosity(0)
        environment = {"COLUMNS": str(width), "TERM": "xterm-256color", "CPUTUNE_CONFIG": "none"}
        environment["FORCE_COLOR"] = "1"  # a terminal, also if the colors are taken out
        with patch("cputune.cli.results.facts_or_none", lambda: cputune.probe(there)):
            done = CliRunner(env=environment).invoke(cli, words, color=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    # The next command on the machine itself: a recording is only planned for.
    text = done.stdout.replace(f"cputune tune --dry-run --root {folder}", "cputune tune")
    lines = (text if color else unstyle(text)).splitlines()
    return "\n".join(map(str.rstrip, lines)) + "\n"


def drawn(command: str, width: int) -> str:
    """The same as a picture, which takes its letters from the reader's own machine."""
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text.from_ansi(printed(command, width, color=True)))
    picture = console.export_svg(title=f"cputune {command}", unique_id=f"{command}-{width}")
    lines = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _pictures() -> dict[str, Callable[[], str]]:
    found: dict[str, Callable[[], str]] = {}
    for command in COMMANDS:
        for width in WIDTHS:
            name = f"terminal/{command}-{width}"
            found[f"{name}.svg"] = partial(drawn, command, width)
            found[f"{name}.txt"] = partial(printed, command, width, color=False)
    return found


PICTURES = _pictures()
"""Where each lies below docs/, and what makes it."""


def keep_a_study() -> None:
    """Tune on the simulated machine, and keep the result."""
    from machines import SEEN_WARMUP, Model, simulated

    with tempfile.TemporaryDirectory() as folder:
        facts = cputune.probe(simulated_machine(Path(folder)))
    there = simulated("two-sockets", facts, Model(work=16, bandwidth=16), warmup=SEEN_WARMUP)
    runner = there.runner(0)
    result = cputune.tune(there.workload, facts=facts, runner=runner, budget=10)
    note = "The machine is simulated: nobody has measured these speeds."
    kept = replace(
        result,
        created="2026-11-21T19:30:00+00:00",
        versions={**result.versions, "cputune": "0.1.0"},
        seconds=round(runner.spent_seconds, 3),
        notes=(note, *result.notes),
    )
    kept.save(RESULT, force=True)


if __name__ == "__main__":
    keep_a_study()
