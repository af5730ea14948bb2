"""Whatever comes from outside is read, or refused in words. ``make fuzz`` looks for longer.

What it finds is written to ``corpus/`` and tried again by every run of the suite.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fuzz.targets import TARGETS, Target
from hypothesis import HealthCheck, Phase, given, seed, settings

CORPUS = Path(__file__).parent / "corpus"
FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
LONGEST_SECONDS = 20
"""What takes so long with an input of some kilobytes hangs."""

every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@contextmanager
def _no_hang() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"no answer in {LONGEST_SECONDS} s")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@every_target
def test_what_was_found_once_stays_fixed(target: Target, tmp_path: Path) -> None:
    for file in sorted((CORPUS / target.name).glob("*.json")):
        with _no_hang():
            target.check(json.loads(file.read_text(encoding="utf-8")), tmp_path)


@every_target
@pytest.mark.timeout(max(300, FUZZ_SECONDS + 120))
def test_any_input_is_read_or_refused(target: Target, tmp_path: Path) -> None:
    until = time.monotonic() + FUZZ_SECONDS
    number = int(time.time()) if FUZZ_SECONDS else 0
    while True:
        _look(target, tmp_path, number, examples=200 if FUZZ_SECONDS else target.examples)
        number += 1
        if time.monotonic() >= until:
            return


def _look(target: Target, place: Path, number: int, *, examples: int) -> None:
    """So many inputs; the smallest one that errs is kept in the corpus."""
    last: Any = None

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def attempt(value: Any) -> None:
        nonlocal last
        last = value
        with _no_hang():
            target.check(value, place)

    try:
        attempt()
    except BaseException:
        if FUZZ_SECONDS:
            _keep(target, last)
        raise


def _keep(target: Target, value: Any) -> None:
    text = json.dumps(value)
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    (CORPUS / target.name).mkdir(parents=True, exist_ok=True)
    (CORPUS / target.name / f"{name}.json").write_text(text + "\n", encoding="utf-8")
