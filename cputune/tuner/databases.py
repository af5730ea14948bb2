"""The databases that store a study: an SQLite file, or a server (PostgreSQL, MySQL).

``--study`` is a path or an address of Optuna (``postgresql://HOST/DATABASE``). Both have Optuna's
tables, and each is used by one tuner at a time. An address may contain a password, so messages
contain ``shown`` instead.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from cputune.errors import CannotError, CputuneError, MissingPackageError, UsageError
from cputune.host.files import (
    changed_at,
    delete,
    exists,
    is_file,
    make_empty,
    make_private_file,
    rename,
    require_room,
    size,
)
from cputune.host.interpreter import install_beside
from cputune.host.locks import study_lock
from cputune.host.process import machine_name, variables
from cputune.text.hidden import without_secrets
from cputune.text.plain import visible

if TYPE_CHECKING:
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy.engine import Connection, Engine

STUDY_NAME = "cputune"

FINISHED = "cputune.finished"
"""The attribute of a study whose result was written."""

IDENTITY = "cputune.identity"
"""The attribute of our studies that identifies what they measure."""

TABLES = {"studies", "trials", "study_user_attributes", "trial_user_attributes"}
"""Optuna's tables without which a study cannot be resumed."""

SERVERS = ("postgresql", "mysql", "mariadb")
"""The servers that Optuna supports."""

DRIVERS = {
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "mysql": "mysql-connector-python",
}
"""The package that contains a driver's module, if its name differs.

For postgresql:// without a driver that is psycopg2, since SQLAlchemy 2.1 psycopg.
"""

ROOM_BYTES = 1 << 16
"""The most that a trial needs: its steps, about 40 bytes each."""

CONNECT_SECONDS = 10
"""Time limit for a server's answer; it is tried again after each trial. Assumed."""


class StudyDatabase(Protocol):
    """Where a study is stored. ``shown`` is its name without secrets."""

    @property
    def shown(self) -> str:
        """The name for people."""

    def holds_study(self) -> bool:
        """Whether the study exists. Raises CannotError if something else does."""

    def lock(self) -> AbstractContextManager[None]:
        """Be the only tuner that uses it. Raises CannotError if another one does."""

    def opened(self, *, private: bool) -> AbstractContextManager[optuna.Study]:
        """The study, created if it does not exist; readable by this user only if ``private``."""

    def trouble(self) -> str | None:
        """Why the study cannot be written now; None if it can.

        It is checked first, because Optuna retries a failed write for ten seconds.
        """

    def remove(self) -> None:
        """Remove the study. Raises CannotError."""

    def is_over(self) -> bool:
        """Whether nothing is lost without the study: it has no trial, or its result was written."""

    def move_aside(self) -> MovedStudy:
        """Rename the study, so that a new one can begin. Raises CannotError."""

    def finish(self) -> None:
        """Mark the study: its result was written. Without the database this does nothing."""

    def cause_of(self, error: BaseException) -> str:
        """The cause of an error: what happened to the file, or the server's message."""


def database_of(named: str | Path | None, name: str | None = None) -> StudyDatabase | None:
    """The database that the user names; None if none is named.

    Raises UsageError for an address that cannot store a study.
    """
    if named is None:
        return None
    name = name or STUDY_NAME
    scheme, is_address, rest = str(named).partition("://")
    if isinstance(named, Path) or not is_address:
        return StudyFile(path=Path(named), name=name)
    if scheme.partition("+")[0] == "sqlite":
        path = unquote(rest.removeprefix("/"))
        if not rest.startswith("/") or path in ("", ":memory:") or "?" in path:
            raise UsageError(
                f"{visible(str(named))} is not a file name", hint="name a file: --study FILE.db"
            )
        return StudyFile(path=Path(path), name=name)
    if scheme.partition("+")[0] not in SERVERS:
        raise UsageError(
            f"{visible(scheme)} cannot store a study",
            hint="--study takes a file, or the address of a PostgreSQL, MySQL or MariaDB: "
            "postgresql://HOST/DATABASE",
        )
    return StudyServer(address=str(named), name=name)


