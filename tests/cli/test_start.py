"""The console script's own --help is click's, word for word."""

from __future__ import annotations

import pytest

from cputune import start
from cputune.cli import main


@pytest.mark.parametrize("columns", [80, 200, 40])
def test_help_is_that_of_click(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.argv", ["/usr/bin/cputune", "--help"])
    with pytest.raises(SystemExit):
        main([])
    of_click = capsys.readouterr().out
    assert start._help() is (columns >= 80)
    # Click calls itself as Python was started: `python -m pytest.cputune`.
    said, usual = (text.partition("cputune [")[2] for text in (capsys.readouterr().out, of_click))
    assert said == (usual if columns >= 80 else "")
