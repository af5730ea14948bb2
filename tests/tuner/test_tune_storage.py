"""A study in a file: what befalls files, and which are refused. What each store of trials promises
is in ``test_stores.py``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import load
import optuna
import pytest
from golden_texts import Golden
from in_process import ran
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune import CannotError, Message, Result, Trial, TrialEnded
from cputune.tuner import databases
from cputune.tuner.reading import Run
from cputune.tuner.storage import StudyStorage


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


@pytest.mark.parametrize("there", [b"", None])
def test_an_empty_file_is_no_study_yet(tmp_path: Path, there: bytes | None, golden: Golden) -> None:
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


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_who_may_read_the_file_is_decided_at_each_opening(
    private: bool, mode: int, tmp_path: Path
) -> None:
    for _ in range(2):
        StudyStorage(tmp_path / "s.db", resume=True, private=private).close()
        assert (tmp_path / "s.db").stat().st_mode & 0o777 == mode


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


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        (
            "postgresql://user:pw@db:5432/studies?sslmode=verify-full",
            "postgresql://db:5432/studies",
        ),
        ("mysql+pymysql://user:p%40w@db/studies", "mysql+pymysql://db/studies"),
        ("postgresql://db/studies", "postgresql://db/studies"),
        ("studies/one.db", "studies/one.db"),
    ],
)
def test_a_study_is_shown_without_user_password_and_options(named: str, shown: str) -> None:
    assert databases.without_credentials(named) == shown
