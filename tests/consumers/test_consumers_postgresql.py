"""One study for several tuners, in a PostgreSQL server that the test starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from postgresql import IN_ADDRESS, PASSWORD, Server, programs, server
from tuner.sharing import MACHINE, said, start, succeed, until

import cputune
from cputune.errors import CannotError
from cputune.result import Result
from cputune.tuner import database
from cputune.tuner.database import opened

pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'cputune[sql]'")
pytestmark = [
    pytest.mark.consumer,
    pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed"),
]


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    with server() as found:
        yield found


@pytest.fixture
def postgres(one_server: Server) -> Server:
    """The server, without the studies of the test before."""
    if one_server.process is None:
        one_server.start()
    kill = "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'studies'"
    for statement in (
        kill,
        "drop database studies",
        "create database studies owner tuner",
    ):
        one_server.run(statement, database="postgres")
    return one_server


def measured(folder: Path) -> list[str]:
    return [plan for _, _, plan in said(folder, "ends") if plan != "today"]


def running(postgres: Server) -> str:
    return postgres.run("select count(*) from trials where state = 'RUNNING'").strip()


@pytest.mark.thorough
def test_two_tuners_of_which_one_is_killed(postgres: Server, tmp_path: Path) -> None:
    address = postgres.address()
    secret = {"PGPASSWORD": PASSWORD}
    with (
        start(tmp_path, address, "victim", 3, together=2, budget=16, **secret) as victim,
        start(tmp_path, address, "other", together=2, budget=16, grace=3, **secret) as other,
    ):
        until(lambda: said(tmp_path, "victim", "stuck"))
        lost = said(tmp_path, "victim", "stuck")[0][2]
        until(lambda: len(said(tmp_path, "other", "ends")) > 3)
        victim.send_signal(signal.SIGKILL)
        succeed(other)
    assert len(set(measured(tmp_path))) == len(measured(tmp_path)) == 15
    assert ["other", "ends", lost] in said(tmp_path, "ends")
    assert {line[0] for line in said(tmp_path, "ends") if line[2] != "today"} >= {"other"}
    assert len(Result.load(tmp_path / "other.json").trials) == 16
    assert running(postgres) == "0"


@pytest.mark.thorough
def test_three_that_begin_at_once_make_the_tables_and_measure_no_plan_twice(
    postgres: Server, tmp_path: Path
) -> None:
    address = postgres.address(password=IN_ADDRESS)
    with ExitStack() as stack:
        many = [start(tmp_path, address, name, together=3, budget=20) for name in "abc"]
        for tuner in [stack.enter_context(one) for one in many]:
            succeed(tuner)
    assert len(set(measured(tmp_path))) == len(measured(tmp_path)) == 19
    for name in "abc":
        text = (tmp_path / f"{name}.json").read_text()
        assert PASSWORD not in text
        assert IN_ADDRESS not in text
    everything = subprocess.run(
        [programs() / "pg_dump", "-h", "127.0.0.1", "-p", str(postgres.port), "-U", "owner",  # type: ignore[operator]
         "studies"],
        env={"PGPASSWORD": PASSWORD}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "cputune.trial" in everything
    assert PASSWORD not in everything


@pytest.mark.thorough
def test_a_server_that_goes_away_for_a_while_loses_no_trial(
    postgres: Server, tmp_path: Path
) -> None:
    with start(tmp_path, postgres.address(), "one", 3, PGPASSWORD=PASSWORD) as tuner:
        until(lambda: said(tmp_path, "stuck"))
        postgres.stop()
        (tmp_path / "go").touch()
        until(lambda: len(said(tmp_path, "ends")) == 4)
        postgres.start()
        succeed(tuner)
    assert len(measured(tmp_path)) == 11
    told = "select count(*) from trial_user_attributes where key = 'cputune.trial'"
    assert postgres.run(told).strip() == "12"
    assert running(postgres) == "0"


def test_without_its_server_a_study_ends_with_what_it_has(postgres: Server, tmp_path: Path) -> None:
    events: list[object] = []

    def hear(event: object) -> None:
        events.append(event)
        if isinstance(event, cputune.TrialEnded) and event.trial.number == 3:
            postgres.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "PATIENCE_SECONDS", 2)
        patch.setenv("PGPASSWORD", PASSWORD)
        try:
            result = cputune.tune(
                MACHINE.workload,
                facts=MACHINE.facts,
                runner=MACHINE.runner(0),
                storage=postgres.address(),
                on_event=hear,
            )
        finally:
            postgres.start()
    assert len(result.trials) == 4
    assert result.speedup.pairs > 1  # the confirmation needs no server
    (note,) = (note for note in result.notes if "ended early" in note)
    assert "does not answer" in note


class TestRefused:
    def refused(self, address: str) -> CannotError:
        with pytest.raises(CannotError) as caught, opened(address):
            pass
        assert PASSWORD not in f"{caught.value} {caught.value.hint}"
        assert IN_ADDRESS not in f"{caught.value} {caught.value.hint}"
        return caught.value

    def test_a_wrong_password(self, postgres: Server) -> None:
        error = self.refused(postgres.address(password="wrong"))
        assert "password authentication failed" in str(error)
        assert ".pgpass" in str(error.hint)

    def test_no_password(self, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGPASSFILE", "/dev/null")
        error = self.refused(postgres.address())
        assert ".pgpass" in str(error.hint)

    def test_no_such_database(self, postgres: Server) -> None:
        error = self.refused(postgres.address(password=IN_ADDRESS, database="nowhere"))
        assert "createdb" in str(error.hint)

    def test_a_user_who_may_not_write(self, postgres: Server) -> None:
        address = postgres.address("reader", IN_ADDRESS)
        assert "GRANT" in str(self.refused(address).hint)
        with opened(postgres.address(password=IN_ADDRESS)):
            pass  # now there are tables
        postgres.run("grant select on all tables in schema public to reader")
        with pytest.raises(CannotError, match="permission denied") as caught:
            cputune.tune(
                MACHINE.workload, facts=MACHINE.facts, runner=MACHINE.runner(0), storage=address
            )
        assert "GRANT" in str(caught.value.hint)

    def test_a_port_where_nobody_listens(self, postgres: Server) -> None:
        error = self.refused(f"postgresql://tuner:{IN_ADDRESS}@127.0.0.1:1/studies")
        assert "pg_isready" in str(error.hint)


def test_the_command_never_says_the_password(postgres: Server, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cputune", "-vv", "tune", "--share-machine", "--storage",
         postgres.address(password="un" + IN_ADDRESS)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3
    assert "password authentication failed" in done.stderr
    assert "can read a password that is typed" in done.stderr
    assert IN_ADDRESS not in done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr
