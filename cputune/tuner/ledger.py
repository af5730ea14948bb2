"""The study's book: an Optuna study in which every trial is written as it ends.

In memory, or in an SQLite file that ``optuna-dashboard`` opens and that a later
``--resume`` goes on from. The value of a trial is seconds per sample; what cputune knows
beside it stands in the trial's user attributes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import optuna
from msgspec import Meta
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from cputune.documents import Record, plain, record_of
from cputune.errors import CannotError
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, PRUNED, State, Trial
from cputune.tuner.reading import Run
from cputune.tuner.sampler import distributions
from cputune.tuner.space import SearchSpace
from cputune.tuner.studyfile import STUDY_NAME, connect, holds_study, no_study, whole
from cputune.workload import Workload

_IDENTITY, _WORKLOAD = "cputune.identity", "cputune.workload"
_TRIAL, _RUN = "cputune.trial", "cputune.run"

_STATES: Mapping[State, TrialState] = {PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}

Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]

Identity = Mapping[str, Any]
"""What must be the same for a study to be gone on with: plain JSON values by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The steps of a trial, as they stand in the study: log seconds per sample, and losses."""

    logs: tuple[Finite, ...] = ()
    losses: tuple[Finite | None, ...] = ()


class Ledger:
    """Trials on record, and the one that runs."""

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

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever goes wrong (Optuna lets SQLAlchemy's errors through) is a CannotError."""
        try:
            yield
        except Exception as error:
            raise no_study(self._path, _first_line(error)) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise CannotError(
                f"the study in {self._path} cannot be written: {_first_line(error)}",
                hint="the trials that ended are kept; make room, then go on with --resume",
            ) from error

    @property
    def identity(self) -> Identity | None:
        """What the study on record is of; None for a new one. Raises CannotError."""
        with self._reading():
            found = self._study.user_attrs.get(_IDENTITY)
            begun = bool(self._study.get_trials(deepcopy=False))
        if found is None and begun:
            raise no_study(self._path, "it has trials, and does not say of what")
        return found if isinstance(found, Mapping) else None

    def identify(self, identity: Identity) -> None:
        """Write down what this study is of."""
        with self._writing():
            self._study.set_user_attr(_IDENTITY, dict(identity))

    @property
    def workload(self) -> Workload | None:
        """The workload as its first trial has shown it; None before that. Raises CannotError."""
        with self._reading():
            found = self._study.user_attrs.get(_WORKLOAD)
        return None if found is None else self._record(Workload, found)

    def remember(self, workload: Workload) -> None:
        """Write down what the first trial has shown of the workload."""
        with self._writing():
            self._study.set_user_attr(_WORKLOAD, plain(workload))

    def past(self) -> list[tuple[Trial, Run]]:
        """The trials on record, in order; one that was cut off is told as failed and left out.

        Raises CannotError where one of them is damaged.
        """
        with self._reading():
            trials = self._study.get_trials(deepcopy=False)
            for frozen in trials:
                if frozen.state == TrialState.RUNNING:
                    self._study.tell(frozen.number, state=TrialState.FAIL)
        found = []
        for frozen in trials:
            document = frozen.user_attrs.get(_TRIAL)
            if document is not None:
                steps = self._record(_Steps, frozen.user_attrs.get(_RUN, {}))
                run = Run(logs=list(steps.logs), losses=list(steps.losses))
                found.append((self._record(Trial, document), run))
            elif frozen.state in (TrialState.COMPLETE, TrialState.PRUNED):
                raise no_study(self._path, f"trial {frozen.number} does not say what was measured")
        return found

    def _record(self, kind: type[Record], document: object) -> Record:
        try:
            return record_of(kind, document)
        except ValueError as error:
            raise no_study(self._path, str(error)) from error

    def guide(self, sampler: BaseSampler) -> None:
        """Who proposes from now on."""
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
        if plan is not None:
            return plan
        chosen = self._running.params
        return next(p for p, values in space.values.items() if dict(values) == chosen)

    def end(self, trial: Trial, run: Run) -> None:
        """Write the running trial down: its steps, its value, or why it has none.

        Once, when the steps are in: a write per step would take time of the cores that
        are being measured.
        """
        running = self._running
        assert running is not None, "no trial was begun"
        losses = [v if v is None or math.isfinite(v) else None for v in run.losses]
        steps = _Steps(logs=tuple(run.logs), losses=tuple(losses))
        with self._writing():
            for index, value in enumerate(run.logs):
                running.report(math.exp(value), index)
            running.set_user_attr("plan", trial.plan.describe())
            running.set_user_attr("origin", trial.origin)
            if trial.reason is not None:
                running.set_user_attr("reason", trial.reason)
            running.set_user_attr(_RUN, plain(steps))
            running.set_user_attr(_TRIAL, plain(trial))
            if trial.samples_per_second is not None and trial.state == COMPLETED:
                self._study.tell(running, 1 / trial.samples_per_second.median)
            else:
                self._study.tell(running, state=_STATES[trial.state])
        self._running = None

    def discard(self) -> None:
        """Remove the file of a study that was made here and never had a trial."""
        if self._path is not None and self._is_new:
            with suppress(Exception):  # the disk may be full, and the error is told already
                self.close()
                self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """The running trial was interrupted: it counts as failed and is not on record."""
        if self._running is not None:
            with suppress(Exception):
                self._study.tell(self._running, state=TrialState.FAIL)
            self._running = None


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


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
