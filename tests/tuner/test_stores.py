"""What each store of trials promises: a file, and a study of a real PostgreSQL.

A new store is a subclass of ``Store`` and a row of ``STORES``. What only a file can suffer is in
``test_tune_storage.py``.
"""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from golden_texts import Golden
from in_process import Run
from sqlalchemy.pool import NullPool
from tuner.fakes import PLANS, SMALL, FakeRunner, failing, truthful

import cputune
from cputune import (
    CannotError,
    Message,
    MissingPackageError,
    Result,
    Trial,
    TrialEnded,
    UsageError,
    kept_results,
)
from cputune.records.result import COMPLETED, FAILED, PRUNED, State, Throughput
from cputune.records.steps import Crashed
from cputune.tuner import databases
from cputune.tuner.databases import StudyDatabase, StudyFile, StudyServer, database_of
from cputune.tuner.earlier import keep_result, make_room, require_result
from cputune.tuner.reading import Run as Reading
from cputune.tuner.storage import StudyStorage

PASSWORD = "hunter2planted"
SPACE = cputune.search_space(SMALL.facts, SMALL.workload)
RATE = Throughput(centre=4.0, low=3.0, high=5.0)


@dataclass
class Server:
    """A PostgreSQL of its own, on loopback."""

    programs: Path
    folder: Path
    port: int

    def run(self, program: str, *words: str) -> None:
        """Run a program of PostgreSQL's, not as root: it refuses that."""
        user = "postgres" if os.geteuid() == 0 else None
        command = [str(self.programs / program), "-D", str(self.folder), *words]
        subprocess.run(command, check=True, user=user, cwd="/", capture_output=True, timeout=60)

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -k ''"
        log = str(self.folder / "log")
        self.run("pg_ctl", "-o", options, "-l", log, "-w", "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-m", "immediate", "-w", "stop")

    @property
    def address(self) -> str:
        return f"postgresql+psycopg2://tuner:{PASSWORD}@127.0.0.1:{self.port}/postgres"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Needs Debian's postgresql and psycopg2."""
    pytest.importorskip("psycopg2")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        pytest.skip("PostgreSQL is not installed")
    # A user that is not root has to get there, and may not enter pytest's folders.
    place = Path(
        subprocess.check_output(["mktemp", "-d", "/tmp/cputune-pg-XXXXXX"], text=True)[:-1]
    )
    (place / "password").write_text(PASSWORD)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "postgres", str(place)], check=True)
    found = Server(programs=programs[-1], folder=place / "data", port=30_000 + os.getpid() % 9_000)
    try:
        words = ("-A", "scram-sha-256", "-U", "tuner", "--pwfile", str(place / "password"))
        found.run("initdb", "--no-sync", *words)
        found.start()
        yield found
        found.stop()
    finally:
        subprocess.run(["rm", "-r", str(place)], check=True)


class Store:
    """Where studies are kept, each by its name in a test."""

    def options(self, name: str) -> dict[str, Any]:
        """What ``cputune.tune`` is given for the study."""
        raise NotImplementedError

    def optuna(self, name: str) -> optuna.Study:
        """The study as Optuna alone reads it."""
        raise NotImplementedError

    def go_away(self) -> None:
        """Nothing can be written until ``come_back``."""
        raise NotImplementedError

    def come_back(self) -> None:
        raise NotImplementedError

    away: str
    """What the warning says of the cause."""

    def database(self, name: str) -> StudyDatabase:
        options = self.options(name)
        found = database_of(options["study"], options.get("study_name"))
        assert found is not None
        return found

    def storage(self, name: str, *, resume: bool) -> StudyStorage:
        options = self.options(name)
        return StudyStorage(options["study"], resume=resume, name=options.get("study_name"))

    def tune(self, name: str, script: Any = truthful(), **more: Any) -> Result:  # noqa: B008
        given = {**self.options(name), **more}
        return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=FakeRunner(script), **given)

    def cut_off(self, name: str) -> None:
        """A study that ends after its third trial."""

        def hear(event: Any) -> None:
            if isinstance(event, TrialEnded) and event.trial.number == 2:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            self.tune(name, on_event=hear)

    def past(self, name: str) -> list[tuple[Trial, Reading]]:
        """All that is read when the study is resumed."""
        book = self.storage(name, resume=True)
        try:
            return book.past()
        finally:
            book.close()


