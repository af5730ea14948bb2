"""A study that several tuners share: who measures what, and what all have found.

A trial that runs is a claim to its plan. It is written whole, plan and all, and only then looked
whether an earlier one holds the same plan or the last place of the budget; Optuna numbers trials
under a lock of the database, so of two tuners exactly one goes on. A claim whose owner died has
no heartbeat any more: it is told as failed, and its plan is free.

Every tuner measures today's launch on its own machine first. What another one has measured is
taken as a ratio to the launch of today there.

What another machine of the same kind has measured, as it would be here.

Machines of one kind still differ by some percent, and stay so: their place in the rack, their
memory, their neighbours. So a speed is taken as a ratio to that of today's launch on the same
machine. What a machine wanders by between two trials is left in, as in one's own trials; the
confirmation, which every tuner makes on its own machine, decides.
"""

from __future__ import annotations

import math
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from cputune.documents import plain
from cputune.errors import CannotError
from cputune.hidden import without_password
from cputune.log import log
from cputune.plan import Plan
from cputune.result import Throughput, Trial
from cputune.tuner.database import (
    AGAIN_SECONDS,
    FAILURES,
    GRACE_SECONDS,
    Heartbeat,
    Patiently,
    cannot_use,
    opened,
)
from cputune.tuner.race import WANDER, Z95
from cputune.tuner.reading import Run
from cputune.tuner.sampler import PlanSampler, distributions
from cputune.tuner.space import SearchSpace
from cputune.tuner.storage import (
    OtherTrial,
    StudyStorage,
    attributes,
    intermediate,
    is_on_record,
    outcome,
)


def as_here(
    trial: Trial, run: Run, *, there: Throughput | None, here: Throughput | None
) -> OtherTrial:
    """A trial of another machine, scaled by the speed of today's launch ``there`` and ``here``.

    Where one of the two is not known it is taken as it is, as far from sure as a machine wanders.
    """
    if there is None or here is None:
        return OtherTrial(trial=replace(trial, elsewhere=True), run=run, error=WANDER)
    factor = here.median / there.median
    rate, most = trial.samples_per_second, trial.at_most_samples_per_second
    scaled = replace(
        trial,
        elsewhere=True,
        samples_per_second=None if rate is None else _times(rate, factor),
        at_most_samples_per_second=None if most is None else most * factor,
    )
    shifted = replace(run, logs=[value - math.log(factor) for value in run.logs])
    return OtherTrial(trial=scaled, run=shifted, error=math.hypot(_error(there), _error(here)))


def _times(rate: Throughput, factor: float) -> Throughput:
    return Throughput(median=rate.median * factor, low=rate.low * factor, high=rate.high * factor)


def _error(rate: Throughput) -> float:
    """Standard error of the logarithm, from the 95 % interval."""
    return math.log(rate.high / rate.low) / (2 * Z95) if rate.low > 0 else WANDER


_OWNER, _PLAN = "cputune.owner", "cputune.plan"

_LOG = log.getChild("shared")


