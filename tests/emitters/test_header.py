"""What an emitted file says of the speed that was measured."""

from __future__ import annotations

from dataclasses import replace

from confirmed import BUSY
from emit_machines import MACHINES

import cputune
from cputune import Result
from cputune.records.claims import Speedup


def script(result: Result) -> str:
    return cputune.emit(result, "torchrun")[0].text


RESULT = MACHINES["one-socket"]().result


def test_no_factor_if_the_interval_is_too_wide() -> None:
    wide = replace(RESULT, speedup=Speedup(ratio=14.15, low=3.65, high=54.78, pairs=5))
    said = _flat(script(wide))
    assert "95 % interval 3.65–54.78" in said
    assert "14.15" not in said


def test_of_a_machine_that_was_not_quiet_it_is_not_said_that_nothing_is_faster() -> None:
    quiet = replace(RESULT, best=RESULT.baseline)
    assert "No plan beat plain `python train.py` beyond noise" in _flat(script(quiet))
    busy = _flat(script(replace(quiet, **BUSY)))
    assert "no plan is known to beat plain `python train.py`: this is that launch" in busy


def _flat(text: str) -> str:
    return " ".join(line.removeprefix("#").strip() for line in text.splitlines())
