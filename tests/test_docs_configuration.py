"""docs/configuration.md: its example is a file that is taken."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cputune.cli import cli
from cputune.cli.settings import read_settings

PAGE = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()


def test_its_example_is_taken(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "config.toml").write_text(example)
    context = click.Context(cli)
    settings = read_settings(str(tmp_path / "config.toml"), cli.list_commands(context))
    tune = cli.get_command(context, "tune")
    assert tune is not None
    assert settings.defaults(tune, "tune") == {
        "budget": "40",
        "max_time": "1h30m",
        "fix": ["precision=bf16"],
    }
    assert settings.defaults(cli, "") == {"color": "never"}
