"""docs/configuration.md: its example is taken, its table is what a working folder may set."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from cputune.cli import cli
from cputune.cli.settings import defaults, options_of, read_settings

PAGE = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()


def test_its_example_is_a_file_that_a_working_folder_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "cputune.toml").write_text(example)
    monkeypatch.chdir(tmp_path)
    context = click.Context(cli)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    files = read_settings(None, cli.list_commands(context))
    tune = cli.get_command(context, "tune")
    assert tune is not None
    assert defaults(files, tune, "tune") == {
        "budget": 40,
        "max_time": "1h30m",
        "fix": ["precision=bf16"],
    }
    assert defaults(files, cli, "") == {"color": "never"}


def test_its_table_is_what_a_working_folder_may_set() -> None:
    rows = re.findall(r"^\| (\w+) \| (`.*`.*) \|$", PAGE.partition("## What a")[2], re.M)
    told = {name: tuple(re.findall(r"`([\w-]+)`", keys)) for name, keys in rows}
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    may = {
        name: tuple(sorted(one.key for one in options_of(command or cli) if one.folder))
        for name, command in {"cputune": cli, **commands}.items()
    }
    assert told == {name: keys for name, keys in may.items() if keys != ("verbose",)}