class SharedStorage(StudyStorage):
    """The trials of all tuners, and the one that runs here."""

    def __init__(
        self,
        address: str,
        name: str,
        *,
        budget: int,
        private: bool,
        say: Callable[[str], None],
        out_of_time: Callable[[], bool],
    ) -> None:
        """Open the study called ``name``, or begin it; ``budget`` is that of all tuners.

        ``say`` tells what is waited for. Raises CputuneError for a database that cannot be used.
        """
        self._address = address
        self._budget = budget
        self._say = say
        self._me = uuid.uuid4().hex[:12]
        self._sampler: PlanSampler | None = None
        self._running: int | None = None
        self._unwritten: list[tuple[int, Trial, Run]] = []
        self._here: Throughput | None = None
        self._known: set[int] = set()
        self._seen_since: dict[int, float] = {}
        self._waits = False
        with ExitStack() as stack, self._reading():
            self._storage = stack.enter_context(opened(address, private=private))
            self._study = optuna.create_study(
                study_name=name, storage=self._storage, direction="minimize", load_if_exists=True
            )
            self._id = self._storage.get_study_id_from_name(name)
            self._heart = Heartbeat(self._storage)
            stack.callback(self._heart.stop)
            self._patiently = Patiently(
                address, say=say, missed=self._heart.missed, out_of_time=out_of_time
            )
            self._open = stack.pop_all()

    def close(self) -> None:
        """Leave the study; what could not be written yet is tried once more."""
        with suppress(*FAILURES):
            self._write_down()
        if self._unwritten:
            _LOG.warning("%d trials are not on record", len(self._unwritten))
        self._open.close()

    def no_study(self, why: str) -> CannotError:
        """The error for a study that cannot be used, and why."""
        where = without_password(self._address)
        return CannotError(
            f"the study in {where} cannot be used: {why}",
            hint="look at it with optuna-dashboard, or give another database with --storage",
        )

    def failed(self, error: Exception, *, writing: bool) -> CannotError:
        """What the database has said, and the cure."""
        known = isinstance(error, FAILURES)
        return cannot_use(self._address, error) if known else self.no_study(str(error))

    def past(self) -> list[tuple[Trial, Run]]:
        """None is gone on from before today's launch has run here; then they are ``news``."""
        return []

    def guide(self, sampler: PlanSampler) -> None:
        """Who proposes from now on."""
        self._sampler = sampler

    def _put(self, name: str, value: object) -> None:
        self._patiently(lambda: self._study.set_user_attr(name, value))

    # Claims

    def begin_baseline(self) -> None:
        """Start the trial of today's launch: each tuner measures its own."""
        self._claim(None, {}, {})

    def begin(self, space: SearchSpace, plan: Plan | None = None) -> Plan | None:
        """Claim a given plan, or what the sampler proposes; None where another was quicker."""
        assert self._sampler is not None, "nobody proposes yet"
        plan = plan or self._sampler.next_plan()
        if plan is None:
            return None
        number = self._claim(plan, space.values[plan], distributions(space))
        before = [trial for trial in self._trials() if trial.number < number and _holds(trial)]
        if len(before) >= self._budget - 1 or plan in map(self._plan, before):
            self.abandon()
            return None
        self._waits = False
        return plan

    def _claim(
        self, plan: Plan | None, params: Mapping[str, object], of: Mapping[str, object]
    ) -> int:
        """Write down that a plan is measured here from now on; the number of that trial."""
        told = {_OWNER: self._me, _PLAN: None if plan is None else plain(plan)}
        claim = create_trial(
            state=TrialState.RUNNING, params=dict(params), distributions=dict(of), user_attrs=told
        )
        trial = self._patiently(lambda: self._storage.create_new_trial(self._id, claim))
        self._running = trial
        self._patiently(lambda: self._heart.begin(trial))
        return int(self._patiently(lambda: self._storage.get_trial(trial)).number)

    def end(self, trial: Trial, run: Run) -> None:
        """Write the running trial down; where the server does not answer, later."""
        assert self._running is not None, "no trial was begun"
        if trial.plan.as_found:
            self._here = trial.samples_per_second
        self._unwritten.append((self._running, trial, run))
        self._running = None
        try:
            self._write_down()
        except FAILURES as error:
            self._heart.missed()
            self._say(f"{self._patiently.gone(error)}; the trial is kept here until it does")

    def abandon(self) -> None:
        """The running trial was interrupted, or another has its plan: the plan is free."""
        if self._running is not None:
            with suppress(Exception):
                self._storage.set_trial_state_values(self._running, TrialState.FAIL)
            self._heart.end(self._running)
            self._running = None

    def discard(self) -> None:
        """Nothing is removed: what others do in the study is not known."""

    def _write_down(self) -> None:
        while self._unwritten:
            id, trial, run = self._unwritten[0]
            try:
                self._write(id, trial, run)
            except RuntimeError:  # it is finished: taken for dead, or written by a call that failed
                _LOG.info("a trial was taken for dead before it could be written")
                self._write_anew(trial, run)
            self._unwritten.pop(0)
            self._heart.end(id)

    def _write(self, id: int, trial: Trial, run: Run) -> None:
        for step, seconds in intermediate(run).items():
            self._storage.set_trial_intermediate_value(id, step, seconds)
        for name, value in attributes(trial, run).items():
            self._storage.set_trial_user_attr(id, name, value)
        state, value = outcome(trial, run)
        self._storage.set_trial_state_values(id, state, None if value is None else [value])

    def _write_anew(self, trial: Trial, run: Run) -> None:
        """Put a trial on record whose claim is gone, where nobody else holds its plan."""
        held = [self._plan(t) for t in self._study.get_trials(deepcopy=False) if _holds(t)]
        if trial.plan.as_found or trial.plan in held:
            return
        state, value = outcome(trial, run)
        told = {_OWNER: self._me, _PLAN: plain(trial.plan), **attributes(trial, run)}
        self._study.add_trial(create_trial(state=state, value=value, user_attrs=told))

    # What the others do

    def news(self) -> list[OtherTrial]:
        """What others have measured since, as if it had been here; and what they measure now.

        Raises LostDatabase where the server does not answer for a minute.
        """
        self._patiently(self._write_down)
        self._patiently(self._free_the_dead)
        trials = [t for t in self._trials() if t.user_attrs.get(_OWNER) != self._me]
        running = [t for t in trials if t.state == TrialState.RUNNING]
        self.claimed = {plan for trial in running if (plan := self._plan(trial)) is not None}
        today = self._launches_of_today(trials)
        found = []
        for frozen in trials:
            if frozen.number in self._known or not is_on_record(frozen):
                continue
            self._known.add(frozen.number)
            told = self._told(frozen)
            if told is not None and frozen.user_attrs.get(_PLAN):
                there = today.get(frozen.user_attrs.get(_OWNER, ""))
                found.append(as_here(*told, there=there, here=self._here))
        return found

    def _launches_of_today(self, trials: Sequence[FrozenTrial]) -> Mapping[str, Throughput]:
        """How fast today's launch is on the machine of each tuner."""
        own = [t for t in trials if not t.user_attrs.get(_PLAN) and is_on_record(t)]
        return {
            str(frozen.user_attrs.get(_OWNER)): told[0].samples_per_second
            for frozen in own
            if (told := self._told(frozen)) is not None and told[0].samples_per_second is not None
        }

    def wait(self) -> None:
        """Wait a second for those who measure what is left."""
        if not self._waits:
            count = len(self.claimed)
            which = "a trial that another tuner runs" if count == 1 else f"{count} other trials"
            self._say(f"waiting for {which}: nothing else is left to measure")
        self._waits = True
        time.sleep(AGAIN_SECONDS)

    def _free_the_dead(self) -> None:
        """Tell the trials of tuners that died as failed.

        One that died before its first beat would be missed: it has one from us, once.
        """
        if not self._heart.is_sure:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self._study)
        now = time.monotonic()
        for frozen in self._study.get_trials(False, (TrialState.RUNNING,)):
            since = self._seen_since.setdefault(frozen.number, now)
            if since < now - GRACE_SECONDS:
                self._seen_since[frozen.number] = float("inf")
                trial = self._storage.get_trial_id_from_study_id_trial_number
                self._storage.record_heartbeat(trial(self._id, frozen.number))

    # The database

    def _trials(self) -> list[FrozenTrial]:
        found: list[FrozenTrial] = self._patiently(lambda: self._study.get_trials(deepcopy=False))
        return found

    def _plan(self, frozen: FrozenTrial) -> Plan | None:
        document = frozen.user_attrs.get(_PLAN)
        return None if document is None else self._record(Plan, document)


def _holds(frozen: FrozenTrial) -> bool:
    """Whether a trial holds its plan: it runs, or its end is on record."""
    running = frozen.state == TrialState.RUNNING
    return frozen.user_attrs.get(_PLAN) is not None and (running or is_on_record(frozen))