@dataclass
class FileStore(Store):
    folder: Path
    held: list[sqlite3.Connection] = field(default_factory=list)
    away = "another program holds the file locked"

    def options(self, name: str) -> dict[str, Any]:
        return {"study": self.folder / f"{name}.db"}

    def optuna(self, name: str) -> optuna.Study:
        (file,) = self.folder.glob(f"{name}.db")
        options = {"poolclass": NullPool}
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}", engine_kwargs=options)
        return optuna.load_study(study_name=None, storage=storage)

    def go_away(self) -> None:
        for file in self.folder.glob("*.db"):
            self.held.append(sqlite3.connect(file))
            self.held[-1].execute("begin exclusive")

    def come_back(self) -> None:
        for connection in self.held:
            connection.close()


@dataclass
class ServerStore(Store):
    server: Server
    prefix: str
    away = "Connection refused"

    def options(self, name: str) -> dict[str, Any]:
        return {"study": self.server.address, "study_name": f"{self.prefix}-{name}"}

    def optuna(self, name: str) -> optuna.Study:
        return optuna.load_study(study_name=f"{self.prefix}-{name}", storage=self.server.address)

    def go_away(self) -> None:
        self.server.stop()

    def come_back(self) -> None:
        self.server.start()


STORES = ("file", pytest.param("postgresql", marks=pytest.mark.slow))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "postgresql":
        return ServerStore(server=request.getfixturevalue("server"), prefix=tmp_path.name)

    def impatient(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{path}?mode=rw", uri=True, timeout=0.1, check_same_thread=False
        )

    monkeypatch.setattr(databases, "connect", impatient)
    (tmp_path / "studies").mkdir()
    return FileStore(folder=tmp_path / "studies")


HOLD = """
import sys, time
from pathlib import Path
from cputune.tuner.databases import database_of
with database_of(*sys.argv[1:]).lock():
    print("held", flush=True)
    time.sleep(60)
"""


