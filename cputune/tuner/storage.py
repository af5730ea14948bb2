"""Where a study is kept, and what it is a study of.

- in memory, where nothing is named
- in an SQLite file of its own (``--study FILE.db``): one tuner at a time; the
  file is one that ``optuna-dashboard`` opens and that a later ``--resume`` goes on from

Our records stand in Optuna's: the value of a trial is seconds per sample, what cputune knows
beside it stands in the trial's user attributes.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import optuna
from msgspec import Meta
from optuna.storages import RDBStorage
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from cputune.documents import plain, record_of
from cputune.errors import CannotError
from cputune.facts import HostFacts
from cputune.options import MAY_CHANGE, TuneOptions
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, PRUNED, State, Trial, host_fingerprint
from cputune.tuner.measuring import first_line
from cputune.tuner.reading import Run
from cputune.tuner.sampler import PlanSampler, distributions
from cputune.tuner.space import SearchSpace
from cputune.workload import Workload

_IDENTITY, _WORKLOAD = "cputune.identity", "cputune.workload"
STUDY_SCHEMA = 1
_TRIAL = "cputune.trial"

Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]

Identity = Mapping[str, object]
"""What must be the same for a study to be gone on with: plain JSON values by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A trial as it stands in the study, with its steps: log seconds per sample, and losses."""

    trial: Trial
    logs: tuple[Finite, ...] = ()
    losses: tuple[Finite | None, ...] = ()


STUDY_NAME = "cputune"

_STATES: Mapping[State, TrialState] = {
    COMPLETED: TrialState.COMPLETE,
    PRUNED: TrialState.PRUNED,
    FAILED: TrialState.FAIL,
}

_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY
"""Not what somebody has planted there meanwhile."""

TABLES = {"studies", "trials", "study_user_attributes", "trial_user_attributes"}
"""Tables of Optuna's that a study cannot be gone on with without."""


def connect(path: Path, *, mode: str = "rwc") -> sqlite3.Connection:
    """Open the file, whatever signs are in its name; ``mode`` as in SQLite's addresses."""
    address = f"file:{quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(address, uri=True, check_same_thread=False)


def holds_study(path: Path) -> bool:
    """Whether a study of ours is in the file; False where there is no file, or an empty one.

    Raises CannotError for a file that belongs to somebody else, or that lost tables:
    nothing has been written to it then.
    """
    if not path.exists():
        return False
    if not path.is_file():
        raise no_study(path, "it is no regular file")
    try:
        # For reading and writing: a journal that a killed process left is rolled back.
        with closing(connect(path, mode="rw")) as file:
            tables = {name for (name,) in file.execute("select name from sqlite_master")}
            names = file.execute("select study_name from studies") if tables >= TABLES else ()
            ours = (STUDY_NAME,) in names
            (sound,) = file.execute("pragma quick_check(1)").fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise no_study(path, str(error)) from error
    if tables and not ours:
        raise no_study(path, "it is the database of something else, or tables of it are missing")
    if sound != "ok":
        raise no_study(path, f"the database is damaged ({sound})")
    return ours


@contextmanager
def whole(path: Path, *, private: bool) -> Iterator[Path]:
    """A file beside ``path`` to make a study in; it becomes ``path`` when the block is over.

    So a study is there with all its tables and indices, or not at all: one that is killed
    while Optuna makes them could be neither gone on with nor begun. Where it is private,
    only its owner may read it.
    """
    half = path.with_name(f".{path.name}.new")
    half.unlink(missing_ok=True)
    os.close(os.open(half, _NEW, 0o600 if private else 0o666))
    try:
        yield half
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def no_study(path: Path | None, why: str) -> CannotError:
    """The error for a file that cannot be used, and why."""
    return CannotError(
        f"{path} cannot be opened as a study: {why}", hint="give another file with --study"
    )


