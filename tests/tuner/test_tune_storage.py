"""A study in a file: what befalls files, and which are refused; ``test_stores.py`` has the rest."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import load
import optuna
import pytest
from golden_texts import Golden
from in_process import ran
from rows import every_row
from tuner.fakes import SMALL, FakeRunner, Heard, truthful, tune

import cputune
from cputune import CannotError, Result, Trial
from cputune.tuner.reading import Run
from cputune.tuner.storage import StudyStorage


def tuned(study: Path, **options: Any) -> Result:
    return tune(FakeRunner(truthful()), study=study, **options)


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
    with golden.raises(CannotError):
        book.claim({"seed": 4, "schema": 2})
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


UNREADABLE = "cannot be opened as a study"


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

    @every_row("text", ["steps: 3\n", "steps: 3", "a\nb\n", '{"steps": 3}\n', "[]\n", "\0\n", "\n"])
    def test_the_file_of_another_program_is_left_alone(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "s.db").write_text(text)
        self.refused(tmp_path / "s.db", match="it has no study of cputune")

    def test_a_journal_with_another_study_is_left_alone(self, study: Path) -> None:
        before = study.read_bytes()
        with pytest.raises(CannotError, match="it has no study of cputune"):
            StudyStorage(study, resume=True, name="other")
        assert study.read_bytes() == before

    def test_a_study_that_does_not_say_of_what_it_is(self, study: Path, golden: Golden) -> None:
        study.write_bytes(study.read_bytes().replace(b"cputune.identity", b"cputune.nothing"))
        with golden.raises(CannotError):
            tuned(study, resume=True)

    @pytest.mark.parametrize(
        ("was", "becomes", "match"),
        [
            ('"cputune.trial":', '"cputune.other":', "lacks its measurements"),
            ('"cputune.workload":', '"cputune.workload":7,"":', UNREADABLE),
            *(
                ('"cputune.trial":', f'"cputune.trial":{value},"":', UNREADABLE)
                for value in ("3", "[]", "{}", '{"logs": ["x"]}', '{"logs": [1e400]}')
            ),
        ],
    )
    def test_one_that_was_changed(self, study: Path, was: str, becomes: str, match: str) -> None:
        before = study.read_text()
        assert was in before
        study.write_text(before.replace(was, becomes))
        self.refused(study, match)

    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
    def test_a_file_with_garbage_in_it(self, study: Path, share: float) -> None:
        content = bytearray(study.read_bytes())
        offset = int(share * len(content))
        content[offset : offset + 64] = b"\xf2\x93garbage" * 7
        study.write_bytes(content)
        self.refused(study)

    @pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
    def test_of_a_file_that_was_cut_off_the_whole_trials_are_read(
        self, study: Path, share: float
    ) -> None:
        """A writer that was killed leaves half a line; what follows does not become part of it."""
        content = study.read_bytes()
        study.write_bytes(content[: int(share * len(content))])
        before = [trial.number for trial, _ in read(study)]
        assert before == list(range(len(before)))
        assert len(before) < 3
        result = tuned(study, resume=True, budget=3)
        assert [trial for trial, _ in read(study)] == list(result.trials)

    @every_row("name", ["a?b=c.db", "a#b.db", "100%.db", "{x}.db", "a b.db", "ü.db"])
    def test_any_name_is_the_name_of_the_file(self, tmp_path: Path, name: str) -> None:
        StudyStorage(tmp_path / name, resume=False).close()
        assert [path.name for path in tmp_path.iterdir()] == [name]
        StudyStorage(tmp_path / name, resume=True).close()

    def test_a_fifo_is_not_opened(self, tmp_path: Path, golden: Golden) -> None:
        os.mkfifo(tmp_path / "s.db")
        with golden.raises(CannotError):
            StudyStorage(tmp_path / "s.db", resume=True)


DAMAGED = "the file is damaged or truncated"


class TestAStudyThatCannotBeWritten:
    """Its trials go on, its result holds all of them, and says what befell the file."""

    @pytest.mark.parametrize(
        ("fault", "cause"),
        [
            (lambda study: os.truncate(study, 0), DAMAGED),
            (lambda study: os.truncate(study, study.stat().st_size // 2), DAMAGED),
            (lambda study: study.write_text("something else\n" * 100), DAMAGED),
            (lambda study: shutil.rmtree(study.parent), "the file is gone"),
        ],
    )
    def test_because_of_what_befell_it(self, tmp_path: Path, fault: Any, cause: str) -> None:
        (tmp_path / "of").mkdir()
        undisturbed = tuned(tmp_path / "whole.db")
        study, left = tmp_path / "of" / "s.db", b""

        def befall() -> None:
            nonlocal left
            fault(study)
            left = study.read_bytes() if study.exists() else b""

        said = Heard({1: befall})
        result = tuned(study, on_event=said)
        assert (study.read_bytes() if study.exists() else b"") == left, "nothing is added to it"
        assert [trial.plan for trial in result.trials] == [t.plan for t in undisturbed.trials]
        assert result.best.plan == undisturbed.best.plan
        (warning,) = (text for text in said if "warning" in text)
        assert cause in warning
        (note,) = (note for note in result.notes if "--resume" in note)
        assert cause in note

    def test_gets_the_trials_when_it_is_back(self, tmp_path: Path, golden: Golden) -> None:
        study, away = tmp_path / "s.db", tmp_path / "away.db"
        said = Heard({1: lambda: study.rename(away), 3: lambda: away.rename(study)})
        result = tuned(study, on_event=said)
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


HOLD = """
import sys, time
from pathlib import Path
from cputune.tuner.stores import StudyFile
with StudyFile(path=Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_study_has_one_tuner_and_the_lock_of_one_that_was_killed_is_free(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path / "held.db")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(CannotError, match=rf"process {owner.pid} on"):
            tuned(tmp_path / "held.db")
        tuned(tmp_path / "beside.db", budget=1)
        owner.send_signal(signal.SIGKILL)
    tuned(tmp_path / "held.db", budget=1)


@pytest.mark.slow
def test_a_study_of_many_trials_is_gone_on_with_and_reads_back(tmp_path: Path) -> None:
    space = cputune.search_space(load.LARGE.facts, load.JOB, **load.OPTIONS)
    load.make(tmp_path / "s.db", space, 120)
    result = load.resume(tmp_path / "s.db", 121)
    assert [trial.number for trial in result.trials] == list(range(121))
    result.save(tmp_path / "r.json")
    assert Result.load(tmp_path / "r.json") == result
