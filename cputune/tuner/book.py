"""What every study's book has in common, wherever it is kept: our records in Optuna's.

The value of a trial is seconds per sample; what cputune knows beside it stands in the trial's
user attributes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import optuna
from msgspec import Meta
from optuna.trial import FrozenTrial, TrialState

from cputune.documents import Record, plain, record_of
from cputune.errors import CannotError, CputuneError
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, PRUNED, State, Trial
from cputune.tuner.reading import Run
from cputune.tuner.sampler import PlanSampler
from cputune.tuner.space import SearchSpace
from cputune.workload import Workload

_IDENTITY, _WORKLOAD = "cputune.identity", "cputune.workload"
_TRIAL, _RUN = "cputune.trial", "cputune.run"

_STATES: Mapping[State, TrialState] = {
    COMPLETED: TrialState.COMPLETE,
    PRUNED: TrialState.PRUNED,
    FAILED: TrialState.FAIL,
}

Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]

Identity = Mapping[str, Any]
"""What must be the same for a study to be gone on with: plain JSON values by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A trial that another tuner has measured, as if it had been here.

    ``error``: how unsure that is (log), beside what its own steps scatter.
    """

    trial: Trial
    run: Run
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The steps of a trial, as they stand in the study: log seconds per sample, and losses."""

    logs: tuple[Finite, ...] = ()
    losses: tuple[Finite | None, ...] = ()


class LostDatabase(CannotError):  # noqa: N818 - a state of the world, like Interrupted
    """The database went away in the middle of a study."""


class Book(ABC):
    """Trials on record, and the one that runs."""

    _study: optuna.Study

    claimed: Set[Plan] = frozenset()
    """Plans that other tuners measure now."""

    @abstractmethod
    def close(self) -> None:
        """Close it; what stands in it stays."""

    @abstractmethod
    def no_study(self, why: str) -> CannotError:
        """The error for a study that cannot be used, and why."""

    @abstractmethod
    def failed(self, error: Exception, *, writing: bool) -> CannotError:
        """The error in words, for what Optuna or the database behind it has raised."""

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever goes wrong (Optuna lets SQLAlchemy's errors through) is a CannotError."""
        try:
            yield
        except CputuneError:
            raise
        except Exception as error:
            raise self.failed(error, writing=False) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self.failed(error, writing=True) from error

    @property
    def identity(self) -> Identity | None:
        """What the study on record is of; None for a new one. Raises CannotError."""
        with self._reading():
            found = self._study.user_attrs.get(_IDENTITY)
            begun = bool(self._study.get_trials(deepcopy=False))
        if found is None and begun:
            raise self.no_study("it has trials, and does not say of what")
        return found if isinstance(found, Mapping) else None

    def identify(self, identity: Identity) -> None:
        """Write down what this study is of."""
        self._put(_IDENTITY, dict(identity))

    @property
    def workload(self) -> Workload | None:
        """The workload as its first trial has shown it; None before that. Raises CannotError."""
        with self._reading():
            found = self._study.user_attrs.get(_WORKLOAD)
        return None if found is None else self._record(Workload, found)

    def remember(self, workload: Workload) -> None:
        """Write down what the first trial has shown of the workload."""
        self._put(_WORKLOAD, plain(workload))

    def _put(self, name: str, value: object) -> None:
        with self._writing():
            self._study.set_user_attr(name, value)

    @abstractmethod
    def past(self) -> list[tuple[Trial, Run]]:
        """The trials on record that are gone on from. Raises CannotError for a damaged one."""

    def news(self) -> list[Heard]:
        """What other tuners have measured since this was asked last."""
        return []

    def wait(self) -> None:
        """Wait a little for those who measure what is ``claimed``."""
        raise AssertionError("nobody else measures for this study")

    @abstractmethod
    def guide(self, sampler: PlanSampler) -> None:
        """Who proposes from now on."""

    @abstractmethod
    def begin_baseline(self) -> None:
        """Start the trial of today's launch, which has no knobs."""

    @abstractmethod
    def begin(self, space: SearchSpace, plan: Plan | None = None) -> Plan | None:
        """Start the next trial: a given plan of the space, or what the sampler proposes.

        None where another tuner was quicker.
        """

    @abstractmethod
    def end(self, trial: Trial, run: Run) -> None:
        """Write the running trial down: its steps, its value, or why it has none.

        Once, when the steps are in: a write per step would take time of the cores that
        are being measured.
        """

    @abstractmethod
    def abandon(self) -> None:
        """The running trial was interrupted: it counts as failed and is not on record."""

    @abstractmethod
    def discard(self) -> None:
        """Remove a study that was made here and never had a trial, where it is ours alone."""

    def _told(self, frozen: FrozenTrial) -> tuple[Trial, Run] | None:
        """A trial on record; None for one of which nothing was written down."""
        document = frozen.user_attrs.get(_TRIAL)
        if document is not None:
            steps = self._record(_Steps, frozen.user_attrs.get(_RUN, {}))
            run = Run(logs=list(steps.logs), losses=list(steps.losses))
            return self._record(Trial, document), run
        if frozen.state in (TrialState.COMPLETE, TrialState.PRUNED):
            raise self.no_study(f"trial {frozen.number} does not say what was measured")
        return None

    def _record(self, kind: type[Record], document: object) -> Record:
        try:
            return record_of(kind, document)
        except ValueError as error:
            raise self.no_study(str(error)) from error


def is_on_record(frozen: FrozenTrial) -> bool:
    """Whether it was written down what came of a trial."""
    return frozen.state.is_finished() and _TRIAL in frozen.user_attrs


def attributes(trial: Trial, run: Run) -> Mapping[str, Any]:
    """The user attributes of a trial that has ended: some for people, then our own records."""
    losses = [v if v is None or math.isfinite(v) else None for v in run.losses]
    steps = _Steps(logs=tuple(run.logs), losses=tuple(losses))
    why = {} if trial.reason is None else {"reason": trial.reason}
    return {
        "plan": trial.plan.describe(),
        "origin": trial.origin,
        **why,
        _RUN: plain(steps),
        _TRIAL: plain(trial),
    }


def intermediate(run: Run) -> Mapping[int, float]:
    """Seconds per sample of each step, as Optuna's dashboards draw them."""
    return {index: math.exp(value) for index, value in enumerate(run.logs)}


def outcome(trial: Trial, run: Run) -> tuple[TrialState, float | None]:
    """How Optuna is told that a trial has ended: its state, and seconds per sample.

    Of a pruned one the last step, as Optuna takes it.
    """
    if trial.state == COMPLETED and trial.samples_per_second is not None:
        return TrialState.COMPLETE, 1 / trial.samples_per_second.median
    last = math.exp(run.logs[-1]) if run.logs and trial.state == PRUNED else None
    return _STATES[trial.state], last
