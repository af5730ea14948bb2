"""``cputune tune`` as its user meets it: streams, files, exit codes, bad input."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden_texts import Golden
from in_process import Run
from machines import TODAY, Model, machine, simulated
from simulated_ranks import FakeProcessRunner, simulate
from tuner.fakes import PLANS, VARIED

from cputune import Plan, Result, Step, kept_results, search_space
from cputune.cli import main
from cputune.host import Interpreter, locks
from cputune.records.history import result_path
from cputune.records.steps import Crashed

SMALL = simulated("small", machine(cores_per_socket=2), Model(work=2.0, bandwidth=2.0))
Runner = type[FakeProcessRunner]
pytestmark = pytest.mark.usefixtures("workdir", "runner")


def true_steps(plan: Plan) -> Iterator[Step]:
    while True:
        yield Step(seconds=SMALL.seconds(plan), samples=8)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    return simulate(monkeypatch, SMALL.seconds, SMALL.facts)


@pytest.mark.parametrize("word", ["--json", "-vv", "--help", "--resume", "--force"])
def test_words_of_the_script_do_not_steer_cputune(cputune: Run, word: str, golden: Golden) -> None:
    ended = cputune("tune", "--", "missing.py", word)
    assert (ended.code, ended.out) == (2, "")
    golden(ended.err)


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "--json", "--", "missing.py"),
        ("tune", "--json", "--bogus"),
        ("tune", "--budget", "x", "--json"),
        ("tune", "--json", "--budget"),
        ("--bogus", "tune", "--json"),
        ("tine", "--json"),
    ],
)
def test_json_before_the_script_steers_the_error(cputune: Run, words: tuple[str, ...]) -> None:
    ended = cputune(*words)
    assert ended.code == 2
    assert json.loads(ended.out)["error"]["exit_code"] == 2


def test_a_traceback_is_for_who_asks_and_keeps_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cputune", "-vv", "tune", "--", "missing.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_study_writes_its_result_and_says_what_it_is(cputune: Run, golden: Golden) -> None:
    ended = cputune("tune", "--knobs", ",".join(VARIED))
    assert ended.code == 0
    result = Result.load(Path("cputune.json"))
    assert result.best.plan.precision == "bf16"
    golden(ended.out)
    assert len([line for line in ended.err.splitlines() if line.startswith("trial ")]) == 7
    assert Path("cputune.db").is_file()


def test_a_line_of_a_log_is_whole_however_long_it_is(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in "[2 of 20 trials, 68 s…": where there is no terminal there is no width."""
    monkeypatch.setenv("COLUMNS", "40")
    long = [*("--knobs", "threads"), *("--fix", "precision=bf16"), *("--fix", "allocator=default")]
    ended = cputune("tune", *long)
    lines = [line for line in ended.err.splitlines() if line.startswith("trial ")]
    assert lines
    assert all(line.endswith("]") and "…" not in line for line in lines)
    assert max(map(len, lines)) > 60
    assert "…" not in cputune("doctor").out


def test_verbose_is_not_kept_in_the_command(cputune: Run) -> None:
    assert cputune("tune", "-v", "--budget", "2", "-o", "found.json").code == 0
    command = Result.load("found.json").command
    assert command[:2] == ("cputune", "tune")
    assert not {"-v", "--verbose"} & set(command)