def without_credentials(named: str) -> str:
    """What ``--study`` names, without user, password and options; a file name stays as it is."""
    if "://" not in named:
        return named
    parts = urlsplit(named)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def no_study(shown: str | Path, reason: str) -> CannotError:
    """The error for a database that cannot be used, and why."""
    return CannotError(
        f"{shown} cannot be opened as a study: {reason}", hint="name another file with --study"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedStudy:
    """A study that was renamed for a new one.

    Attributes:
        name: its new name: a file, or the name in the database.
        option: the option of ``cputune tune`` that names it (``--study FILE``).
    """

    name: str
    option: str
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """A study in an SQLite file."""

    path: Path
    name: str = STUDY_NAME

    @property
    def shown(self) -> str:
        """The path, as the user gave it."""
        return str(self.path)

    def holds_study(self) -> bool:
        """Whether a study of ours is in the file; False if the file is missing or empty.

        Raises CannotError for a file of other content, or with missing tables. Nothing is written.
        """
        if not exists(self.path):
            return False
        if not is_file(self.path):
            raise no_study(self.path, "it is not a regular file")
        try:
            # Opened for writing too: a journal that a killed process left is rolled back.
            with closing(connect(self.path)) as file:
                tables = {name for (name,) in file.execute("select name from sqlite_master")}
                ours = False
                if tables >= TABLES:
                    ours = (self.name,) in file.execute("select study_name from studies")
                (sound,) = file.execute("pragma quick_check(1)").fetchone()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise no_study(self.path, self.cause_of(error)) from error
        if tables and not ours:
            raise no_study(self.path, "it is another program's database, or tables are missing")
        if sound != "ok":
            raise no_study(self.path, f"the database is damaged ({sound})")
        return ours

    def lock(self) -> AbstractContextManager[None]:
        """Hold ``FILE.lock``."""
        return study_lock(self.path)

    @contextmanager
    def opened(self, *, private: bool) -> Iterator[optuna.Study]:
        """The study; its file exists with all tables or not at all."""
        new = not self.holds_study()
        if new:
            with whole(self.path, private=private) as half, _storage(half, ours=True) as storage:
                _begun(storage, self.name)
        elif private:
            make_private_file(self.path)
        with _storage(self.path, ours=new) as storage:
            yield _begun(storage, self.name)

    def trouble(self) -> str | None:
        """That the file is gone, damaged or locked, or that the disk is full."""
        try:
            if not is_file(self.path):
                return _GONE
            with closing(connect(self.path)) as file:
                file.execute("begin immediate")
                (sound,) = file.execute("pragma quick_check(1)").fetchone()
                file.execute("select 1 from studies")
        except sqlite3.Error as error:
            return self.cause_of(error)
        if sound != "ok":
            return f"the file is damaged or truncated ({sound})"
        return self._no_room()

    def remove(self) -> None:
        delete(self.path)

    def is_over(self) -> bool:
        """Whether the study in the file has no trial, or its result was written."""
        with closing(connect(self.path)) as file:
            (finished,) = file.execute(_IS_FINISHED, (self.name, FINISHED)).fetchone()
        return bool(finished) or not self._trials()

    def move_aside(self) -> MovedStudy:
        """Rename the file, by the time at which it was written last."""
        trials = self._trials()
        beside = free_name(self.path)
        rename(self.path, beside)
        option = f"--study {shlex.quote(str(beside))}"
        return MovedStudy(name=str(beside), option=option, trials=trials)

    def finish(self) -> None:
        """Mark the study in the file, if there is one."""
        with suppress(sqlite3.Error), closing(connect(self.path)) as file, file:
            file.execute(_FINISH, (FINISHED, self.name, FINISHED))

    def _trials(self) -> int:
        with closing(connect(self.path)) as file:
            (trials,) = file.execute(_TRIALS, (self.name,)).fetchone()
        return int(trials)

    def cause_of(self, error: BaseException) -> str:
        """What happened to the file; SQLite says "disk I/O error" for nearly everything."""
        if not exists(self.path):
            return _GONE
        message = driver_message(error)
        if "locked" in message:
            return "another program holds the file locked"
        no_room = self._no_room()
        if no_room is not None:
            return no_room
        if "readonly" in message:
            return "the file is not writable"
        if size(self.path) == 0:
            return "the file is empty: another program truncated it"
        for damage in ("malformed", "not a database", "no such table"):
            if damage in message:
                return f"the file is damaged or truncated ({message})"
        return message

    def _no_room(self) -> str | None:
        """The system's error for a file of this size next to it; None if it can be written
        (SQLite's journal).
        """
        try:
            require_room(self.path.absolute().parent, size(self.path) + ROOM_BYTES)
        except OSError as failed:
            return (failed.strerror or str(failed)).lower()
        return None


_GONE = "the file is gone: it was removed or renamed"

_TRIALS = "select count(*) from trials join studies using (study_id) where study_name = ?"
_IS_FINISHED = (
    "select count(*) from study_user_attributes join studies using (study_id) "
    "where study_name = ? and key = ?"
)
_FINISH = (
    "insert into study_user_attributes (study_id, key, value_json) "
    "select study_id, ?, 'true' from studies where study_name = ? and not exists ("
    "select 1 from study_user_attributes as known where known.key = ? "
    "and known.study_id = studies.study_id)"
)


def free_name(path: Path) -> Path:
    """``cputune-20261127-211300.db``: when it was written last, and a number if that is taken."""
    stem = f"{path.stem}-{written_at(path)}"
    number = 1
    beside = path.with_name(f"{stem}{path.suffix}")
    while exists(beside):
        number += 1
        beside = path.with_name(f"{stem}-{number}{path.suffix}")
    return beside


def written_at(path: Path) -> str:
    """When a file was written last, as in the ids of the history."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(changed_at(path)))


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing file, whatever characters its name has."""
    address = f"file:{quote(str(path.absolute()))}?mode=rw"
    return sqlite3.connect(address, uri=True, check_same_thread=False)


@contextmanager
def whole(path: Path, *, private: bool) -> Iterator[Path]:
    """A temporary file for a new study; it becomes ``path`` when the block ends.

    So a study exists with all its tables, or not at all: after a killed creation it could be
    neither resumed nor created again. If ``private``, only its owner may read it.
    """
    half = path.with_name(f".{path.name}.new")
    make_empty(half, mode=0o600 if private else 0o666)
    try:
        yield half
        rename(half, path)
    finally:
        delete(half)


@contextmanager
def _storage(path: Path, *, ours: bool = False) -> Iterator[RDBStorage]:
    """Optuna's storage in exactly this file: in an address some characters have a meaning.

    ``ours``: this process creates the file, so its tables are not checked.
    """
    from optuna.storages import RDBStorage
    from sqlalchemy.pool import NullPool

    # An interrupt while a connection is closed is raised, and also logged with its traceback.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    engine = {"creator": partial(connect, path), "poolclass": NullPool}
    storage = RDBStorage(
        "sqlite:///study",
        engine_kwargs=engine,
        skip_compatibility_check=ours,
        skip_table_creation=ours and size(path) > 0,
    )
    with closed(storage):
        yield storage


@contextmanager
def closed(storage: RDBStorage) -> Iterator[RDBStorage]:
    """A storage whose connections are closed when the block ends."""
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _begun(storage: RDBStorage, name: str) -> optuna.Study:
    """The study of this name, created if it does not exist."""
    import optuna

    return optuna.create_study(
        study_name=name, storage=storage, direction="minimize", load_if_exists=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyServer:
    """A study in a server's database, which may contain other studies."""

    address: str
    name: str = STUDY_NAME

    @property
    def shown(self) -> str:
        """Server and database, without user, password and options."""
        return visible(f"{without_credentials(self.address)}, study {self.name!r}")

    def holds_study(self) -> bool:
        """Whether a study of this name is in the database."""
        from sqlalchemy import inspect, text

        with self._connected() as connection:
            if not inspect(connection).has_table("studies"):
                return False
            named = text("select 1 from studies where study_name = :name")
            return connection.execute(named, {"name": self.name}).first() is not None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold a lock of the server, which is released when this connection ends.

        PostgreSQL has it for each database (pg_try_advisory_lock), MySQL and MariaDB for the server
        (GET_LOCK).
        """
        with self._connected() as connection:
            owner = self._locked(connection)
            if owner is not None:
                raise CannotError(
                    f"the study in {self.shown} is in use by {owner}",
                    hint="wait until it has ended, or give another name with --study-name",
                )
            yield

    def _locked(self, connection: Connection) -> str | None:
        """Take the lock; returns its owner if it is taken."""
        from sqlalchemy import text

        of = hashlib.sha256(f"{urlsplit(self.address).path}\n{self.name}".encode())
        if connection.dialect.name != "postgresql":
            named = {"key": f"cputune {of.hexdigest()[:32]}"}
            if connection.execute(text("select get_lock(:key, 0)"), named).scalar() == 1:
                return None
            number = connection.execute(text("select is_used_lock(:key)"), named).scalar()
            return f"connection {number} of the server"
        key = {"key": int.from_bytes(of.digest()[:8], "big", signed=True)}
        us = f"cputune, process {os.getpid()} on {machine_name()}"
        connection.execute(text("select set_config('application_name', :us, false)"), {"us": us})
        if connection.execute(text("select pg_try_advisory_lock(:key)"), key).scalar():
            return None
        other = connection.execute(text(_OWNER_IN_POSTGRESQL), key).scalar()
        return visible(str(other or "another process"))

    @contextmanager
    def opened(self, *, private: bool) -> Iterator[optuna.Study]:
        """The study; the server decides who may read it."""
        from optuna.storages import RDBStorage

        with self._errors_converted():
            storage = RDBStorage(self.address, engine_kwargs=self._engine_options)
        with closed(storage):
            with self._errors_converted():
                study = _begun(storage, self.name)
            yield study

    def trouble(self) -> str | None:
        """That the server does not answer, or that the study was removed."""
        try:
            there = self.holds_study()
        except CputuneError as error:
            return str(error)
        if there:
            return None
        return "it was removed"

    def remove(self) -> None:
        """Remove only this study, and only if it is ours."""
        import optuna

        if not self.holds_study():
            return
        with self._loaded() as study:
            self._require_ours(study)
            optuna.delete_study(study_name=self.name, storage=study._storage)

    def is_over(self) -> bool:
        """Whether the study has no trial, or its result was written."""
        with self._loaded() as study:
            return FINISHED in study.user_attrs or not study.get_trials(deepcopy=False)

    def move_aside(self) -> MovedStudy:
        """Rename the study, by the present time. Raises CannotError for one that is not ours."""
        from sqlalchemy import text

        with self._loaded() as study:
            self._require_ours(study)
            trials = len(study.get_trials(deepcopy=False))
        beside = f"{self.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        rename = text("update studies set study_name = :beside where study_name = :name")
        with self._connected() as connection, self._errors_converted():
            connection.execute(rename, {"beside": beside, "name": self.name})
        return MovedStudy(
            name=f"the study {beside!r} there",
            option=f"--study-name {shlex.quote(beside)}",
            trials=trials,
        )

    def finish(self) -> None:
        """Mark the study, if the server answers and has it."""
        with suppress(CputuneError, KeyError), self._loaded() as study:
            study.set_user_attr(FINISHED, True)

    @contextmanager
    def _loaded(self) -> Iterator[optuna.Study]:
        """The study that is there. Raises CannotError if the server does not answer."""
        import optuna
        from optuna.storages import RDBStorage

        with self._errors_converted():
            storage = RDBStorage(self.address, engine_kwargs=self._engine_options)
        with closed(storage), self._errors_converted():
            yield optuna.load_study(study_name=self.name, storage=storage)

    def _require_ours(self, study: optuna.Study) -> None:
        if IDENTITY in study.user_attrs or not study.get_trials(deepcopy=False):
            return
        raise CannotError(
            f"{self.shown} was not created by cputune, so it is not removed",
            hint="--study-name NAME creates another one in the same database",
        )

    def cause_of(self, error: BaseException) -> str:
        """The message of the server or its driver, without the address."""
        return driver_message(error)

    @property
    def _engine_options(self) -> dict[str, Any]:
        """Lost connections are opened again; unanswered ones time out."""
        driver = urlsplit(self.address).scheme
        named = "pg8000" not in driver and "connector" not in driver
        if named:
            limits = {"connect_timeout": CONNECT_SECONDS}
        else:
            limits = {}
        return {"pool_pre_ping": True, "connect_args": limits}

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A new connection, each statement of which is a transaction."""
        from sqlalchemy import create_engine

        with self._errors_converted():
            engine: Engine = create_engine(self.address, **self._engine_options)
        try:
            with self._errors_converted():
                connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            with closing(connection):
                yield connection
        finally:
            engine.dispose()

    @contextmanager
    def _errors_converted(self) -> Iterator[None]:
        """Convert SQLAlchemy's errors, which may contain the address, to ours."""
        from sqlalchemy.exc import ArgumentError, SQLAlchemyError

        try:
            yield
        except ImportError as error:
            module = error.name or "its driver"
            raise MissingPackageError(
                f"a study in {urlsplit(self.address).scheme} needs {module}, not installed",
                hint=install_beside(DRIVERS.get(module, module)),
            ) from None
        except (ArgumentError, ValueError):
            raise UsageError(
                "--study is not a database address",
                hint="postgresql://USER:PASSWORD@HOST:PORT/DATABASE",
            ) from None
        except SQLAlchemyError as error:
            raise CannotError(
                f"{self.shown} cannot be opened: {self.cause_of(error)}",
                hint="start the server, correct the address, or name a file with --study",
            ) from None


_OWNER_IN_POSTGRESQL = """
select activity.application_name from pg_locks join pg_stat_activity as activity using (pid)
where locktype = 'advisory' and objsubid = 1
and (cast(classid as bigint) << 32 | cast(objid as bigint)) = cast(:key as bigint)
"""


def driver_message(error: BaseException) -> str:
    """The first line of the database's message, without passwords.

    Errors of Optuna and SQLAlchemy also contain the statement and its values.
    """
    cause: BaseException = error
    while True:
        inner = getattr(cause, "orig", None) or cause.__cause__
        if not isinstance(inner, BaseException):
            break
        cause = inner
    message = str(cause).strip() or type(cause).__name__
    return visible(without_secrets(message.split("\n")[0][:500], variables()))
