"""A study on record: what is written down, what is read back, which files are refused."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import load
import optuna
import pytest
from golden_texts import Golden
from in_process import ran
from sqlalchemy.pool import NullPool
from tuner.fakes import PLANS, SMALL, FakeRunner, failing, truthful

import cputune
from cputune import CannotError, Message, Result, Trial, TrialEnded
from cputune.records.result import COMPLETED, FAILED, PRUNED, State, Throughput
from cputune.records.steps import Crashed
from cputune.tuner import databases
from cputune.tuner.reading import Run
from cputune.tuner.storage import (
    StudyStorage,
)

SPACE = cputune.search_space(SMALL.facts, SMALL.workload)
RATE = Throughput(centre=4.0, low=3.0, high=5.0)


def tuned(study: Path, script: Any = truthful(), **options: Any) -> Result:  # noqa: B008
    return cputune.tune(
        SMALL.workload, facts=SMALL.facts, runner=FakeRunner(script), study=study, **options
    )


def read(study: Path) -> list[tuple[Trial, Run]]:
    """All that is read of a study that is gone on with."""
    book = StudyStorage(study, resume=True)
    try:
        assert book.workload
        return book.past()
    finally:
        book.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three trials."""
    file = tmp_path_factory.mktemp("sound") / "s.db"
    tuned(file, budget=3)
    return file


