"""Where a study is stored: in a file, or in a database that Optuna opens.

A file is Optuna's journal: a line of JSON for each change. An address (``postgresql://HOST/NAME``)
is passed to Optuna's ``RDBStorage``. It may contain a password, so messages contain ``shown``
instead.
"""

from __future__ import annotations

import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cputune.errors import CannotError, CputuneError
from cputune.host.files import (
    delete,
    drop_torn_line,
    exists,
    is_file,
    make_empty,
    make_private_file,
    rename,
    size,
)
from cputune.host.locks import study_lock
from cputune.host.process import variables
from cputune.records.history import free_name
from cputune.text.hidden import without_secrets
from cputune.text.plain import visible

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage

STUDY_NAME = "cputune"

# The attribute of a study whose result was written.
FINISHED = "cputune.finished"

# The attribute of our studies that identifies what they measure.
IDENTITY = "cputune.identity"


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
class StudyStore(ABC):
    """Where one study is stored. ``shown`` is its name for people, without secrets."""

    name: str = STUDY_NAME

    @property
    @abstractmethod
    def shown(self) -> str:
        """The name for people."""

    @abstractmethod
    def storage(self) -> AbstractContextManager[BaseStorage]:
        """Optuna's storage, open. Raises CannotError."""

    @abstractmethod
    def holds_study(self) -> bool:
        """Whether the study exists. Raises CannotError if something else does."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """Be the only tuner that uses it. Raises CannotError if another one does."""

    @abstractmethod
    def opened(self, *, private: bool) -> AbstractContextManager[optuna.Study]:
        """The study, created if it does not exist; readable by this user only if ``private``."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the study. Raises CannotError."""

    @abstractmethod
    def move_aside(self) -> MovedStudy:
        """Rename the study, so that a new one can begin. Raises CannotError."""

    @abstractmethod
    def cause_of(self, error: BaseException) -> str:
        """The cause of an error: what happened to the file, or the database's message."""

    @contextmanager
    def loaded(self) -> Iterator[optuna.Study]:
        """The study that is there. Raises CannotError."""
        import optuna

        with self.storage() as storage:
            yield optuna.load_study(study_name=self.name, storage=storage)

    def is_over(self) -> bool:
        """Whether nothing is lost without the study: it has no trial, or its result was written."""
        with self.loaded() as study:
            return FINISHED in study.user_attrs or not study.get_trials(deepcopy=False)

    def finish(self) -> None:
        """Mark the study: its result was written. Without the study this does nothing."""
        with suppress(CputuneError, KeyError, OSError):
            if self.holds_study():
                with self.loaded() as study:
                    study.set_user_attr(FINISHED, True)

    def make_room(self) -> MovedStudy | None:
        """Clear the place of the study, for a new one.

        A finished study, or one without a trial, is removed. An interrupted one is renamed, and
        returned. Raises CannotError if another process uses it, or another program made it.
        """
        with self.lock():
            if self.is_over():
                self.remove()
                return None
            return self.move_aside()


def store_of(named: str | Path | None, name: str | None = None) -> StudyStore | None:
    """The store that the user names; None if none is named."""
    if named is None:
        return None
    if isinstance(named, Path) or "://" not in named:
        return StudyFile(path=Path(named), name=name or STUDY_NAME)
    return StudyDatabase(address=named, name=name or STUDY_NAME)


