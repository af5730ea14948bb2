"""A study in a database: how it is named, and what a real PostgreSQL keeps of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
from golden_texts import Golden
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune import CannotError, Message, MissingPackageError, Result, TrialEnded, UsageError
from cputune.cli.tune import _make_room, _require_room
from cputune.tuner.databases import StudyFile, StudyServer, database_of
from cputune.tuner.earlier import make_room

PASSWORD = "hunter2planted"


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


HOLD = """
import sys, time
from cputune.tuner.databases import StudyServer
with StudyServer(address=sys.argv[1], name="held").lock():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
class TestPostgreSQL:
    def tuned(self, server: Server, name: str, **more: Any) -> Result:
        runner = FakeRunner(truthful())
        given = {"study": server.address, "study_name": name, **more}
        return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=runner, **given)

    def cut_off(self, server: Server, name: str) -> None:
        """A study that ends after its third trial."""

        def hear(event: Any) -> None:
            if isinstance(event, TrialEnded) and event.trial.number == 2:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            self.tuned(server, name, on_event=hear)

    def read(self, server: Server, name: str) -> optuna.Study:
        return optuna.load_study(study_name=name, storage=server.address)

    def test_a_study_is_kept_and_gone_on_with(self, server: Server, tmp_path: Path) -> None:
        self.cut_off(server, "kept")
        begun = self.read(server, "kept").trials
        with pytest.raises(CannotError, match="holds a study already") as refused:
            self.tuned(server, "kept")
        assert PASSWORD not in str(refused.value)
        result = self.tuned(server, "kept", resume=True)
        assert [trial.plan.describe() for trial in result.trials[: len(begun)]] == [
            trial.user_attrs["plan"] for trial in begun
        ]
        in_file = self.tuned(server, "", study=tmp_path / "s.db", study_name=None)
        assert [trial.plan for trial in result.trials] == [trial.plan for trial in in_file.trials]
        trials = self.read(server, "kept").trials
        assert [trial.user_attrs["plan"] for trial in trials] == [
            trial.plan.describe() for trial in result.trials
        ]
        result.save(tmp_path / "r.json")
        assert PASSWORD not in (tmp_path / "r.json").read_text()

    def test_one_that_is_empty_or_over_makes_room_and_one_cut_off_is_renamed(
        self, server: Server
    ) -> None:
        empty = StudyServer(address=server.address, name="empty")
        with empty.lock(), empty.opened(private=False):
            pass
        assert empty.is_over()
        for _ in range(2):
            assert self.tuned(server, "empty", budget=2).trials
            assert empty.is_over()
        self.cut_off(server, "cut")
        cut = StudyServer(address=server.address, name="cut")
        assert not cut.is_over()
        moved = make_room(cut)
        assert moved is not None
        assert moved.trials == 3
        option, beside = moved.option.split()
        assert option == "--study-name"
        assert not cut.holds_study()
        assert len(self.tuned(server, beside, resume=True).trials) > 3
        cut.finish()  # of a study that is gone: nothing

    def test_a_second_tune_is_typed_without_force(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = self.tuned(server, "typed", budget=2)
        result.save("cputune.json")
        database = StudyServer(address=server.address, name="typed")
        _require_room(Path("cputune.json"), database, force=False, resume=False)
        _make_room(Path("cputune.json"), database, force=False)
        assert not database.holds_study()

    def test_one_tuner_at_a_time_and_the_lock_of_one_that_was_killed_is_free(
        self, server: Server
    ) -> None:
        words = [sys.executable, "-c", HOLD, server.address]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "held\n"
            with pytest.raises(CannotError, match=rf"in use by cputune, process {owner.pid} on"):
                self.tuned(server, "held")
            self.tuned(server, "beside", budget=1)
            owner.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 90
        while True:  # the server notices the end of the connection in a moment
            try:
                self.tuned(server, "held", budget=1)
                break
            except CannotError:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def test_what_another_program_began_is_not_removed(self, server: Server) -> None:
        other = optuna.create_study(study_name="other", storage=server.address)
        other.add_trial(optuna.trial.create_trial(value=1.0))
        with pytest.raises(CannotError, match="was not begun by cputune"):
            StudyServer(address=server.address, name="other").remove()
        assert len(self.read(server, "other").trials) == 1
        self.tuned(server, "ours", budget=1)
        StudyServer(address=server.address, name="ours").remove()
        assert not StudyServer(address=server.address, name="ours").holds_study()

    def failing(self, server: Server, name: str, acts: dict[int, Callable[[], object]]) -> Any:
        said = []

        def hear(event: Any) -> None:
            if isinstance(event, TrialEnded) and event.trial.number in acts:
                acts[event.trial.number]()
            if isinstance(event, Message):
                said.append(event.text)

        return self.tuned(server, name, on_event=hear), said

    def test_one_that_is_removed_meanwhile_is_said(self, server: Server) -> None:
        gone = StudyServer(address=server.address, name="gone")
        result, said = self.failing(server, "gone", {1: gone.remove})
        assert len(result.trials) == 7
        assert re.search("warning: the study in .* cannot be written: it was removed", said[0])
        assert any("it was removed" in note for note in result.notes)

    def test_a_server_that_is_away_gets_the_trials_when_it_is_back(self, server: Server) -> None:
        result, said = self.failing(server, "away", {1: server.stop, 3: server.start})
        assert "Connection refused" in said[0]
        assert said[1:] == ["the study is writable again"]
        assert len(self.read(server, "away").trials) == len(result.trials)
        assert PASSWORD not in "".join((*said, *result.notes))
