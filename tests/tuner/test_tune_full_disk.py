"""A disk that fills while a study runs: an error in words, and no trial is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from in_process import ran
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune

STUDY = """
import resource, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from tuner.fakes import SMALL, FakeRunner, truthful
import cputune
from cputune.tuner.events import TrialEnded

def fill(event):
    if isinstance(event, TrialEnded) and event.trial.number == 1:
        size = Path("s.db").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

try:
    cputune.tune(
        SMALL.workload, facts=SMALL.facts, runner=FakeRunner(truthful()),
        study="s.db", on_event=fill,
    )
except cputune.CputuneError as error:
    print(error.exit_code, error, error.hint)
"""


def test_what_was_measured_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    paths = [path for path in sys.path if path.endswith(("tests", "benchmarks"))]
    done = ran([sys.executable, "-c", STUDY.format(paths=paths)], cwd=tmp_path)
    assert done.stdout.startswith("3 the study in s.db cannot be written")
    assert "--resume" in done.stdout
    assert "Traceback" not in done.stderr
    result = cputune.tune(
        SMALL.workload,
        facts=SMALL.facts,
        runner=FakeRunner(truthful()),
        study=tmp_path / "s.db",
        resume=True,
    )
    assert [trial.number for trial in result.trials] == list(range(len(result.trials)))
    assert len(result.trials) >= 2


def test_a_result_that_does_not_fit_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = cputune.tune(
        SMALL.workload, facts=SMALL.facts, runner=FakeRunner(truthful()), budget=2
    )
    (tmp_path / "cputune.json").write_text("the old one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(cputune.CputuneError, match="No space left on device"):
        result.save(tmp_path / "cputune.json", force=True)
    assert (tmp_path / "cputune.json").read_text() == "the old one"
    assert len(list(tmp_path.iterdir())) == 1
