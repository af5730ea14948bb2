"""Scripts, as the shell reads them: ``bash -n`` and shellcheck. Nothing is run."""

from __future__ import annotations

import sys
from pathlib import Path

from cputune.host import Command, Host
from cputune.verifier.interface import Answer, Artefact, Expected, not_installed
from cputune.verifier.records import FAILED, PASSED, Evidence, Outcome

LINT_SECONDS = 60.0


class ShellConsumer:
    """bash and shellcheck, for every format that is a script."""

    formats = ("mpirun", "accelerate", "torchrun", "slurm", "shell")

    def answer(self, artefact: Artefact, expected: Expected, host: Host) -> Answer:
        """Syntax and lint of a script; other files of these formats are passed over."""
        if not is_script(artefact):
            return Answer()
        return Answer(checks=(syntax(artefact.path, host), lint(artefact.path, host)))


def is_script(artefact: Artefact) -> bool:
    """Whether the file is a shell script, by its first line or its name."""
    first = artefact.text.partition("\n")[0]
    return artefact.path.suffix == ".sh" or (first.startswith("#!") and "sh" in first)


def syntax(path: Path, host: Host) -> Outcome:
    """Whether bash can read the script to its end."""
    bash = host.which("bash")
    if bash is None:
        return not_installed("syntax", "bash", "apt-get install bash")
    return _ask("syntax", "bash -n", (bash, "-n", str(path.resolve())), host)


def lint(path: Path, host: Host) -> Outcome:
    """What shellcheck has to say, down to its notes on style."""
    shellcheck = host.which("shellcheck") or _beside_python(host, "shellcheck")
    if shellcheck is None:
        return not_installed("lint", "shellcheck", "pip install 'cputune[verify]'")
    argv = (shellcheck, "--norc", "--shell=bash", "--format=gcc", str(path.resolve()))
    return _ask("lint", "shellcheck", argv, host)


def _ask(name: str, consumer: str, argv: tuple[str, ...], host: Host) -> Outcome:
    try:
        done = host.run(Command(argv=argv, timeout_seconds=LINT_SECONDS))
    except OSError as error:
        return Outcome(name=name, state=FAILED, consumer=consumer, summary=f"did not run: {error}")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode == 0 and not lines:
        return Outcome(name=name, state=PASSED, consumer=consumer, summary="nothing to complain of")
    return Outcome(
        name=name,
        state=FAILED,
        consumer=consumer,
        summary=lines[0] if lines else f"ended with {done.returncode}",
        evidence=tuple(Evidence(what=consumer, seen=line) for line in lines[:20]),
    )


def _beside_python(host: Host, program: str) -> str | None:
    """A program that pip has put beside the interpreter, where that is not on PATH."""
    path = Path(sys.prefix) / "bin" / program
    return str(path) if host.exists(str(path)) else None
