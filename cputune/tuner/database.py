"""A database that tuners share: how it is opened, waited for, and told that a trial is alive.

Optuna keeps studies in PostgreSQL, MySQL and SQLite. An address may hold a password: nothing
that is said, raised or written here has it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from cputune.errors import CannotError, MissingPackageError, UsageError
from cputune.hidden import HIDDEN, without_password
from cputune.tuner.storage import LostDatabase

KINDS = ("postgresql", "mysql", "sqlite")

BEAT_SECONDS = 15
"""How often a tuner says that its trial is alive. A beat is one row written: a millisecond."""

GRACE_SECONDS = 60
"""How long after its last beat a trial is taken for dead, and its plan is free again."""

FAILURES = (SQLAlchemyError, StorageInternalError, OSError)
"""What a server that does not answer raises, by way of Optuna."""

_LIBPQ: Mapping[str, object] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 20_000,  # milliseconds: a cut network is noticed
    "application_name": "cputune",
}
_AT_ONCE = re.compile(r"already exists|duplicate key|UNIQUE constraint|locked|deadlock", re.I)
"""What is said to the second of two tuners that make the tables of one database."""
_ATTEMPTS = 6

_CURES = (
    # what the driver's words hold, what to do
    (
        r"password|authentication|Access denied",
        "set PGPASSWORD, or write it into ~/.pgpass, for your eyes alone (chmod 600)",
    ),
    (r"no pg_hba\.conf entry", "the server's pg_hba.conf must let this host in"),
    (r"role .* does not exist", "name the user in the address, or make it: createuser NAME"),
    (r"database .* does not exist|Unknown database", "make it once: createdb NAME"),
    (
        r"permission denied|read-only|readonly|denied to user",
        "a user is needed who may write there and, the first time, make tables "
        "(GRANT CREATE, USAGE ON SCHEMA public TO NAME)",
    ),
    (r"unable to open database file", "name a file in a folder that is there and can be written"),
    (r"not a database", "name another file"),
)
_UNREACHABLE = "is the server up, and reached from here? pg_isready -h HOST -p PORT tells"


def parsed(address: str) -> URL:
    """The address as SQLAlchemy reads it. Raises UsageError, which does not repeat it."""
    kind = re.split(r"[+:]", address, maxsplit=1)[0]
    like = "--storage postgresql://USER@HOST/DATABASE, or sqlite:///FILE"
    if kind == "postgres":
        raise UsageError("an address begins with postgresql://, not postgres://", hint=like)
    if kind not in KINDS or "://" not in address:
        raise UsageError("a storage is the address of a database", hint=like)
    try:
        url = make_url(address)
    except (SQLAlchemyError, ValueError):
        raise UsageError(
            f"no address of a database: {kind}://…",
            hint=f"{like}; signs like @ / : of a password are written %40 %2F %3A",
        ) from None
    if kind == "sqlite" and not url.database:
        raise UsageError("a study in memory cannot be shared", hint="--storage sqlite:///FILE")
    return url


@contextmanager
def opened(address: str, *, private: bool = False) -> Iterator[RDBStorage]:
    """Optuna's storage behind an address; its tables are made where there are none.

    A new SQLite file is for this user alone where it is ``private``. Raises CputuneError: the
    driver is missing, the server cannot be reached, refuses the user or what is written, or
    holds the tables of another Optuna.
    """
    url = parsed(address)
    # An interrupt while a connection is closed is raised, and also logged with its traceback.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    if url.get_backend_name() == "sqlite":
        _made(Path(str(url.database)), private=private)
    storage = _storage(address, url)
    try:
        yield storage
    finally:
        with suppress(*FAILURES):
            storage.remove_session()
            storage.engine.dispose()


def _made(path: Path, *, private: bool) -> None:
    with suppress(OSError):  # it is there; or Optuna says why it cannot be
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))


def _storage(address: str, url: URL) -> RDBStorage:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _made_storage(url)
        except (ImportError, NoSuchModuleError) as error:
            raise _no_driver(url, error) from None
        except RuntimeError as error:
            raise _other_optuna(address, error) from None
        except FAILURES as error:
            if attempt == _ATTEMPTS or not _AT_ONCE.search(reason(error, address)):
                raise cannot_use(address, error) from None
            time.sleep(0.2 * attempt)
    raise AssertionError("the last attempt raises")


def _made_storage(url: URL) -> RDBStorage:
    storage = RDBStorage.__new__(RDBStorage)  # where it fails its connections are to be closed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # its heartbeat is one
            storage.__init__(
                url.render_as_string(hide_password=False),
                engine_kwargs=_engine_options(url),
                heartbeat_interval=BEAT_SECONDS,
                grace_period=GRACE_SECONDS,
            )
    except BaseException:
        if hasattr(storage, "engine"):
            storage.engine.dispose()
        raise
    return storage


def _engine_options(url: URL) -> dict[str, object]:
    if url.get_backend_name() == "sqlite":
        return {"poolclass": NullPool, "connect_args": {"timeout": 30}}
    options: dict[str, object] = {"pool_pre_ping": True}
    if url.get_driver_name() in ("psycopg", "psycopg2"):
        options["connect_args"] = {k: v for k, v in _LIBPQ.items() if k not in url.query}
    return options


def cannot_use(address: str, error: BaseException) -> CannotError:
    """The error for a database that cannot be used, and its cure."""
    why = reason(error, address)
    server = not address.startswith("sqlite")
    cure = next((hint for words, hint in _CURES if re.search(words, why, re.I)), None)
    return CannotError(
        f"{without_password(address)} cannot be used: {why}",
        hint=cure or (_UNREACHABLE if server else "--storage sqlite:///FILE names another file"),
    )


def reason(error: BaseException, address: str) -> str:
    """What the database itself said, on one line, without the password."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    said = getattr(error, "orig", None) or error
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    text = "; ".join(lines[:3])[:300] or type(said).__name__
    password = parsed(address).password
    return text.replace(str(password), HIDDEN) if password else text


