"""The trials of a study on record, which ``--resume`` continues.

Optuna proposes and counts the trials in memory. Each finished one is copied to the user's file or
database: its value is seconds per sample; the rest is in its user attributes. If that cannot be
written, the study continues and the missing trials are written with the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated

import optuna
from msgspec import Meta
from optuna.trial import FrozenTrial, Trial as OptunaTrial, TrialState

from cputune.errors import CannotError, CputuneError
from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.claims import host_fingerprint
from cputune.records.options import MAY_CHANGE, TuneOptions
from cputune.records.result import COMPLETED, FAILED, PRUNED, State, Trial
from cputune.text.documents import plain, record_of
from cputune.tuner.reading import Run
from cputune.tuner.sampler import PlanSampler, distributions
from cputune.tuner.space import SearchSpace
from cputune.tuner.stores import IDENTITY, no_study, store_of

_WORKLOAD = "cputune.workload"
# Raised with a change that an older cputune would misread.
STUDY_SCHEMA = 1

_TRIAL = "cputune.trial"

Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]

# What must be the same for a study to be resumed: plain JSON values by name.
Identity = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptTrial:
    """A trial as stored in the study, with its steps: log seconds per sample, and losses."""

    trial: Trial
    logs: tuple[Finite, ...] = ()
    losses: tuple[Finite | None, ...] = ()
    start_seconds: Finite = 0.0


_STATES: Mapping[State, TrialState] = {
    COMPLETED: TrialState.COMPLETE,
    PRUNED: TrialState.PRUNED,
    FAILED: TrialState.FAIL,
}


class StudyStorage:
    """Trials on record, and the running one: in memory, and in a store with one tuner."""

    def __init__(
        self,
        named: str | Path | None,
        *,
        resume: bool,
        private: bool = False,
        name: str | None = None,
    ) -> None:
        """Open the study. Raises CannotError.

        ``private``: only this user may read the file.
        """
        self._store = store_of(named, name)
        self._is_new = self._store is None or not self._store.holds_study()
        if self._store is not None and not self._is_new and not resume:
            if not self._store.is_over():
                raise CannotError(
                    f"{self._store.shown} already contains a study",
                    hint="resume=True (--resume) continues it, study_name names another one",
                )
            self._store.remove()
            self._is_new = True
        # In memory: a file would take time of the cores that are measured.
        self._study = optuna.create_study(direction="minimize")
        self._running: OptunaTrial | None = None
        self._unwritten: list[Callable[[optuna.Study], object]] = []
        self._record: optuna.Study | None = None
        self._open = ExitStack()
        with self._reading(), ExitStack() as opened:
            if self._store is not None:
                self._record = opened.enter_context(self._store.opened(private=private))
            self._open = opened.pop_all()

    def close(self) -> None:
        """Close the store; its content stays."""
        self._open.close()

    def claim(self, identity: Identity) -> None:
        """Store what a new study measures.

        Raises CannotError if the study on record measures something else, or cannot be written.
        """
        if self._record is None or self._store is None:
            return
        with self._reading():
            recorded = self._record.user_attrs.get(IDENTITY)
            begun = bool(self._record.get_trials(deepcopy=False))
        if recorded is None and not begun:
            with self._reading():
                self._record.set_user_attr(IDENTITY, dict(identity))
            return
        if not isinstance(recorded, Mapping):
            raise no_study(self._store.shown, "it has trials, but no record of what they measured")
        different = []
        for name, value in identity.items():
            if value != recorded.get(name):
                different.append(name.replace("_", " "))
        if different:
            raise CannotError(
                f"the study in {self._store.shown} was started with another "
                + ", ".join(different),
                hint="resume it with the options it was started with, or name another file with "
                "--study",
            )

    def past(self) -> list[tuple[Trial, Run]]:
        """The trials on record, in order, without an interrupted one. Raises CannotError if one is
        damaged.
        """
        past: dict[int, tuple[Trial, Run]] = {}
        with self._reading():
            if self._record is not None:
                trials = self._record.get_trials(deepcopy=False)
            else:
                trials = ()
            for frozen in trials:
                document = frozen.user_attrs.get(_TRIAL)
                if document is not None:
                    kept = record_of(_KeptTrial, document)
                    run = Run(
                        logs=list(kept.logs),
                        losses=list(kept.losses),
                        start_seconds=kept.start_seconds,
                    )
                    # A database that was lost while it wrote may have a trial twice.
                    past.setdefault(kept.trial.number, (kept.trial, run))
                elif frozen.state in (TrialState.COMPLETE, TrialState.PRUNED):
                    raise ValueError(f"trial {frozen.number} lacks its measurements")
        return list(past.values())

    def guide(self, sampler: PlanSampler) -> None:
        """Set the sampler that Optuna asks from now on."""
        self._study.sampler = sampler

    def begin_baseline(self) -> None:
        """Start the trial of the baseline, which has no knobs."""
        self._running = self._study.ask()

    def begin(self, space: SearchSpace, plan: Plan | None = None) -> Plan:
        """Start the next trial: a given plan of the space, or what the sampler proposes."""
        if plan is not None:
            self._study.enqueue_trial(dict(space.values[plan]))
        self._running = self._study.ask(distributions(space))
        if plan is None:
            chosen = self._running.params
            plan = next(each for each, values in space.values.items() if dict(values) == chosen)
        return plan

    def end(self, trial: Trial, run: Run) -> None:
        """End the running trial: its steps, its value, or why it has none.

        ``write_down`` copies it to the store later: writing takes time of the cores that are
        measured.
        """
        assert self._running is not None, "it was begun"
        losses: list[float | None] = []
        for loss in run.losses:
            if loss is None or not math.isfinite(loss):
                losses.append(None)  # JSON has no NaN
            else:
                losses.append(loss)
        attributes = {
            "plan": trial.plan.describe(),
            "origin": trial.origin,
            "reason": trial.reason,
            _TRIAL: plain(
                _KeptTrial(
                    trial=trial,
                    logs=tuple(run.logs),
                    losses=tuple(losses),
                    start_seconds=run.start_seconds,
                )
            ),
        }
        rate = None
        if trial.state == COMPLETED:
            rate = trial.samples_per_second
        for index, log in enumerate(run.logs):
            self._running.report(math.exp(log), index)
        for name, attribute in attributes.items():
            self._running.set_user_attr(name, attribute)
        value = None
        if rate is not None:
            value = 1 / rate.centre
        frozen = self._study.tell(self._running, value, state=_STATES[trial.state])
        self._running = None
        self._unwritten.append(partial(_added, frozen=frozen))

    def discard(self) -> None:
        """Remove a study that was created here and never had a trial."""
        if self._store is not None and self._is_new:
            with suppress(Exception):  # the disk may be full, and the error is reported already
                self.close()
                self._store.remove()

    def abandon(self) -> None:
        """Drop the running trial, if any, which was interrupted."""
        if self._running is not None:
            self._study.tell(self._running, state=TrialState.FAIL)
            self._running = None

    def write_down(self) -> str | None:
        """Copy to the store what is missing there; returns why that fails, or None."""
        if self._record is None or self._store is None:
            return None
        try:
            self._record.get_trials(deepcopy=False)  # fails if the study was removed
            while self._unwritten:
                self._unwritten[0](self._record)
                del self._unwritten[0]
        except Exception as error:  # Optuna lets those of SQLAlchemy and drivers through
            return (
                f"the study in {self._store.shown} cannot be written: {self._store.cause_of(error)}"
            )
        return None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert any exception (Optuna passes on SQLAlchemy's) to a CputuneError."""
        try:
            yield
        except CputuneError:
            raise
        except Exception as error:
            assert self._store is not None, "a study in memory is never read"
            raise no_study(self._store.shown, self._store.cause_of(error)) from error

    @property
    def workload(self) -> Workload | None:
        """The workload as its first trial has shown it; None before that. Raises CannotError."""
        if self._record is None:
            return None
        with self._reading():
            stored = self._record.user_attrs.get(_WORKLOAD)
            if stored is None:
                return None
            return record_of(Workload, stored)

    def remember(self, workload: Workload) -> None:
        """Keep what the first trial has shown of the workload, with the next ``write_down``."""
        shown = plain(workload)
        self._unwritten.append(lambda record: record.set_user_attr(_WORKLOAD, shown))


def _added(record: optuna.Study, *, frozen: FrozenTrial) -> None:
    """Add a trial, unless it exists: an interrupt may have come while it was written."""
    number = frozen.user_attrs[_TRIAL]["trial"]["number"]
    for kept in record.get_trials(deepcopy=False):
        document = kept.user_attrs.get(_TRIAL)
        if document is not None and document["trial"]["number"] == number:
            return
    record.add_trial(frozen)


def identity_of(
    options: TuneOptions, facts: HostFacts, workload: Workload, hosts: Sequence[str] = ()
) -> Identity:
    """What must be the same for a study to be resumed."""
    identity: dict[str, object] = {
        "schema": STUDY_SCHEMA,
        "host": host_fingerprint(facts),
        "hosts": list(hosts),
        "workload": workload.to_json(),
    }
    for field in fields(TuneOptions):
        if field.name not in MAY_CHANGE:
            identity[field.name] = _plain(getattr(options, field.name))
    return identity


def _plain(value: object) -> object:
    """An option as JSON, independent of the order in which it was given."""
    if isinstance(value, Mapping):
        return {name: str(value[name]) for name in sorted(value)}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return sorted(str(item) for item in value)
    return value
