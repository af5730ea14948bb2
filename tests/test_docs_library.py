"""docs/library.md: its progress bar is drawn, its tables hold every event and logger."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune.tuner import events

PAGE = (Path(__file__).parent.parent / "docs" / "library.md").read_text()
SAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)
(EXAMPLE,) = (p for p in SAMPLES if "ProgressBar" in p)


def tune_small(**options: object) -> cputune.Result:
    runner = FakeRunner(truthful())
    return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=runner, **options)


def test_the_progress_bar_is_drawn_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = cputune.tune

    def small(job: object, *, budget: int, on_event: events.OnEvent) -> cputune.Result:
        runner = FakeRunner(truthful())
        return real(SMALL.workload, facts=SMALL.facts, runner=runner, budget=4, on_event=on_event)

    monkeypatch.setattr(cputune, "tune", small)
    exec(compile(EXAMPLE, "library.md", "exec"), {})
    drawn = capsys.readouterr().err
    assert "4/4" in drawn
    assert re.search(r"[\d.]+ samples/s, about [\d.]+ × today", drawn)
    assert "side by side" in drawn


def test_a_bar_without_tqdm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(cputune.MissingPackageError, match="tqdm") as error:
        cputune.ProgressBar()
    assert error.value.hint == "pip install tqdm"


SIMULATED = """
import sys
sys.path[:0] = ["{tests}", "{tests}/../benchmarks"]
import cputune
from tuner.fakes import SMALL, FakeRunner, truthful
real = cputune.tune
def tune(job, *, budget, on_event):
    runner = FakeRunner(truthful())
    return real(SMALL.workload, facts=SMALL.facts, runner=runner, budget=budget, on_event=on_event)
cputune.tune = tune
"""
"""A cell before the sample: a machine that answers at once."""


@pytest.mark.matrix
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("before", "smaller"),
    [
        (SIMULATED.format(tests=Path(__file__).parent), "budget=8"),
        ("", "budget=1, share_machine=True"),
    ],
    ids=["simulated", "this machine"],
)
def test_the_page_is_run_as_a_notebook(tmp_path: Path, before: str, smaller: str) -> None:
    """The sample with the bar, each call of the table of pictures, and the table of trials."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    sample = EXAMPLE.replace("budget=20", smaller)
    calls = re.findall(r"^\| `(result\.plot_\w+\(\))` \|", PAGE, re.M)
    (frame,) = (p for p in SAMPLES if "to_frame" in p)
    rest = ('result.report("page.html")', "cputune.show(result)", 'result.save("cputune.json")')
    cells = [nbformat.v4.new_code_cell(code) for code in (before, sample, *calls, *rest, frame)]
    book = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=800, kernel_name="python3", resources=where).execute()
    first, *pictures = (
        "".join(one["data"].get("text/html", "") for one in cell.outputs if "data" in one)
        for cell in book.cells[1 : 2 + len(calls)]
    )
    verdict = cputune.Result.load(tmp_path / "cputune.json")._repr_html_()
    assert first == verdict == pictures[0]
    assert len(calls) == 6
    assert all(shown.lstrip().startswith('<div class="cputune">') for shown in pictures)
    assert "trial" in "".join(one.get("text", "") for one in book.cells[1].outputs)
    assert (tmp_path / "page.html").is_file()


def test_its_table_holds_every_event() -> None:
    named = set(re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.M))
    assert named == {kind.__name__ for kind in events.Event.__args__}


def test_a_listener_that_keeps_a_log_hears_the_study(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cputune.events"):
        result = tune_small(budget=3)
    told = [record.getMessage() for record in caplog.records]
    assert told[1] == "study of 3 trials, 0 of them on record"
    ended = [
        line
        for line in told
        if re.match(r"trial \d+ (completed: [\d.]+ samples/s|pruned: .*most likely slower)", line)
    ]
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