class TestWhatIsToldOfATrial:
    """What is told of a trial comes back, whatever became of it."""

    @pytest.mark.parametrize("private", [True, False])
    @pytest.mark.parametrize(
        ("state", "logs", "value"),
        [
            (COMPLETED, (0.5, 1.5), 0.25),
            (PRUNED, (0.5, 1.5), math.exp(1.5)),
            (FAILED, (0.5,), None),
        ],
    )
    def test_each_state(
        self,
        tmp_path: Path,
        state: State,
        logs: tuple[float, ...],
        value: float | None,
        private: bool,
    ) -> None:
        rate = RATE if state == COMPLETED else None
        trial = Trial(number=0, plan=PLANS[0], state=state, samples_per_second=rate, reason="why")
        run = Run(logs=list(logs), losses=[2.0, None, math.nan])
        path = tmp_path / "s.db"
        for found in ([], [trial]):
            book = StudyStorage(path, resume=True, private=private)
            assert path.stat().st_mode & 0o777 == (0o600 if private else 0o644)
            assert [told for told, _ in book.past()] == found
            if not found:
                assert book.begin(SPACE, PLANS[0]) == PLANS[0]
                book.end(trial, run)
                assert book.write_down() is None
            else:
                ((_, again),) = book.past()
                assert (again.logs, again.losses) == (list(logs), [2.0, None, None])
                (frozen,) = book._record.get_trials()
                assert "cputune.trial" in frozen.user_attrs
                assert frozen.user_attrs["reason"] == "why"
                assert frozen.value == pytest.approx(value)
                seconds = {index: math.exp(one) for index, one in enumerate(logs)}
                assert frozen.intermediate_values == pytest.approx(seconds)
            book.close()

    def test_one_that_was_cut_off_is_not_on_record(self, tmp_path: Path) -> None:
        for abandoned in (True, False):
            book = StudyStorage(tmp_path / f"{abandoned}.db", resume=False)
            book.abandon()  # of none
            book.begin_baseline()
            if abandoned:
                book.abandon()
            book.close()
            again = StudyStorage(tmp_path / f"{abandoned}.db", resume=True)
            assert again.past() == []
            again.close()

    @pytest.mark.parametrize("after", [False, True])
    def test_one_that_an_interrupt_met_while_it_was_written_is_there_once(
        self, after: bool, tmp_path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "s.db"
        path.write_bytes(sound.read_bytes())
        before = read(path)
        trial, run = before[0]
        add = optuna.Study.add_trial

        def interrupted(study: optuna.Study, frozen: optuna.trial.FrozenTrial) -> None:
            monkeypatch.setattr(optuna.Study, "add_trial", add)
            if after:
                add(study, frozen)
            raise KeyboardInterrupt

        book = StudyStorage(path, resume=True)
        book.begin_baseline()
        book.end(replace(trial, number=len(before)), run)
        monkeypatch.setattr(optuna.Study, "add_trial", interrupted)
        with pytest.raises(KeyboardInterrupt):
            book.write_down()
        assert book.write_down() is None
        book.close()
        assert [one.number for one, _ in read(path)] == [*range(len(before) + 1)]
        with closing(sqlite3.connect(path)) as file:
            (rows,) = file.execute("select count(*) from trials").fetchone()
        assert rows == len(before) + 1

    def test_a_study_without_a_trial_is_taken_away(self, tmp_path: Path, sound: Path) -> None:
        for resume, left in ((True, ["s.db"]), (False, [])):
            place = tmp_path / str(resume)
            place.mkdir()
            if resume:
                shutil.copy(sound, place)
            StudyStorage(place / "s.db", resume=resume).discard()
            assert [path.name for path in place.iterdir()] == left
        StudyStorage(None, resume=False).discard()

    @pytest.mark.parametrize("there", [b"", None])
    def test_an_empty_file_is_no_study_yet(
        self, tmp_path: Path, there: bytes | None, golden: Golden
    ) -> None:
        if there is not None:
            (tmp_path / "s.db").write_bytes(there)
        (tmp_path / ".s.db.new").write_text("of one that was killed")
        book = StudyStorage(tmp_path / "s.db", resume=False)
        assert (book.workload, book.past()) == (None, [])
        book.claim({"seed": 3, "schema": 1})
        book.remember(SMALL.workload)
        assert book.write_down() is None
        book.claim({"seed": 3, "schema": 1})
        with pytest.raises(CannotError) as raised:
            book.claim({"seed": 4, "schema": 2})
        golden(raised.value)
        assert book.workload == SMALL.workload
        book.close()
        assert [path.name for path in tmp_path.iterdir()] == ["s.db"]


def test_a_study_is_made_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(optuna, "create_study", killed)
        with pytest.raises(KeyboardInterrupt):
            StudyStorage(tmp_path / "s.db", resume=False)
    assert list(tmp_path.iterdir()) == []
    StudyStorage(tmp_path / "s.db", resume=False, private=True).close()
    assert (tmp_path / "s.db").stat().st_mode & 0o777 == 0o600


def test_an_interrupt_while_the_file_is_closed_shows_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Interrupted(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            raise KeyboardInterrupt

    monkeypatch.setattr(
        databases, "connect", lambda path: sqlite3.connect(path, factory=Interrupted)
    )
    with pytest.raises(KeyboardInterrupt):
        StudyStorage(tmp_path / "s.db", resume=False)
    assert caplog.records == []


UNREADABLE = "cannot be opened as a study"
SET = "update {}_user_attributes set value_json='{}' where key='cputune.{}'"


class TestDamagedStudies:
    """A file that somebody else wrote, or that was damaged: refused, and left as it is."""

    @pytest.fixture
    def study(self, sound: Path, tmp_path: Path) -> Path:
        return Path(shutil.copy(sound, tmp_path))

    def refused(self, study: Path, match: str = UNREADABLE) -> None:
        before = study.read_bytes()
        with pytest.raises(CannotError, match=match) as caught:
            read(study)
        assert caught.value.hint
        assert study.read_bytes() == before

    def changed(self, study: Path, *commands: str) -> None:
        with closing(sqlite3.connect(study)) as file:
            for command in commands:
                file.execute(command)
            file.commit()

    def test_the_database_of_another_program_is_left_alone(self, tmp_path: Path) -> None:
        self.changed(tmp_path / "s.db", "create table bookmarks (url text)")
        self.refused(tmp_path / "s.db", match="another program.s database")

    def test_a_study_that_does_not_say_of_what_it_is(self, study: Path, golden: Golden) -> None:
        self.changed(study, "delete from study_user_attributes")
        with pytest.raises(CannotError) as raised:
            tuned(study, resume=True)
        golden(raised.value)

    @pytest.mark.parametrize(
        ("command", "match"),
        [
            ("drop table studies", "tables are missing"),
            ("drop table trials", "tables are missing"),
            ("drop table study_user_attributes", "tables are missing"),
            ("drop table trial_user_attributes", "tables are missing"),
            ("delete from trial_user_attributes", "lacks its measurements"),
            (SET.format("study", "7", "workload"), UNREADABLE),
            *(
                (SET.format("trial", value, "trial"), UNREADABLE)
                for value in ("3", "[]", "{}", "{", '{"logs": ["x"]}', '{"logs": [1e400]}')
            ),
        ],
    )
    def test_one_that_was_changed(self, study: Path, command: str, match: str) -> None:
        self.changed(study, command)
        self.refused(study, match)

    @pytest.mark.parametrize("offset", [0, 100, 700, 3 * 4096, 20 * 4096])
    def test_a_file_with_garbage_in_it(self, study: Path, offset: int) -> None:
        content = bytearray(study.read_bytes())
        content[offset : offset + 64] = b"\xf2\x93garbage" * 7
        study.write_bytes(content)
        self.refused(study)

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    def test_a_file_that_was_cut_off(self, study: Path, share: float) -> None:
        content = study.read_bytes()
        study.write_bytes(content[: int(share * len(content))])
        self.refused(study)

    @pytest.mark.parametrize("name", ["a?b=c.db", "a#b.db", "100%.db", "{x}.db", "a b.db", "ü.db"])
    def test_any_name_is_the_name_of_the_file(self, tmp_path: Path, name: str) -> None:
        StudyStorage(tmp_path / name, resume=False).close()
        assert [path.name for path in tmp_path.iterdir()] == [name]
        StudyStorage(tmp_path / name, resume=True).close()

    def test_a_fifo_is_not_opened(self, tmp_path: Path, golden: Golden) -> None:
        os.mkfifo(tmp_path / "s.db")
        with pytest.raises(CannotError) as raised:
            StudyStorage(tmp_path / "s.db", resume=True)
        golden(raised.value)


class TestStorage:
    def test_optuna_reads_the_trials_with_their_states(self, tmp_path: Path) -> None:
        script = failing(Crashed("rank 0 died"), when="bf16")
        result = tuned(tmp_path / "s.db", script)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{tmp_path / 's.db'}", engine_kwargs={"poolclass": NullPool}
        )
        study = optuna.load_study(study_name=None, storage=storage)
        states = {"completed": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
        assert [t.state.name for t in study.trials] == [states[t.state] for t in result.trials]
        assert study.trials[1].user_attrs["reason"].startswith("rank 0 died")
        assert study.trials[-1].params["precision"] in ("fp32", "bf16")
        assert study.best_trial.value == pytest.approx(SMALL.seconds(result.best.plan) / 8, rel=0.5)


def removed(study: Path) -> None:
    study.unlink()


def cut_off(study: Path) -> None:
    os.truncate(study, study.stat().st_size // 2)


def emptied(study: Path) -> None:
    os.truncate(study, 0)


def overwritten(study: Path) -> None:
    study.write_text("something else\n" * 100)


class TestAStudyThatCannotBeWritten:
    """Its trials go on, its result holds all of them, and says what befell the file."""

    def tuned(self, study: Path, fault: Any, after: int = 1) -> tuple[Result, list[str]]:
        said = []

        def hear(event: Any) -> None:
            if isinstance(event, TrialEnded) and event.trial.number == after:
                fault(study)
            if isinstance(event, Message):
                said.append(event.text)

        return tuned(study, on_event=hear), said

    @pytest.mark.parametrize(
        ("fault", "cause"),
        [
            (removed, "the file is gone"),
            (emptied, "the file is empty"),
            (cut_off, "the file is damaged or truncated"),
            (overwritten, "the file is damaged or truncated"),
            (lambda study: shutil.rmtree(study.parent), "the file is gone"),
        ],
    )
    def test_because_of_what_befell_it(self, tmp_path: Path, fault: Any, cause: str) -> None:
        (tmp_path / "of").mkdir()
        undisturbed = tuned(tmp_path / "whole.db")
        result, said = self.tuned(tmp_path / "of" / "s.db", fault)
        assert [trial.plan for trial in result.trials] == [t.plan for t in undisturbed.trials]
        assert result.best.plan == undisturbed.best.plan
        (warning,) = (text for text in said if "warning" in text)
        assert cause in warning
        (note,) = (note for note in result.notes if "--resume" in note)
        assert cause in note

    def test_even_after_its_last_trial(self, tmp_path: Path) -> None:
        last = len(tuned(tmp_path / "whole.db").trials) - 1
        result, _ = self.tuned(tmp_path / "s.db", removed, after=last)
        assert any("the file is gone" in note for note in result.notes)
        assert not (tmp_path / "s.db").exists()

    def test_what_another_program_held_is_written_when_it_is_free(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
    ) -> None:
        study, said, holding = tmp_path / "s.db", [], []

        def impatient(path: Path) -> sqlite3.Connection:
            return sqlite3.connect(path, timeout=0.01, check_same_thread=False)

        monkeypatch.setattr(databases, "connect", impatient)

        def hear(event: Any) -> None:
            if isinstance(event, Message):
                said.append(event.text)
            if isinstance(event, TrialEnded) and event.trial.number == 1:
                holding.append(sqlite3.connect(study))
                holding[0].execute("begin exclusive")
            if isinstance(event, TrialEnded) and event.trial.number == 3:
                holding[0].close()

        result = tuned(study, on_event=hear)
        golden(said[0])
        assert said[1:] == ["the study is writable again"]
        assert not [note for note in result.notes if "--resume" in note]
        assert [trial for trial, _ in read(study)] == list(result.trials)

    def test_because_files_may_not_grow_tells_so(self, tmp_path: Path, golden: Golden) -> None:
        paths = [path for path in sys.path if path.endswith(("tests", "benchmarks"))]
        done = ran([sys.executable, "-c", LIMITED.format(paths=paths)], cwd=tmp_path)
        golden(done.stdout)
        assert done.stderr == ""
        result = tuned(tmp_path / "s.db", resume=True)
        assert [trial.number for trial in result.trials] == list(range(len(result.trials)))


LIMITED = """
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

result = cputune.tune(
    SMALL.workload, facts=SMALL.facts, runner=FakeRunner(truthful()), study="s.db", on_event=fill
)
cause = [note for note in result.notes if "--resume" in note][0].partition(": ")[2]
print(len(result.trials), "trials;", cause.rstrip("."))
"""


@pytest.mark.slow
def test_a_study_of_many_trials_is_gone_on_with_and_reads_back(tmp_path: Path) -> None:
    space = cputune.search_space(load.LARGE.facts, load.JOB, **load.OPTIONS)
    load.make(tmp_path / "s.db", space, 120)
    result = load.resume(tmp_path / "s.db", 121)
    assert [trial.number for trial in result.trials] == list(range(121))
    result.save(tmp_path / "r.json")
    assert Result.load(tmp_path / "r.json") == result
