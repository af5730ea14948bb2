"""The book of a study that one tuner has for itself: in memory, or in an SQLite file.

The file is one that ``optuna-dashboard`` opens and that a later ``--resume`` goes on from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from cputune.errors import CannotError
from cputune.plan import Plan
from cputune.result import Trial
from cputune.tuner.book import Book, attributes, intermediate, outcome
from cputune.tuner.reading import Run
from cputune.tuner.sampler import PlanSampler, distributions
from cputune.tuner.space import SearchSpace
from cputune.tuner.studyfile import STUDY_NAME, connect, holds_study, no_study, whole


class Ledger(Book):
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

    def no_study(self, why: str) -> CannotError:
        """The error for a file that cannot be used, and why."""
        return no_study(self._path, why)

    def failed(self, error: Exception, *, writing: bool) -> CannotError:
        """A damaged file, or a disk that is full: the first line of what SQLAlchemy says."""
        why = str(error).strip().split("\n")[0]
        if not writing:
            return self.no_study(why)
        return CannotError(
            f"the study in {self._path} cannot be written: {why}",
            hint="the trials that ended are kept; make room, then go on with --resume",
        )

    def past(self) -> list[tuple[Trial, Run]]:
        """The trials on record, in order; one that was cut off is told as failed and left out.

        Raises CannotError where one of them is damaged.
        """
        with self._reading():
            trials = self._study.get_trials(deepcopy=False)
            for frozen in trials:
                if frozen.state == TrialState.RUNNING:
                    self._study.tell(frozen.number, state=TrialState.FAIL)
        return [told for frozen in trials if (told := self._told(frozen)) is not None]

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
        if plan is not None:
            return plan
        chosen = self._running.params
        return next(p for p, values in space.values.items() if dict(values) == chosen)

    def end(self, trial: Trial, run: Run) -> None:
        """Write the running trial down."""
        running = self._running
        assert running is not None, "no trial was begun"
        state, value = outcome(trial, run)
        with self._writing():
            for index, seconds in intermediate(run).items():
                running.report(seconds, index)
            for name, attribute in attributes(trial, run).items():
                running.set_user_attr(name, attribute)
            if state == TrialState.COMPLETE:
                self._study.tell(running, value)
            else:
                self._study.tell(running, state=state)
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
