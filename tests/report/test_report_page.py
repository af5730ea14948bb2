"""The page of a result: one file without the network, plain for whatever a result holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report.result_cases import (
    CASES,
    HOSTILE,
    all_numbers,
    elsewhere,
    hostile,
    one_trial,
    ten_thousand,
    tuned,
)

from cputune.errors import MissingPackageError
from cputune.figures import figure
from cputune.portrait import Place
from cputune.report import page as page_module
from cputune.report.page import page
from cputune.report.page_plans import shown_rows, thinned
from cputune.report.tuning import sentence
from cputune.result import Result

pytest.importorskip("plotly", reason="the extra `report` is not installed")
pytest.importorskip("optuna.importance")  # scikit-learn sets variables when it is imported


class Read(HTMLParser):
    """The elements of a page, its words, and the documents that its pictures are drawn from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = self.prose = ""
        self.charts: dict[str, dict[str, object]] = {}
        self._chart: str | None = None
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "elements that are not ended"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self._open.append(tag)
        name = dict(attrs).get("id") or ""
        self._chart = name.removeprefix("data-") if name.startswith("data-") else None

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._chart is not None:
            self.charts[self._chart] = json.loads(data)
        elif self._open[-1:] not in (["script"], ["style"]):
            self.words += data
            self.prose += "" if "code" in self._open else data


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_study_gives_a_plain_page(case: Callable[[], Result]) -> None:
    result = case()
    text = page(result)
    read = Read(text)
    assert sentence(result) in read.words
    assert result.baseline.plan.describe() in read.words
    assert {"Who runs where", "What the doctor found", "Versions"} <= set(
        re.findall(r"<h[23]>([^<]+)</h", text)
    )
    assert len(text.encode()) < 5_000_000
    assert re.search(r"\b(nan|None|inf)\b", read.prose) is None


@pytest.mark.parametrize("number", [0, 1, 1e30])
def test_numbers_that_no_machine_has_are_drawn_all_the_same(number: float) -> None:
    assert Read(page(all_numbers(number))).tags.count("section") > 5


def test_a_study_without_a_trial_says_so() -> None:
    read = Read(page(replace(one_trial(), trials=())))
    assert "Not one trial gave a number." in read.words
    assert "No plan was tried." in read.words


def test_the_page_of_a_whole_study_has_all_its_pictures() -> None:
    read = Read(page(tuned()))
    assert set(read.charts) == {"worth", "plans", "steps", "importance"}
    assert set(Read(page(ten_thousand())).charts) >= {"plans", "trials", "steps", "importance"}


def test_it_asks_no_network() -> None:
    read = Read(page(tuned()))
    assert not {"link", "iframe", "img", "object"} & set(read.tags)
    assert [value for name, value in read.attributes if name == "src"] == []
    assert all((v or "").startswith("https://") for name, v in read.attributes if name == "href")
    assert any("default-src 'none'" in (value or "") for _, value in read.attributes)


def test_nothing_in_a_result_becomes_part_of_the_page() -> None:
    result = hostile()
    read = Read(page(result, HOSTILE))
    assert read.tags.count("script") == len(read.charts) + 2  # plotly, and what draws with it
    assert "img" not in read.tags
    assert not any(name.startswith("on") for name, _ in read.attributes)
    assert "\x1b" not in read.words
    assert "\u202e" not in read.words
    assert "<img" not in json.dumps(read.charts)  # plotly reads some HTML in its texts
    assert "alert(1)" in read.words


def test_a_link_leads_to_the_web_and_nowhere_else() -> None:
    result = tuned()
    assert result.findings
    found = replace(result.findings[0], source="javascript:alert(1), https://example.org/x")
    read = Read(page(replace(result, findings=(found,))))
    links = [value for name, value in read.attributes if name == "href"]
    assert links == ["https://example.org/x"]


def test_a_picture_of_many_trials_says_how_many_it_shows() -> None:
    read = Read(page(ten_thousand()))
    assert "1000 of 9000 are drawn, evenly chosen." in read.words
    assert re.search(r"99[67]\d trials are not in this table", read.words)


def test_what_is_thinned_keeps_both_ends() -> None:
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert thinned(range(3), 4) == [0, 1, 2]