class StudyStorage:
    """Trials on record, and the one that runs: in memory, or in a file of this tuner alone."""

    def __init__(self, path: Path | None, *, resume: bool, private: bool = False) -> None:
        """Open the study; with a path in SQLite, for this user alone where it is ``private``.

        Raises CannotError.
        """
        self._path = path
        self._is_new = path is None or not holds_study(path)
        if not self._is_new and not resume:
            raise CannotError(
                f"{path} holds a study already",
                hint="--resume goes on with it, --force starts over",
            )
        self._open = ExitStack()
        with self._reading(), ExitStack() as opened:
            if path is not None and self._is_new:
                with whole(path, private=private) as half, _storage(half) as storage:
                    _create(storage)
            elif path is not None and private:
                path.chmod(0o600)
            self._study = _create(path and opened.enter_context(_storage(path)))
            self._open = opened.pop_all()
        self._running: OptunaTrial | None = None

    def close(self) -> None:
        """Close the file; what stands in it stays."""
        self._open.close()

    def claim(self, identity: Identity) -> None:
        """Write down what a new study is of.

        Raises CannotError where the one on record is of something else, or does not say of what.
        """
        with self._reading():
            recorded = self._study.user_attrs.get(_IDENTITY)
            begun = bool(self._study.get_trials(deepcopy=False))
        if recorded is None and not begun:
            self._put(_IDENTITY, dict(identity))
            return
        if not isinstance(recorded, Mapping):
            raise no_study(self._path, "it has trials, and does not say of what")
        different = [name for name in identity if identity[name] != recorded.get(name)]
        if different:
            raise CannotError(
                f"the study in {self._path} is of another "
                + ", ".join(name.replace("_", " ") for name in different),
                hint="resume it as it was started, or give another file with --study",
            )

    def past(self) -> list[tuple[Trial, Run]]:
        """The trials on record, in order; one that was cut off is told as failed and left out.

        Raises CannotError where one of them is damaged.
        """
        found = []
        with self._reading():
            for frozen in self._study.get_trials(deepcopy=False):
                document = frozen.user_attrs.get(_TRIAL)
                if document is not None:
                    kept = record_of(_Kept, document)
                    run = Run(logs=list(kept.logs), losses=list(kept.losses))
                    found.append((kept.trial, run))
                elif frozen.state in (TrialState.COMPLETE, TrialState.PRUNED):
                    raise ValueError(f"trial {frozen.number} does not say what was measured")
                elif frozen.state == TrialState.RUNNING:
                    self._study.tell(frozen.number, state=TrialState.FAIL)
        return found

    def guide(self, sampler: PlanSampler) -> None:
        """Who proposes from now on: Optuna asks it."""
        self._study.sampler = sampler

    def begin_baseline(self) -> None:
        """Start the trial of today's launch, which has no knobs."""
        with self._writing():
            self._running = self._study.ask()

    def begin(self, space: SearchSpace, plan: Plan | None = None) -> Plan:
        """Start the next trial: a given plan of the space, or what the sampler proposes."""
        with self._writing():
            if plan is not None and not self._study.get_trials(False, (TrialState.WAITING,)):
                self._study.enqueue_trial(dict(space.values[plan]))
            self._running = self._study.ask(distributions(space))
        if plan is None:
            chosen = self._running.params
            plan = next(p for p, values in space.values.items() if dict(values) == chosen)
        return plan

    def end(self, trial: Trial, run: Run) -> None:
        """Write a running trial down: its steps, its value, or why it has none.

        Once, when the steps are in: a write per step would take time of the cores that
        are being measured.
        """
        assert self._running is not None, "it was begun"
        losses = [v if v is None or math.isfinite(v) else None for v in run.losses]
        attributes = {
            "plan": trial.plan.describe(),
            "origin": trial.origin,
            "reason": trial.reason,
            _TRIAL: plain(_Kept(trial=trial, logs=tuple(run.logs), losses=tuple(losses))),
        }
        rate = trial.samples_per_second if trial.state == COMPLETED else None
        with self._writing():
            for index, log in enumerate(run.logs):
                self._running.report(math.exp(log), index)
            for name, attribute in attributes.items():
                self._running.set_user_attr(name, attribute)
            value = None if rate is None else 1 / rate.median
            self._study.tell(self._running, value, state=_STATES[trial.state])
        self._running = None

    def discard(self) -> None:
        """Remove the file of a study that was made here and never had a trial."""
        if self._path is not None and self._is_new:
            with suppress(Exception):  # the disk may be full, and the error is told already
                self.close()
                self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """The trial that runs, if any, was interrupted: failed, and not on record."""
        if self._running is not None:
            with suppress(Exception):
                self._study.tell(self._running, state=TrialState.FAIL)
            self._running = None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever goes wrong (Optuna lets SQLAlchemy's errors through) is a CannotError."""
        try:
            yield
        except Exception as error:
            raise no_study(self._path, first_line(str(error))) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise CannotError(
                f"the study in {self._path} cannot be written: {first_line(str(error))}",
                hint="the trials that ended are kept; make room, then go on with --resume",
            ) from error

    @property
    def workload(self) -> Workload | None:
        """The workload as its first trial has shown it; None before that. Raises CannotError."""
        with self._reading():
            found = self._study.user_attrs.get(_WORKLOAD)
            return None if found is None else record_of(Workload, found)

    def remember(self, workload: Workload) -> None:
        """Write down what the first trial has shown of the workload."""
        self._put(_WORKLOAD, plain(workload))

    def _put(self, name: str, value: object) -> None:
        with self._writing():
            self._study.set_user_attr(name, value)


def _create(storage: RDBStorage | None) -> optuna.Study:
    """The study of this storage, which is begun where there is none."""
    return optuna.create_study(
        study_name=STUDY_NAME, storage=storage, direction="minimize", load_if_exists=True
    )


@contextmanager
def _storage(path: Path) -> Iterator[RDBStorage]:
    """Optuna's storage in this very file: in an address some signs of its name mean something."""
    # An interrupt while a connection is closed is raised, and also logged with its traceback.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    engine = {"creator": partial(connect, path), "poolclass": NullPool}
    storage = RDBStorage("sqlite:///study", engine_kwargs=engine)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def identity_of(
    options: TuneOptions, facts: HostFacts, workload: Workload, hosts: Sequence[str] = ()
) -> Identity:
    """What must be the same for a study to be gone on with."""
    names = [one.name for one in fields(TuneOptions) if one.name not in MAY_CHANGE]
    return {
        "schema": STUDY_SCHEMA,
        "host": host_fingerprint(facts),
        "hosts": list(hosts),
        "workload": workload.to_json(),
        **{name: _plain(getattr(options, name)) for name in names},
    }


def _plain(value: object) -> object:
    """An option as JSON has it, in whatever order it was given."""
    if isinstance(value, Mapping):
        return {name: str(value[name]) for name in sorted(value)}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return sorted(str(one) for one in value)
    return value
