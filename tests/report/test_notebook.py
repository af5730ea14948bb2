"""The notebook of the docs in a real kernel; what a result and a study show there."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor
from report.result_cases import hostile, only_failures, tuned
from tuner.fakes import SMALL

import cputune

HERE = Path(__file__).parent
NOTEBOOK = HERE.parent.parent / "docs" / "notebook.ipynb"

STARTUP = f"""
import sys
sys.path[:0] = {[str(HERE.parent), str(HERE.parent.parent / "benchmarks")]!r}
import cputune.host.probing.load
import cputune.host.locks
import cputune.ranks.runner
from cputune.records.steps import Step
from tuner.fakes import FakeKeepingRunner

def steps(plan, before):
    work = 2.0 if plan.as_found else 1.0
    while True:
        yield Step(seconds=work / plan.threads_per_process, samples=8)

class FakeProcessRunner(FakeKeepingRunner):
    def __init__(self, *_, **__):
        super().__init__(steps)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass

cputune.ranks.runner.ProcessRunner = FakeProcessRunner
cputune.host.locks.MEASURING = "\\0cputune.test.notebook"
cputune.host.probing.load.look_around = lambda host: ()
"""
"""What the kernel runs before the notebook: its trials are of a runner that simulates."""


def outputs(notebook: Any) -> list[tuple[str, dict[str, str]]]:
    """(source, what is shown) of each cell of code."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shown = {}
            for output in cell.outputs:
                shown |= output.get("data", {})
                shown["stream"] = shown.get("stream", "") + output.get("text", "")
            found.append((cell.source, shown))
    return found


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook as it is, after a kernel has run it; its trials are simulated."""
    profile = tmp_path_factory.mktemp("ipython")
    startup = profile / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "simulated.py").write_text(STARTUP)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("IPYTHONDIR", str(profile))
        ExecutePreprocessor(timeout=120, kernel_name="python3").preprocess(notebook)
    return notebook


def test_every_cell_shows_what_the_text_says(executed: Any) -> None:
    shown = outputs(executed)
    (result,) = (data for source, data in shown if "cputune.tune(" in source)
    assert "times as fast as your" in result["text/html"]
    assert "<svg" in result["text/html"]
    (frame,) = (data for source, data in shown if "to_frame" in source)
    assert "samples_per_second" in frame["text/html"]
    pictures = [
        data for source, data in shown if re.search(r"figures\.(comparison|trials)", source)
    ]
    assert all("image/png" in data for data in pictures)
    assert len(pictures) == 2
    assert "slurm.sh" in shown[-1][1]["stream"]


def test_it_is_a_page(executed: Any) -> None:
    page, _ = HTMLExporter().from_notebook_node(executed)
    assert page.count("data:image/png") >= 3


def test_the_study_is_shown_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from cputune import StudyEnded, StudyStarted, TrialStarted
    from cputune.report import notebook

    drawn: list[Any] = []

    class FakeHandle:
        def update(self, shown: object) -> None:
            drawn.append(shown)

    monkeypatch.setattr("IPython.display.display", lambda *_, **__: FakeHandle())
    monkeypatch.setattr(notebook, "LEAST_SECONDS", -math.inf)
    hear = notebook.view(time.monotonic() - 30)
    result = tuned()
    space = cputune.search_space(SMALL.facts, SMALL.workload)
    hear(StudyStarted(space=space, budget=4, resumed=0, most_seconds=120))
    hear(TrialStarted(number=0, plan=result.baseline.plan, origin="baseline"))
    hear(StudyEnded(result=result))
    assert repr(drawn[1]).startswith(f"trial 0  {result.baseline.plan.short()}")
    (share,) = re.findall(r'<progress value="([\d.]+)"', drawn[1]._repr_html_())
    assert 0.25 <= float(share) <= 1
    assert repr(drawn[-1]) == ""
    assert "<progress" not in drawn[-1]._repr_html_()


def test_a_frame_has_a_row_for_each_trial() -> None:
    result = tuned()
    frame = result.to_frame()
    assert list(frame.index) == [trial.number for trial in result.trials]
    best = frame[frame["plan"] == result.best.plan.short()].iloc[0]
    assert best["threads"] == result.best.plan.threads_per_process
    assert only_failures().to_frame()["samples_per_second"].isna().all()


def test_nothing_in_a_result_becomes_part_of_the_notebook() -> None:
    assert "<script" not in hostile()._repr_html_()