class TestEveryStore:
    @pytest.mark.parametrize(
        ("state", "logs", "value"),
        [
            (COMPLETED, (0.5, 1.5), 0.25),
            (PRUNED, (0.5, 1.5), math.exp(1.5)),
            (FAILED, (0.5,), None),
        ],
    )
    def test_what_is_told_of_a_trial_comes_back(
        self, store: Store, state: State, logs: tuple[float, ...], value: float | None
    ) -> None:
        rate = RATE if state == COMPLETED else None
        trial = Trial(number=0, plan=PLANS[0], state=state, samples_per_second=rate, reason="why")
        book = store.storage("one", resume=True)
        assert book.past() == []
        assert book.begin(SPACE, PLANS[0]) == PLANS[0]
        book.end(trial, Reading(logs=list(logs), losses=[2.0, None, math.nan]))
        assert book.write_down() is None
        book.close()
        ((told, again),) = store.past("one")
        assert told == trial
        assert (again.logs, again.losses) == (list(logs), [2.0, None, None])
        (frozen,) = store.optuna("one").trials
        assert "cputune.trial" in frozen.user_attrs
        assert frozen.user_attrs["reason"] == "why"
        assert frozen.value == pytest.approx(value)
        seconds = {index: math.exp(one) for index, one in enumerate(logs)}
        assert frozen.intermediate_values == pytest.approx(seconds)

    def test_a_trial_that_was_cut_off_is_not_on_record(self, store: Store) -> None:
        for abandoned in (True, False):
            book = store.storage(str(abandoned), resume=False)
            book.abandon()  # of none
            book.begin_baseline()
            if abandoned:
                book.abandon()
            book.close()
            assert store.past(str(abandoned)) == []

    @pytest.mark.parametrize("after", [False, True])
    def test_a_trial_that_an_interrupt_met_while_it_was_written_is_there_once(
        self, after: bool, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.tune("one", budget=2)
        before = store.past("one")
        trial, run = before[0]
        add = optuna.Study.add_trial

        def interrupted(study: optuna.Study, frozen: optuna.trial.FrozenTrial) -> None:
            monkeypatch.setattr(optuna.Study, "add_trial", add)
            if after:
                add(study, frozen)
            raise KeyboardInterrupt

        book = store.storage("one", resume=True)
        book.begin_baseline()
        book.end(replace(trial, number=len(before)), run)
        monkeypatch.setattr(optuna.Study, "add_trial", interrupted)
        with pytest.raises(KeyboardInterrupt):
            book.write_down()
        assert book.write_down() is None
        book.close()
        assert [one.number for one, _ in store.past("one")] == [*range(len(before) + 1)]
        assert len(store.optuna("one").trials) == len(before) + 1

    def test_optuna_reads_the_trials_with_their_states(self, store: Store) -> None:
        result = store.tune("one", failing(Crashed("rank 0 died"), when="bf16"))
        study = store.optuna("one")
        states = {"completed": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
        assert [t.state.name for t in study.trials] == [states[t.state] for t in result.trials]
        assert study.trials[1].user_attrs["reason"].startswith("rank 0 died")
        assert study.trials[-1].params["precision"] in ("fp32", "bf16")
        assert study.best_trial.value == pytest.approx(SMALL.seconds(result.best.plan) / 8, rel=0.5)

    def test_a_study_is_resumed_and_has_the_trials_of_an_undisturbed_one(
        self, store: Store, tmp_path: Path
    ) -> None:
        store.cut_off("kept")
        begun = store.optuna("kept").trials
        with pytest.raises(CannotError) as refused:
            store.tune("kept")
        assert refused.value.hint.startswith("resume=True")
        assert PASSWORD not in str(refused.value)
        result = store.tune("kept", resume=True)
        assert len(begun) == 3
        assert [trial.plan.describe() for trial in result.trials[:3]] == [
            trial.user_attrs["plan"] for trial in begun
        ]
        whole = store.tune("whole")
        assert [trial.plan for trial in result.trials] == [trial.plan for trial in whole.trials]
        assert [trial for trial, _ in store.past("kept")] == list(result.trials)
        result.save(tmp_path / "r.json")
        assert PASSWORD not in (tmp_path / "r.json").read_text()

    def test_a_study_that_is_empty_or_over_makes_room_and_one_cut_off_is_renamed(
        self, store: Store
    ) -> None:
        store.storage("empty", resume=False).close()
        empty = store.database("empty")
        assert empty.is_over()
        for _ in range(2):
            store.tune("empty", budget=2)
            assert empty.is_over()
            assert make_room(empty) is None
            assert not empty.holds_study()
        store.cut_off("cut")
        cut = store.database("cut")
        assert not cut.is_over()
        moved = make_room(cut)
        assert moved is not None
        assert moved.trials == 3
        assert not cut.holds_study()
        option, beside = moved.option.split()
        renamed = {option.removeprefix("--").replace("-", "_"): beside}
        assert len(store.tune("cut", resume=True, **renamed).trials) > 3
        cut.finish()  # of a study that is gone: nothing

    def test_a_study_without_a_trial_is_taken_away(self, store: Store) -> None:
        store.tune("with", budget=2)
        for name, resume in (("with", True), ("without", False)):
            store.storage(name, resume=resume).discard()
            assert store.database(name).holds_study() == resume

    def test_a_study_has_one_tuner_and_the_lock_of_one_that_was_killed_is_free(
        self, store: Store
    ) -> None:
        named = [str(value) for value in store.options("held").values()]
        words = [sys.executable, "-c", HOLD, *named]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "held\n"
            with pytest.raises(CannotError, match=rf"process {owner.pid} on"):
                store.tune("held")
            store.tune("beside", budget=1)
            owner.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 90
        while True:  # a server notices the end of the connection in a moment
            try:
                store.tune("held", budget=1)
                break
            except CannotError:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def interrupted(
        self, store: Store, name: str, acts: dict[int, Callable[[], object]]
    ) -> tuple[Result, list[str]]:
        """Tune, and act after trials; returns what was said meanwhile."""
        said = []

        def hear(event: Any) -> None:
            if isinstance(event, TrialEnded) and event.trial.number in acts:
                acts[event.trial.number]()
            if isinstance(event, Message):
                said.append(event.text)

        return store.tune(name, on_event=hear), said

    def test_a_study_that_is_removed_meanwhile_changes_no_trial_and_is_said(
        self, store: Store
    ) -> None:
        undisturbed = store.tune("whole")
        for after in (1, len(undisturbed.trials) - 1):
            name = f"after-{after}"
            result, said = self.interrupted(store, name, {after: store.database(name).remove})
            assert [trial.plan for trial in result.trials] == [t.plan for t in undisturbed.trials]
            assert result.best.plan == undisturbed.best.plan
            (warning,) = (text for text in said if text.startswith("warning: "))
            assert "it was removed" in warning
            (note,) = (note for note in result.notes if "it was removed" in note)
            assert "--resume" in note
            assert not store.database(name).holds_study()

    def test_a_store_that_is_away_gets_the_trials_when_it_is_back(
        self, store: Store, golden: Golden
    ) -> None:
        acts = {1: store.go_away, 3: store.come_back}
        result, said = self.interrupted(store, "away", acts)
        assert store.away in said[0]
        if isinstance(store, FileStore):  # the text of a server is its own
            golden(said[0])
        assert said[1:] == ["the study is writable again"]
        assert not [note for note in result.notes if "--resume" in note]
        assert [trial for trial, _ in store.past("away")] == list(result.trials)
        assert PASSWORD not in "".join((*said, *result.notes))

    def test_a_second_tune_is_typed_without_force(
        self, store: Store, cputune: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class FakeProcessRunner(FakeRunner):
            def __init__(self, *of: object, **more: object) -> None:
                super().__init__(truthful())

            def __enter__(self) -> FakeProcessRunner:
                return self

            def __exit__(self, *raised: object) -> None:
                pass

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("cputune.ranks.runner.ProcessRunner", FakeProcessRunner)
        monkeypatch.setattr("cputune.host.locks.MEASURING", f"\0cputune.test.{os.getpid()}")
        monkeypatch.setattr("cputune.host.probing.probe", lambda *of, **more: SMALL.facts)
        monkeypatch.setattr("cputune.host.probing.load.look_around", lambda host: ())
        words = ["tune", "--budget", "2"]
        for name, value in store.options("typed").items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for seed in ("0", "1"):
            ended = cputune(*words, "--seed", seed)
            assert ended.code == 0, ended.err
            assert "note: a study" not in ended.err
            assert len(store.past("typed")) == len(Result.load("cputune.json").trials)
        assert cputune(*words, "--seed", "1", "--resume").code == 0
        assert PASSWORD not in Path("cputune.json").read_text()


@pytest.mark.slow
def test_a_study_of_another_program_on_a_server_is_not_removed(server: Server) -> None:
    other = optuna.create_study(study_name="other", storage=server.address)
    other.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(CannotError) as refused:
        StudyServer(address=server.address, name="other").remove()
    assert "--study-name" in refused.value.hint
    assert len(optuna.load_study(study_name="other", storage=server.address).trials) == 1
    ours = ServerStore(server=server, prefix="removed")
    ours.tune("ours", budget=1)
    ours.database("ours").remove()
    assert not ours.database("ours").holds_study()


def test_what_is_no_result_makes_no_room_for_one(tmp_path: Path) -> None:
    for text in ("", "steps: 3", '{"steps": 3}'):
        path = tmp_path / "train.json"
        path.write_text(text)
        with pytest.raises(UsageError) as caught:
            require_result(path)
        assert "--force" in str(caught.value.hint)


def test_a_result_that_is_kept_already_is_not_kept_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Result
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "cputune.json"
    result.save(path)
    id = keep_result(path)
    assert keep_result(path) == id
    assert [kept.id for kept in kept_results()] == [id]


class TestAnAddress:
    @pytest.mark.parametrize(
        ("named", "path"),
        [
            ("s.db", "s.db"),
            ("sqlite:///s.db", "s.db"),
            ("sqlite:////tmp/a%20b.db", "/tmp/a b.db"),
            ("sqlite+pysqlite:///s.db", "s.db"),
            (Path("a") / "s.db", "a/s.db"),
        ],
    )
    def test_of_a_file_is_the_file(self, named: str | Path, path: str) -> None:
        assert database_of(named) == StudyFile(path=Path(path))

    @pytest.mark.parametrize(
        "named",
        ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///s.db?mode=ro", "redis://h/0"],
    )
    def test_that_names_no_place_for_a_study_is_refused(self, named: str) -> None:
        with pytest.raises(UsageError) as refused:
            database_of(named)
        assert refused.value.hint

    @pytest.mark.parametrize(
        "address",
        [
            f"postgresql://ada:{PASSWORD}@db.example.com:5432/optuna",
            f"mysql://db.example.com/optuna?user=ada&password={PASSWORD}",
            f"mariadb+pymysql://{PASSWORD}@db.example.com/optuna",
        ],
    )
    def test_of_a_server_is_shown_without_user_password_and_options(self, address: str) -> None:
        shown = StudyServer(address=address, name="bert").shown
        assert "db.example.com" in shown
        assert "study 'bert'" in shown
        assert PASSWORD not in shown
        assert "ada" not in shown

    def test_whose_driver_is_missing_says_what_to_install(self, golden: Golden) -> None:
        with pytest.raises(MissingPackageError, match="needs pg8000") as refused:
            StudyServer(address=f"postgresql+pg8000://a:{PASSWORD}@h/d").holds_study()
        golden(refused.value.hint)

    def test_that_is_none_does_not_show_its_password(self) -> None:
        with pytest.raises(UsageError) as refused:
            StudyServer(address=f"postgresql://a:{PASSWORD}@h:port/d").holds_study()
        assert PASSWORD not in f"{refused.value} {refused.value.hint}"
