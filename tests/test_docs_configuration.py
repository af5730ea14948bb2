"""docs/configuration.md: its example is a file that is taken."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cputune.cli import cli
from cputune.cli.option_defaults import read_settings, take_defaults

PAGE = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()


def test_its_example_is_taken(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "config.toml").write_text(example)
    root = click.Context(cli)
    read_settings(root, cli.params[0], str(tmp_path / "config.toml"))
    assert root.default_map["quiet"] == "True"
    tune = cli.get_command(root, "tune")
    assert tune is not None
    context = click.Context(tune, info_name="tune", parent=root)
    take_defaults(context)
    told = {"budget": "40", "max_time": "1h30m", "fix": ["precision=bf16"]}
    assert context.default_map == told