def test_without_a_terminal_a_line_says_what_is_waited_for(
    cputune: Run, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_steps(plan: Plan) -> Iterator[Step]:
        time.sleep(1.0)
        yield from true_steps(plan)

    monkeypatch.setattr("cputune.cli.progress.SILENT_SECONDS", 0.2)
    runner.script = staticmethod(slow_steps)
    said = cputune("tune", "--budget", "2").err
    waits = [line for line in said.splitlines() if line.startswith("still ")]
    assert any(line.startswith("still trial 1 ") for line in waits), said
    assert all(line.endswith("]") for line in waits)


def test_json_is_the_document_and_nothing_more(cputune: Run) -> None:
    ended = cputune("tune", "--json", "--budget", "3")
    assert json.loads(ended.out) == json.loads(Path("cputune.json").read_text())
    assert json.loads(ended.out)["schema"] == "cputune.result/4"


def test_who_computes_here_is_reported(cputune: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    who = "make (process 4711) 98 % of a CPU"
    monkeypatch.setattr("cputune.host.probing.load.look_around", lambda host: (who,))
    told = cputune("tune", "--budget", "2")
    assert "warning: the machine is busy" in told.err
    assert who in told.err


def test_arguments_of_a_script_pass_untouched(cputune: Run, runner: Runner) -> None:
    Path("train.py").write_text("")
    ended = cputune("tune", "--budget", "2", "--", "train.py", "--train_file", "./a b", "--", "-o")
    assert ended.code == 0
    assert runner.opened[0][0].argv == ("train.py", "--train_file", "./a b", "--", "-o")


def test_knobs_fixes_and_batches_reach_the_study(cputune: Run) -> None:
    words = ("--knobs", "precision,ranks", "--fix", "threads=1", "--batch-per-rank", "4")
    assert cputune("tune", *words).code == 0
    found = Result.load("cputune.json")
    assert {t.plan.threads_per_process for t in found.trials[1:]} == {1}
    assert found.workload.batch_per_rank == 4


def test_what_cannot_be_tried_is_named_before_the_first_trial(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = replace(SMALL.facts, packages=TODAY)
    monkeypatch.setattr("cputune.host.probing.probe", lambda host=None, watched=True: facts)
    before = cputune("tune", "--budget", "1").err.partition("trial 0:")[0]
    assert "note: tcmalloc is not installed" in before
    assert "  cputune doctor --explain allocator-missing\n" in before


def test_a_dry_run_prints_the_space_and_touches_nothing(cputune: Run, runner: Runner) -> None:
    ended = cputune("tune", "--dry-run")
    assert ended.code == 0
    assert f"{len(search_space(SMALL.facts, SMALL.workload))} plans" in ended.out
    assert "precision  fp32, bf16" in ended.out
    assert "precision=fp16: accelerate skips" in ended.out
    assert list(Path().iterdir()) == []
    assert runner.opened == []


def test_a_dry_run_has_a_document(cputune: Run) -> None:
    document = json.loads(cputune("tune", "--dry-run", "--json", "--knobs", ",".join(VARIED)).out)
    assert document["schema"] == "cputune.space/1"
    assert len(document["plans"]) == len(PLANS)
    assert document["knobs"]["ranks"] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "0"), "1 or more, not 0"),
        (("--budget", "many"), "not a valid integer"),
        (("--recipe", "bert-huge"), "no recipe is called 'bert-huge'"),
        (("--recipe", "broken.toml"), "is not TOML"),
        (("--recipe", "empty.toml"), "is missing"),
        (("--knobs", "colour"), "no knob is called 'colour'"),
        (("--fix", "precision"), "NAME=VALUE"),
        (("--fix", "ranks=1", "--fix", "ranks=2"), "sets ranks to 1 and to 2"),
        (("--fix", "precision=fp64"), "precision is fp32, bf16 or fp16"),
        (("--max-time", "soon"), "not a time"),
        (("--max-time", "0"), "--max-time must be positive"),
        (("--batch-per-rank", "0"), "x>=1"),
        (("--batch-per-rank", "2", "--global-batch-size", "8"), "exclude each other"),
        (("-o", "nowhere/cputune.json"), "the directory nowhere does not exist"),
        (("--", "gone.py"), "there is no script 'gone.py'"),
        (("--recipe", "bert-mini", "--", "broken.toml"), "not both"),
        (("--colour",), "No such option"),
    ],
)
def test_bad_input_is_an_error_a_hint_and_exit_2(
    cputune: Run, arguments: tuple[str, ...], message: str
) -> None:
    Path("broken.toml").write_text("= =")
    Path("empty.toml").write_text("")
    before = sorted(Path().iterdir())
    ended = cputune("tune", *arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert message in ended.err
    assert ended.err.startswith("error: ")
    assert "\nhint: " in ended.err
    assert sorted(Path().iterdir()) == before


@pytest.mark.usefixtures("history")
def test_a_study_that_ended_is_never_in_the_way(cputune: Run) -> None:
    """The second `tune` ended with 2 and "cputune.db exists"."""
    assert cputune("tune").code == 0
    before = Result.load("cputune.json")
    first = Path("cputune.json").read_text()
    again = cputune("tune", "--seed", "1")
    assert again.code == 0
    assert f"is tried first: {before.best.plan.describe()}\n" in again.err
    since = Result.load("cputune.json").earlier
    assert since.is_best
    assert "Since      Nothing that is known has changed: your plan is still the best" in again.out
    assert Path("cputune.json").read_text() != first
    had = r"cputune\.json had an earlier result, which is now: cputune show (\S+)"
    kept = re.search(had, again.err)
    assert result_path(kept[1]).read_text() == first
    assert cputune("show", kept[1]).code == 0
    assert sorted(path.name for path in Path().glob("*.db")) == ["cputune.db"]


def test_a_result_that_no_history_has_is_kept_before_it_is_replaced(cputune: Run) -> None:
    """Here no history can be written, so the file is moved."""
    assert cputune("tune", "--no-history").code == 0
    first = Path("cputune.json").read_text()
    again = cputune("tune", "--no-history")
    (moved,) = Path().glob("cputune-*.json")
    assert moved.read_text() == first
    assert f"cputune show {moved}" in again.err


def test_a_study_without_a_trial_is_never_in_the_way(cputune: Run, runner: Runner) -> None:
    def interrupts(plan: Plan) -> Iterator[Step]:
        os.kill(os.getpid(), signal.SIGINT)
        yield Step(seconds=1.0, samples=8)

    runner.script = staticmethod(interrupts)
    assert cputune("tune").code == 130
    runner.script = staticmethod(true_steps)
    again = cputune("tune")
    assert (again.code, "note: a study" in again.err) == (0, False)


def test_a_study_that_was_cut_off_is_moved_and_can_be_gone_on_with(
    cputune: Run, runner: Runner
) -> None:
    begun: list[Plan] = []

    def interrupted(plan: Plan) -> Iterator[Step]:
        begun.append(plan)
        if len(begun) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        yield from true_steps(plan)

    runner.script = staticmethod(interrupted)
    assert cputune("tune").code == 130
    runner.script = staticmethod(true_steps)
    again = cputune("tune")
    assert again.code == 0
    moved = re.search(r"of \d trials, is now (\S+): .* --resume --study (\S+) ", again.err)
    assert moved[1] == moved[2]
    resumed = cputune("tune", "--resume", "--study", moved[2], "-o", "resumed.json")
    assert resumed.code == 0
    trials = [line for line in resumed.err.splitlines() if line.startswith("trial ")]
    assert 0 < len(trials) < len(Result.load("resumed.json").trials)


@pytest.mark.parametrize("existing", ["cputune.json", "cputune.db"])
@pytest.mark.parametrize("text", ["mine", '{"schema": "mine/1"}'])
def test_a_file_of_somebody_else_is_never_replaced(cputune: Run, existing: str, text: str) -> None:
    Path(existing).write_text(text)
    ended = cputune("tune")
    assert ended.code in (2, 3)
    assert existing in ended.err
    assert Path(existing).read_text() == text


@pytest.mark.parametrize("package", ["torch", "transformers", "optuna"])
def test_without_a_package_it_says_which(
    cputune: Run, package: str, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    from cputune.cli import tune

    monkeypatch.setattr(Interpreter, "has_module", lambda python, name: name != package)
    monkeypatch.setattr(tune, "find_spec", lambda name: None if name == package else object())
    ended = cputune("tune")
    assert ended.code == 3
    golden(ended.err)


def test_a_script_needs_no_transformers(cputune: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from cputune.cli import tune

    needed = []
    monkeypatch.setattr(Interpreter, "has_module", lambda python, name: needed.append(name) or True)
    monkeypatch.setattr(tune, "find_spec", lambda name: needed.append(name) or True)
    Path("train.py").write_text("")
    cputune("tune", "--budget", "2", "--", "train.py")
    assert needed == ["torch", "optuna"]


def test_there_must_be_a_study_to_resume(cputune: Run, golden: Golden) -> None:
    ended = cputune("tune", "--resume")
    assert ended.code == 3
    golden(ended.err)


def test_what_becomes_of_a_typed_launcher_is_said(cputune: Run, golden: Golden) -> None:
    Path("train.py").write_text("")
    words = "torchrun --nproc-per-node 2 train.py --lr 1"
    ended = cputune("tune", "--dry-run", "--", *words.split())
    assert ended.code == 0
    golden(ended.err)


def test_without_a_valid_trial_it_ends_with_4(cputune: Run, runner: Runner, golden: Golden) -> None:
    def crash(plan: Plan) -> Iterator[Step]:
        raise Crashed("ModuleNotFoundError: no evaluate")
        yield

    runner.script = staticmethod(crash)
    ended = cputune("tune", "--json")
    assert ended.code == 4
    assert json.loads(ended.out)["error"]["exit_code"] == 4
    golden(ended.err)
    assert not Path("cputune.json").exists()


@pytest.mark.usefixtures("history")
def test_an_interrupt_keeps_the_study_and_says_how_to_go_on(
    cputune: Run, runner: Runner, golden: Golden
) -> None:
    left = [12]

    def interrupted(plan: Plan) -> Iterator[Step]:
        for step in true_steps(plan):
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
            yield step

    runner.script = staticmethod(interrupted)
    ended = cputune("tune", "--force", "--seed", "3")
    assert ended.code == 130
    golden(ended.err)
    found = Result.load(Path("cputune.json"))
    assert 1 <= len(found.trials) < 7
    assert "before the confirmation" in " ".join(found.notes)
    (kept,) = kept_results()
    assert Result.load(result_path(kept.id)) == found
    again = cputune("tune", "--resume", "--seed", "3")
    assert again.code == 0
    assert len(Result.load(Path("cputune.json")).trials) == 7


@pytest.mark.parametrize("moment", ["cputune.records.result.Result.save", "cputune.cli.tune._show"])
def test_an_interrupt_after_the_last_round_loses_nothing_and_says_how_to_go_on_too(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, moment: str, golden: Golden
) -> None:
    whole = pkgutil.resolve_name(moment)

    def stopped(*given: Any, **more: Any) -> None:
        monkeypatch.setattr(moment, whole)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(moment, stopped)
    ended = cputune("tune", "--seed", "3")
    assert ended.code == 130
    golden(ended.err)
    assert Result.load("cputune.json").confirmation


@pytest.mark.usefixtures("history")
def test_each_result_is_kept_in_the_history_unless_it_is_not_wanted(cputune: Run) -> None:
    cputune("tune", "--budget", "2")
    cputune("tune", "--budget", "2", "-o", "-", "--force")
    cputune("tune", "--budget", "2", "--force", "--no-history")
    assert [one.result is None for one in kept_results()] == [False, False]


def test_a_study_in_use_is_left_alone(cputune: Run) -> None:
    cputune("tune", "--budget", "2")
    before = Path("cputune.db").read_bytes()
    for words in (("--resume",), ("--force",)):
        with locks.study_lock(Path("cputune.db")):
            ended = cputune("tune", "--budget", "2", *words)
        assert ended.code == 3
        assert f"in use by process {os.getpid()} on" in ended.err
    assert Path("cputune.db").read_bytes() == before


def test_a_machine_that_another_measures_is_waited_for(
    cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locks.measuring_lock(pytest.fail):
        assert cputune("tune", "--share-machine", "--budget", "2").code == 0

        def interrupted(owner: str) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(locks, "_peer", interrupted)
        assert cputune("tune", "--resume", "--budget", "2").code == 130


def test_another_study_is_not_gone_on_with(cputune: Run) -> None:
    cputune("tune", "--budget", "2")
    ended = cputune("tune", "--resume", "--recipe", "distilbert-squad")
    assert ended.code == 3
    assert "another workload" in ended.err


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a small file system of its own; needs root."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def filled(disk: Path) -> None:
    """Leave no room on it."""
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


@pytest.mark.usefixtures("history")
class TestWhereTheResultCannotBeWritten:
    """Hours of measuring: the verdict is printed, and the result lies somewhere else."""

    def filling_at_the_end(self, runner: Runner, disk: Path) -> None:
        """The disk is full from the second block of the confirmation on."""

        def script(plan: Plan) -> Iterator[Step]:
            if any(fresh for _, fresh in runner.opened) and not (disk / "filler").exists():
                filled(disk)
            return true_steps(plan)

        runner.script = staticmethod(script)

    def test_because_the_disk_is_full_at_the_end(
        self, cputune: Run, runner: Runner, full_disk: Path
    ) -> None:
        self.filling_at_the_end(runner, full_disk)
        ended = cputune("tune", "--budget", "3", "-o", str(full_disk / "r.json"))
        assert ended.code == 3
        assert "\nDo now " in ended.out
        assert "no space left on device" in ended.err.lower()
        (kept,) = kept_results()
        assert f"cputune show {kept.id}" in ended.err
        assert len(kept.result.trials) == 3
        assert cputune("show", kept.id).code == 0

    @pytest.mark.parametrize("options", [(), ("--no-history",)])
    def test_nor_the_history(
        self, cputune: Run, runner: Runner, full_disk: Path, history: Path, options: tuple[str, ...]
    ) -> None:
        history.write_text("no folder")
        self.filling_at_the_end(runner, full_disk)
        ended = cputune("tune", "--budget", "3", "-o", str(full_disk / "r.json"), *options)
        assert (ended.code, "\nDo now " in ended.out) == (3, True)
        found = re.search(r"cputune show (/\S+\.json)", ended.err)
        assert Path(found[1]).stat().st_mode & 0o777 == 0o600
        assert len(Result.load(found[1]).trials) == 3
        Path(found[1]).unlink()

    def test_nor_anything_else(
        self,
        cputune: Run,
        runner: Runner,
        full_disk: Path,
        history: Path,
        monkeypatch: pytest.MonkeyPatch,
        golden: Golden,
    ) -> None:
        history.write_text("no folder")
        monkeypatch.setattr(tempfile, "tempdir", str(full_disk))
        self.filling_at_the_end(runner, full_disk)
        ended = cputune("tune", "--budget", "3", "-o", str(full_disk / "r.json"))
        assert (ended.code, "\nDo now " in ended.out) == (3, True)
        golden(ended.err)


class TestAnOutputThatCannotBeWritten:
    """Refused before the first trial."""

    def refused(self, cputune: Run, runner: Runner, *words: str) -> str:
        ended = cputune("tune", "--force", *words)
        assert ended.code in (2, 3)
        assert "hint:" in ended.err
        assert runner.opened == []
        return ended.err

    def test_because_the_disk_is_full(self, cputune: Run, runner: Runner, full_disk: Path) -> None:
        filled(full_disk)
        for words in (("-o", str(full_disk / "r.json")), ("--study", str(full_disk / "s.db"))):
            assert "no space left on device" in self.refused(cputune, runner, *words)

    def test_because_nothing_may_be_written_there(
        self, cputune: Run, runner: Runner, full_disk: Path, golden: Golden
    ) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(full_disk)], check=True)
        golden(self.refused(cputune, runner, "-o", str(full_disk / "r.json")))

    def test_because_it_is_not_a_file(self, cputune: Run, runner: Runner) -> None:
        Path("folder").mkdir()
        os.mkfifo("fifo")
        for name in ("folder", "fifo", "folder/none/r.json", "x" * 300):
            self.refused(cputune, runner, "-o", name)
            self.refused(cputune, runner, "--study", name)

    def test_because_it_is_immutable(
        self, cputune: Run, runner: Runner, tmp_path: Path, golden: Golden
    ) -> None:
        file = tmp_path / "r.json"
        file.write_text("")
        if subprocess.run(["chattr", "+i", str(file)], capture_output=True).returncode:
            pytest.skip("this file system has no immutable files")
        try:
            said = self.refused(cputune, runner, "-o", str(file))
        finally:
            subprocess.run(["chattr", "-i", str(file)], check=True)
        golden(said)
