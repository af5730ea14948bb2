"""docs/library.md: its tables hold every event and logger."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune.tuner import events

PAGE = (Path(__file__).parent.parent / "docs" / "library.md").read_text()


def tune_small(**options: object) -> cputune.Result:
    runner = FakeRunner(truthful())
    return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=runner, **options)


def test_its_table_holds_every_event() -> None:
    named = set(re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.M))
    assert named == {kind.__name__ for kind in events.Event.__args__}


def test_a_listener_that_keeps_a_log_hears_the_study(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cputune.events"):
        result = tune_small(budget=3)
    told = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"\d+ plans, at most 3 trials; .*", told[1])
    ending = re.compile(r"trial \d+: ((at most )?[\d.]+ samples/s|stopped after .*slower)  ")
    ended = [line for line in told if ending.match(line)]
    assert len(ended) == 3
    assert told[-1] == f"study ended after {len(result.trials)} trials"
    assert not any(": step " in line for line in told)


def test_at_debug_every_step_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="cputune.events"):
        tune_small(budget=2)
    assert any(re.fullmatch(r"trial 0: step 0, [\d.e-]+ s", r.getMessage()) for r in caplog.records)


def test_without_a_handler_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tune_small(budget=2)
    assert capsys.readouterr() == ("", "")
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("cputune").handlers)


def test_its_table_names_the_loggers_there_are() -> None:
    code = "\n".join(p.read_text() for p in Path(cputune.__file__).parent.rglob("*.py"))
    children = set(re.findall(r'log\.getChild\("(\w+)"\)', code))
    assert set(re.findall(r"^\| `cputune\.(\w+)` \|", PAGE, re.M)) == children
