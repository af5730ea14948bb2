"""The help: options stand in groups, each once; and what a hint says works when it is typed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
from hosts.builder import machine
from in_process import Run
from rows import every_row
from sources import Module, modules, one_worker

from cputune.cli import cli
from cputune.cli.help_groups import OTHERS
from cputune.cli.option_defaults import show_every_option

LONG = 10
"""Options above which a list without groups is not read any more."""


def top() -> click.Context:
    return click.Context(cli, info_name="cputune", **cli.context_settings)


def commands() -> list[tuple[str, click.Command]]:
    found = [(name, cli.get_command(top(), name)) for name in cli.list_commands(top())]
    return [(name, command) for name, command in found if command is not None]


@every_row(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_each_option_is_in_one_group(name: str, command: click.Command) -> None:
    groups = getattr(command, "groups", {})
    options = [p.name for p in command.params if isinstance(p, click.Option)]
    grouped = [member for names in groups.values() for member in names]
    assert sorted(grouped) == sorted(set(grouped))
    assert set(grouped) <= set(options)
    left = set(options) - set(grouped) - {"verbose", "quiet", "help_all"}
    assert not left or len(options) <= LONG
    context = click.Context(command, info_name=name, parent=top())
    usual = getattr(command, "usual", ())
    short = command.get_help(context)
    assert len(usual) <= 8
    assert not usual or short.count("\n") <= 40
    text = command.get_help(show_every_option(context))
    listed = text.partition(f"\n{next(iter(groups), 'Options')}:\n")[2]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            last = max(parameter.opts, key=len)
            assert len(re.findall(rf"(?m)^  (?:-{{1,2}}\w+, )?{last}(?![\w-])", listed)) == 1
    assert all(f"\n{heading}:\n" in text for heading in groups)
    assert (f"\n{OTHERS}:\n" in text) == bool(groups)
    assert "doctor:" not in text, "what is of one command alone stands in its own help"


HINTS = (
    # (what is typed, the words of it that are wrong)
    ("tune --dry-run --allow-slow-precision --fix precision=bf15", "--fix precision=bf15"),
    ("tune --dry-run --fix precision=double", "--fix precision=double"),
    ("tune --dry-run --fix malloc=kep", "--fix malloc=kep"),
    ("tune --dry-run --fix smt=maybe", "--fix smt=maybe"),
    ("tune --dry-run --fix threads=all-of-them", "--fix threads=all-of-them"),
    ("tune --dry-run --fix precision", "--fix precision"),
    ("tune --dry-run --knobs rank", "rank"),
    ("tune --dry-run --knobs allocatr", "allocatr"),
    ("tune --dry-run --max-time soon", "--max-time soon"),
    ("tune --dry-run --max-time 0s", "--max-time 0s"),
    ("tune --dry-run --budget 0", "--budget 0"),
    ("tune --dry-run --keep all", "--keep all"),
    ("tune --dry-run --price-per-hour -1", "--price-per-hour -1"),
    ("emit --format torchrun --memory 8g", "--memory 8g"),
    ("emit --format torchrun --memory lots", "--memory lots"),
    ("emit --format torchrun --time soon", "--time soon"),
    ("emit --format torchrun --user-id -5", "--user-id -5"),
    ("emit --format torchrun --nodes 0", "--nodes 0"),
    ("doctor --explain quota-thread", "quota-thread"),
    ("doctor --only threads-mlk", "threads-mlk"),
    ("doctor --ignore machine-bussy", "machine-bussy"),
    ("doctor --stack torch", "--stack torch"),
    ("doctor --picture --json --root sound", "--picture"),
    ("doctor --explain nothing-like-it", "doctor --explain nothing-like-it"),
    ("show last", "show last"),
    ("compare last", "compare last"),
    ("show 2025", "show 2025"),
    ("show", "show"),
    ("emit --format torchrn", "torchrn"),
    ("tine --dry-run", "tine"),
    ("tune --dry-run --budgt 3", "--budgt"),
    ("emit", "emit"),
    ("tune --dry-run --recipe bert-min", "bert-min"),
    ("recipes bert-min", "bert-min"),
    ("doctor --recipe distilbert-squat", "distilbert-squat"),
    ("emit --format slurm --time 4hours", "--time 4hours"),
    ("history --jsn", "--jsn"),
)


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(("typed", "wrong"), HINTS, ids=[typed for typed, _ in HINTS])
def test_what_a_hint_says_works_when_it_is_typed(
    cputune: Run, workdir: Path, monkeypatch: pytest.MonkeyPatch, typed: str, wrong: str
) -> None:
    monkeypatch.setenv("CPUTUNE_TUNE_DRY_RUN", "1")
    machine(workdir / "sound", sockets=2, cores=8)
    ended = cputune(*shlex.split(typed))
    assert ended.code in (2, 3), typed
    instead = said_instead(ended.err)
    better = f"{typed} {instead}" if wrong == typed == "emit" else typed.replace(wrong, instead)
    again = cputune(*shlex.split(better.removeprefix("cputune ")))
    assert again.code in (0, 1), f"{typed}: {ended.err}{better}: {again.err}"


def said_instead(err: str) -> str:
    """What an error tells the user to type: a command, an option with its value, or a word."""
    meant = re.search(r"[Dd]id you mean '?([\w=-]+)'?\?", err)
    if meant is not None:
        return meant[1]
    hint = err.partition("hint: ")[2].splitlines()[0]
    command = re.search(r"`(cputune [^`]+)`", hint)
    if command is not None:
        return command[1]
    if re.search(r"remove --[a-z-]+$", hint) is not None:
        return ""
    option = re.search(r"--[a-z-]+ [^\s,;]+", hint)
    assert option is not None, f"nothing to type: {hint}"
    return option[0]


FLAGS = {
    name: {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
    for name, command in commands()
}
OF_OTHERS = {"--to", "--config_file", "--epochs", "--its-arguments", "--exclusive"}
"""Options of jupyter, accelerate, salloc and of a script."""


def texts(node: ast.AST) -> str:
    """The text of a literal; X for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(texts(part) for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "X"


@one_worker
def test_every_command_that_a_text_names_can_be_typed() -> None:
    """Commands between backticks, and the options in every hint."""
    found = {module.place: wrong_commands(module) for module in modules()}
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


def wrong_commands(module: Module) -> list[str]:
    """The commands and options in texts of a module that the command line does not have."""
    wrong: list[str] = []
    for node in module.nodes:
        if isinstance(node, (ast.JoinedStr, ast.Constant)):
            for name, words in re.findall(r"`cputune ([a-z]+)([^`]*)`", texts(node)):
                typed = re.findall(r"(?<![\w-])--[a-z][a-z-]*", words.partition(" -- ")[0])
                wrong += [word for word in typed if word not in FLAGS.get(name, set())]
                wrong += [] if name in FLAGS else [name]
        if isinstance(node, ast.keyword) and node.arg == "hint":
            hint = " ".join(texts(part) for part in ast.walk(node.value))
            known = set().union(OF_OTHERS, *FLAGS.values())
            typed = re.findall(r"(?<![\w-])--[a-z][a-z_-]*[a-z]", hint)
            wrong += [word for word in typed if word not in known]
    return wrong