def test_every_core_is_drawn_with_who_has_it() -> None:
    result = tuned()
    text = page(result)
    cores = [set(core) for place in result.places for core in place.cores]
    assert text.count('<span class="core ') == len(cores)
    for rank, cpus in enumerate(result.best.plan.cpus):
        assert text.count(f">{rank}</span>") == sum(not core.isdisjoint(cpus) for core in cores)
    assert re.search(r'aria-label="Socket 1, node 1, 32 cores: 32 × rank 1', text)


def test_workers_and_shared_cores_and_idle_ones_have_signs_of_their_own() -> None:
    result = tuned()
    plan = replace(
        result.best.plan, ccl_cpus=((2,), (3,)), cpus=((0, 1), (1, 5)), processes_per_node=2
    )
    best = replace(result.best, plan=plan)
    place = Place(socket=0, numa_node=0, cores=tuple((cpu,) for cpu in range(7)))
    topology = {"topology": {"allowed": "0-5"}}
    text = page(replace(result, best=best, places=(place,), host=topology, worth=()))
    signs = re.findall(r'<span class="core [^"]*" title="[^"]*">([^<]*)</span>', text)
    assert signs == ["0", "+", "w0", "w1", "", "1", "·"]


def test_what_the_result_does_not_hold_is_said() -> None:
    read = Read(page(elsewhere()))
    assert "does not say which cores" in read.words
    assert "it was made without asking" in read.words


def test_steps_that_others_delayed_are_marked() -> None:
    result = tuned()
    late = sum(len(turn.delayed) for run in result.confirmation for turn in run.taken)
    traces = Read(page(result)).charts["steps"]["data"]
    marked = [trace for trace in traces if trace["name"] == "delayed by other processes"]
    assert late > 0
    assert len(marked[0]["x"]) == late
    steps = sum(len(turn.step_seconds) for run in result.confirmation for turn in run.taken)
    assert sum(len(trace["x"]) for trace in traces) == steps


def test_who_was_measured_side_by_side_shows_it_whether_it_won_or_not() -> None:
    result = tuned()
    rivals = {run.plan for run in result.confirmation}
    shown = {row.name for row in shown_rows(result) if row.confirmed is not None}
    assert len(rivals) > 2
    assert shown == {plan.describe() for plan in rivals}


def test_plans_that_ran_one_after_another_are_said_to_have_done_so() -> None:
    runs = tuple(replace(run, turns=0) for run in tuned().confirmation)
    assert "in new processes; their first steps warm up" in page(
        replace(tuned(), confirmation=runs)
    )
    assert "The plans live at once" in page(tuned())


def test_where_nothing_is_to_be_changed_there_is_one_card() -> None:
    text = page(one_trial())
    assert len(re.findall('class="card( chosen)?"', text)) == 1
    assert "Nothing: keep the launch that you have." in text


def test_both_speeds_stand_beside_each_other() -> None:
    result = tuned()
    words = Read(page(result)).words
    for side in (result.baseline, result.best):
        assert f"{figure(side.samples_per_second.median)} samples/s" in words


def test_of_a_machine_that_was_not_quiet_no_plan_is_called_the_best() -> None:
    text = page(replace(tuned(), disturbed=True))
    assert text.count("while others disturbed the machine") == 2
    assert "Perhaps faster" in text
    assert 'class="card chosen"' not in text
    same = page(replace(one_trial(), disturbed=True))
    assert "Nothing is known: tune when the machine is quiet." in same
    assert "recommendation" not in re.sub("<script.*", "", same)


def test_without_plotly_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "find_spec", lambda name: None if name == "plotly" else name)
    with pytest.raises(MissingPackageError, match="the report needs plotly, which is not") as error:
        page(tuned())
    assert error.value.hint == "pip install 'cputune[report]'"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cputune", "report", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_command_writes_one_file_and_replaces_none(tmp_path: Path) -> None:
    tuned().save(tmp_path / "cputune.json")
    first = run(tmp_path)
    assert (first.returncode, first.stdout) == (0, "")
    assert "the report is in report.html" in first.stderr
    again = run(tmp_path)
    assert again.returncode == 2
    assert "hint: give --force to replace it" in again.stderr
    assert run(tmp_path, "--force", "-q").stderr == ""
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cputune.json", "report.html"]


def test_without_a_result_the_command_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "none.json", "-o", "-")
    assert done.returncode == 3
    assert "cannot read none.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_imports_no_plotly() -> None:
    code = (
        "import sys; sys.argv = ['cputune', 'report', '--help']\n"
        "from cputune.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print('plotly' in sys.modules, 'optuna' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False False"
