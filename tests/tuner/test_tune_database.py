"""The address of a database: what is refused, in which words, and that no password is in them."""

from __future__ import annotations

import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest
from optuna.exceptions import StorageInternalError

from cputune.errors import CannotError, CputuneError, MissingPackageError, UsageError
from cputune.tuner import database
from cputune.tuner.database import (
    Heartbeat,
    LostDatabase,
    Patiently,
    cannot_use,
    opened,
    parsed,
    reason,
)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("studies.db", "a storage is the address of a database"),
        ("redis://host/0", "a storage is the address of a database"),
        ("postgres://u:secret@host/db", "not postgres://"),
        ("postgresql://u:secret@ho:st:port/db", "no address of a database: postgresql://…"),
        ("u:secret@host/db", "a storage is the address of a database"),
        ("sqlite://", "a study in memory cannot be shared"),
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parsed(address)
    assert "--storage" in str(caught.value.hint)
    assert "secret" not in f"{caught.value} {caught.value.hint}"


def refused(address: str) -> CputuneError:
    with pytest.raises(CputuneError) as caught, opened(address):
        pass
    return caught.value


def test_a_driver_that_is_missing_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused("mysql://u:secret@host/db")
    assert isinstance(error, MissingPackageError)
    assert str(error) == "a study in mysql needs a driver that is not installed: MySQLdb"
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    error = refused("postgresql+psycopg://u:secret@host/db")
    assert error.hint == "pip install 'cputune[sql]'"


def test_the_tables_of_another_optuna_are_left_alone(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/a.db"
    with opened(address):
        pass
    for version, words, cure in (
        ("v99.0.0.a", "those of a newer Optuna", "pip install -U optuna"),
        ("v0.9.0.a", "those of an older Optuna", "optuna storage upgrade"),
    ):
        with closing(sqlite3.connect(tmp_path / "a.db")) as file:
            file.execute("update alembic_version set version_num = ?", (version,))
            file.commit()
        error = refused(address)
        assert words in str(error)
        assert cure in str(error.hint)
    said = "The runtime is no longer compatible with the table schema (set up by optuna 3.6.1)"
    assert "an older Optuna (3.6.1)" in str(database._other_optuna(address, RuntimeError(said)))
    assert "cannot be used: tables" in str(database._other_optuna(address, RuntimeError("tables")))


def test_a_file_that_cannot_be_made_or_is_something_else(tmp_path: Path) -> None:
    assert "a folder that is there" in str(refused(f"sqlite:///{tmp_path}/no/where.db").hint)
    (tmp_path / "text").write_text("not a database, but long enough to be looked at " * 30)
    assert "name another file" in str(refused(f"sqlite:///{tmp_path}/text").hint)


@pytest.mark.parametrize(
    ("given", "mode"), [({"private": True}, 0o600), ({"private": False}, 0o644), ({}, 0o644)]
)
def test_a_new_file_is_private_where_it_is_to_be(
    tmp_path: Path, given: dict[str, bool], mode: int
) -> None:
    with opened(f"sqlite:///{tmp_path}/a.db", **given):
        pass
    assert stat.S_IMODE((tmp_path / "a.db").stat().st_mode) == mode


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("connection failed: FATAL:  password authentication failed for user", "PGPASSWORD"),
        ("fe_sendauth: no password supplied", "PGPASSWORD"),
        ("(1045) Access denied for user", "PGPASSWORD"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', "pg_hba.conf"),
        ('FATAL:  role "x" does not exist', "createuser"),
        ('FATAL:  database "x" does not exist', "createdb"),
        ("permission denied for schema public", "GRANT"),
        ("cannot execute INSERT in a read-only transaction", "GRANT"),
        ("connection refused", "pg_isready"),
        ("could not translate host name", "pg_isready"),
    ],
)
def test_every_refusal_has_a_cure(said: str, cure: str) -> None:
    error = cannot_use("postgresql://u:secret@host/db", OSError(said))
    assert isinstance(error, CannotError)
    assert str(error) == f"postgresql://u@host/db cannot be used: {said}"
    assert cure in str(error.hint)


def test_what_a_server_says_is_one_line_without_the_password() -> None:
    said = reason(OSError("no\n  such secret\n\nhost\nfor you"), "postgresql://u:secret@host/db")
    assert said == "no; such (hidden); host"
    outer = StorageInternalError("an exception is raised during the commit")
    outer.__cause__ = OSError("disk is full")
    assert reason(outer, "sqlite:///a.db") == "disk is full"
    assert reason(StorageInternalError("alone"), "sqlite:///a.db") == "alone"
    caused = OSError("closed")
    caused.__cause__ = ValueError("not what is asked for")
    assert reason(caused, "sqlite:///a.db") == "closed"


def test_a_database_that_is_locked_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, failures = database._made_storage, [OSError("database is locked")] * 2

    def locked_at_first(url: object) -> object:
        if failures:
            raise failures.pop()
        return made(url)  # type: ignore[arg-type]

    monkeypatch.setattr(database, "_made_storage", locked_at_first)
    with opened(f"sqlite:///{tmp_path}/a.db") as storage:
        assert storage.get_all_studies() == []


def test_a_server_that_is_away_is_asked_again_until_patience_or_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, slept, said, missed = [0.0], [], [], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    answers = [OSError("away"), OSError("away"), 7]

    def ask() -> int:
        answer = answers.pop(0) if answers else OSError("away")
        if isinstance(answer, OSError):
            raise answer
        return answer

    over = [False]
    patiently = Patiently(
        "postgresql://u:secret@host/db",
        say=said.append,
        missed=lambda: missed.append(1),
        out_of_time=lambda: over[0],
    )
    assert patiently(ask) == 7
    assert (len(said), len(missed), len(slept)) == (1, 2, 2)
    assert said[0].startswith("postgresql://u@host/db does not answer (away); it is asked again")
    assert all(0 < seconds < database.PATIENCE_SECONDS / 10 for seconds in slept)
    with pytest.raises(LostDatabase, match="does not answer"):
        patiently(ask)
    assert database.PATIENCE_SECONDS < clock[0] < 1.2 * database.PATIENCE_SECONDS
    over[0], before = True, len(slept)
    with pytest.raises(LostDatabase):
        patiently(ask)
    assert len(slept) == before


def test_silence_of_others_means_something_once_we_are_heard_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BEAT_SECONDS", 0.01)
    with opened(f"sqlite:///{tmp_path}/a.db") as storage:
        heard: list[int] = []

        def beat(trial: int) -> None:
            heard.append(trial)
            if len(heard) > 1:
                raise OSError("away")

        monkeypatch.setattr(storage, "record_heartbeat", beat)
        heart = Heartbeat(storage)
        try:
            assert heart.is_sure
            heart.begin(3)
            until = time.monotonic() + 10
            while heart.is_sure and time.monotonic() < until:
                time.sleep(0.001)
            assert not heart.is_sure  # its thread was not heard, and lives on
            heart.end(3)
            assert heart._thread.is_alive()
        finally:
            heart.stop()
        now = heart._missed_at
        monkeypatch.setattr(database, "BEAT_SECONDS", 10.0)
        for after, sure in ((0.0, False), (15.0, False), (25.0, True)):
            monkeypatch.setattr(time, "monotonic", lambda after=after: now + after)
            assert heart.is_sure == sure