def without_credentials(named: str) -> str:
    """What ``--study`` names, without user, password and options; a file name stays as it is."""
    if "://" not in named:
        return named
    parts = urlsplit(named)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def no_study(shown: str | Path, reason: str) -> CannotError:
    """The error for a store that cannot be used, and why."""
    return CannotError(
        f"{shown} cannot be opened as a study: {reason}", hint="name another file with --study"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile(StudyStore):
    """A study in a file, Optuna's journal."""

    path: Path

    @property
    def shown(self) -> str:
        """The path, as the user gave it."""
        return str(self.path)

    @contextmanager
    def storage(self) -> Iterator[BaseStorage]:
        """The journal. Raises CannotError if the file is not one."""
        from optuna.storages import JournalStorage

        from cputune.tuner.journal import Journal

        try:
            storage = JournalStorage(Journal(self.path))
        except OSError as error:
            raise no_study(self.path, self.cause_of(error)) from error
        except Exception as error:  # Optuna lets anything through that a line of JSON causes
            raise no_study(self.path, NOT_OURS) from error
        yield storage

    def holds_study(self) -> bool:
        """Whether a study of ours is in the file; False if the file is missing or empty.

        Raises CannotError for a file of other content. Nothing is written.
        """
        import optuna

        if not exists(self.path):
            return False
        if not is_file(self.path):
            raise no_study(self.path, "it is not a regular file")
        if size(self.path) == 0:
            return False
        with self.storage() as storage:
            if self.name not in optuna.get_all_study_names(storage):
                raise no_study(self.path, NOT_OURS)
        return True

    def lock(self) -> AbstractContextManager[None]:
        """Hold ``FILE.lock``."""
        return study_lock(self.path)

    @contextmanager
    def opened(self, *, private: bool) -> Iterator[optuna.Study]:
        """The study; its file exists with the study or not at all."""
        import optuna

        if not self.holds_study():
            with self._new_file(private=private) as half, half.storage() as storage:
                optuna.create_study(study_name=self.name, storage=storage, direction="minimize")
        elif private:
            make_private_file(self.path)
        drop_torn_line(self.path)
        with self.loaded() as study:
            yield study

    @contextmanager
    def _new_file(self, *, private: bool) -> Iterator[StudyFile]:
        """A temporary file for a new study, which gets its name when the block ends.

        So a killed creation leaves nothing that could be neither resumed nor created again. If
        ``private``, only its owner may read it.
        """
        half = self.path.with_name(f".{self.path.name}.new")
        mode = 0o666
        if private:
            mode = 0o600
        make_empty(half, mode=mode)
        try:
            yield StudyFile(path=half, name=self.name)
            rename(half, self.path)
        finally:
            delete(half)

    def remove(self) -> None:
        delete(self.path)

    def move_aside(self) -> MovedStudy:
        """Rename the file, by the time at which it was written last."""
        with self.loaded() as study:
            trials = len(study.get_trials(deepcopy=False))
        beside = free_name(self.path)
        rename(self.path, beside)
        option = f"--study {shlex.quote(str(beside))}"
        return MovedStudy(name=str(beside), option=option, trials=trials)

    def cause_of(self, error: BaseException) -> str:
        """What happened to the file."""
        if not exists(self.path):
            return "the file is gone: it was removed or renamed"
        if isinstance(error, OSError):
            return (error.strerror or str(error)).lower()
        return f"the file is damaged or truncated ({_first_line(error)})"


NOT_OURS = "it has no study of cputune, or it is damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDatabase(StudyStore):
    """A study in a database that Optuna opens, which may contain other studies."""

    address: str

    @property
    def shown(self) -> str:
        """Server and database, without user, password and options."""
        return visible(f"{without_credentials(self.address)}, study {self.name!r}")

    @contextmanager
    def storage(self) -> Iterator[BaseStorage]:
        """Optuna's ``RDBStorage``. Raises CannotError if the database cannot be opened."""
        from optuna.storages import RDBStorage

        try:
            storage = RDBStorage(self.address)
        except Exception as error:  # of Optuna, SQLAlchemy, and the database's driver
            raise CannotError(
                f"{self.shown} cannot be opened: {self.cause_of(error)}",
                hint="start the server, correct the address, or name a file with --study",
            ) from None
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()

    def holds_study(self) -> bool:
        """Whether a study of this name is in the database."""
        import optuna

        with self.storage() as storage:
            return self.name in optuna.get_all_study_names(storage)

    def lock(self) -> AbstractContextManager[None]:
        """Databases of Optuna have no lock: one process uses a study, or its trials get mixed."""
        return nullcontext()

    @contextmanager
    def opened(self, *, private: bool) -> Iterator[optuna.Study]:
        """The study; the database decides who may read it."""
        import optuna

        with self.storage() as storage:
            yield optuna.create_study(
                study_name=self.name, storage=storage, direction="minimize", load_if_exists=True
            )

    def remove(self) -> None:
        """Remove only this study, and only if it is ours."""
        import optuna

        if not self.holds_study():
            return
        with self.loaded() as study:
            self._require_ours(study)
            optuna.delete_study(study_name=self.name, storage=study._storage)

    def move_aside(self) -> MovedStudy:
        """Copy the study to a name with the present time, and remove it."""
        import optuna

        beside = f"{self.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        with self.loaded() as study:
            self._require_ours(study)
            trials = len(study.get_trials(deepcopy=False))
            optuna.copy_study(
                from_study_name=self.name,
                from_storage=study._storage,
                to_storage=study._storage,
                to_study_name=beside,
            )
            optuna.delete_study(study_name=self.name, storage=study._storage)
        return MovedStudy(
            name=f"the study {beside!r} there",
            option=f"--study-name {shlex.quote(beside)}",
            trials=trials,
        )

    def _require_ours(self, study: optuna.Study) -> None:
        if IDENTITY in study.user_attrs or not study.get_trials(deepcopy=False):
            return
        raise CannotError(
            f"{self.shown} was not created by cputune, so it is not removed",
            hint="--study-name NAME creates another one in the same database",
        )

    def cause_of(self, error: BaseException) -> str:
        """The message of the database or its driver."""
        if isinstance(error, KeyError):  # Optuna's message is "Record does not exist."
            return "it was removed"
        return _first_line(error)


def _first_line(error: BaseException) -> str:
    """The first line of a message, without passwords: the others have the statement's values."""
    message = str(error).strip() or type(error).__name__
    return visible(without_secrets(message.split("\n")[0][:500], variables()))