def _no_driver(url: URL, error: Exception) -> MissingPackageError:
    kind = url.get_backend_name()
    cause = error.__cause__ or error
    module = getattr(cause, "name", None) or url.drivername
    return MissingPackageError(
        f"a study in {kind} needs a driver that is not installed: {module}",
        hint="pip install 'cputune[sql]'"
        if kind == "postgresql"
        else "pip install PyMySQL, and write mysql+pymysql://USER@HOST/DATABASE",
    )


def _other_optuna(address: str, error: RuntimeError) -> CannotError:
    text = str(error)
    if "no longer compatible" not in text:
        return cannot_use(address, error)
    by = re.search(r"set up by optuna ([\w.]+)", text)
    newer = "updating optuna" in text
    return CannotError(
        f"the tables in {without_password(address)} are those of a"
        f"{' newer' if newer else 'n older'} Optuna{f' ({by[1]})' if by else ''}",
        hint="pip install -U optuna, or give another database with --storage"
        if newer
        else "optuna storage upgrade --storage ADDRESS, when no tuner uses it",
    )


PATIENCE_SECONDS = 60
"""How long a server that went away is asked again, before the search ends without it."""

AGAIN_SECONDS = 1.0

Answer = TypeVar("Answer")


class Patiently:
    """Asks a database until it answers, or the patience or the time given is at its end.

    ``say`` tells once what is waited for, ``missed`` hears of every answer that did not come.
    """

    def __init__(
        self,
        address: str,
        *,
        say: Callable[[str], None],
        missed: Callable[[], None],
        out_of_time: Callable[[], bool],
    ) -> None:
        self._address = address
        self._say = say
        self._missed = missed
        self._out_of_time = out_of_time

    def __call__(self, ask: Callable[[], Answer]) -> Answer:
        """What the database answers. Raises LostDatabase."""
        until = time.monotonic() + PATIENCE_SECONDS
        said = False
        while True:
            try:
                return ask()
            except FAILURES as error:
                self._missed()
                if time.monotonic() > until or self._out_of_time():
                    raise LostDatabase(
                        self.gone(error), hint="the same command goes on when it does"
                    ) from None
                if not said:
                    self._say(f"{self.gone(error)}; it is asked again for {PATIENCE_SECONDS} s")
                said = True
                time.sleep(AGAIN_SECONDS)

    def gone(self, error: Exception) -> str:
        """That it does not answer, in words and without a password."""
        where = without_password(self._address)
        return f"{where} does not answer ({reason(error, self._address)})"


class Heartbeat:
    """Beats for each trial in ``trials`` (Optuna's ids), from a thread of its own, until stopped.

    Optuna's own thread runs only inside ``Study.optimize``, which would call us.
    """

    def __init__(self, storage: RDBStorage) -> None:
        self._storage = storage
        self._stop = threading.Event()
        self._missed_at = -math.inf
        self.trials: set[int] = set()
        self._thread = threading.Thread(target=self._beat, name="cputune-heartbeat", daemon=True)
        self._thread.start()

    def begin(self, trial: int) -> None:
        """The first beat of a trial; those that follow come by themselves."""
        self.trials.add(trial)
        self._storage.record_heartbeat(trial)

    def end(self, trial: int) -> None:
        """It has ended; nothing more is to be said of it."""
        self.trials.discard(trial)

    @property
    def is_sure(self) -> bool:
        """Whether others' silence means something: where we were not heard, they were not."""
        return time.monotonic() - self._missed_at > 2 * BEAT_SECONDS

    def missed(self) -> None:
        """The server did not answer just now."""
        self._missed_at = time.monotonic()

    def stop(self) -> None:
        """End the thread; it may wait for a server that does not answer."""
        self._stop.set()
        self._thread.join(timeout=1)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            for trial in tuple(self.trials):
                try:
                    self._storage.record_heartbeat(trial)
                except FAILURES:
                    self.missed()
        with suppress(*FAILURES):
            self._storage.remove_session()  # of this thread
