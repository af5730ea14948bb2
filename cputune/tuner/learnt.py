"""What a study has learnt: from its own trials, those on record, and those of other tuners."""

from __future__ import annotations

import math
from dataclasses import replace

from cputune.errors import CannotError
from cputune.result import COMPLETED, FAILED, PRUNED, Trial
from cputune.steps import Contended, HostLost
from cputune.tuner.book import Book, Identity
from cputune.tuner.events import TrialEnded
from cputune.tuner.measuring import Measuring
from cputune.tuner.reading import Run
from cputune.tuner.sampler import History
from cputune.tuner.space import SearchSpace
from cputune.tuner.trials import was_disturbed

BUSY_ERROR = 0.1
"""Least standard error (log) of a trial on a machine that is never quiet."""


class Learnt:
    """The trials so far, as the sampler, the race and the findings of a study know them.

    Attributes:
        history: what the sampler learns from.
    """

    def __init__(self, measuring: Measuring, ledger: Book) -> None:
        self.history = History()
        self._measuring = measuring
        self._ledger = ledger
        self._next = 0
        self._not_for_here = 0

    @property
    def spent(self) -> int:
        """Trials of the budget that are over."""
        return len(self._measuring.findings.trials) + self._not_for_here

    def next_number(self) -> int:
        """The number of another trial."""
        self._next += 1
        return self._next - 1

    def take_up(self, identity: Identity, where: object) -> int:
        """Go on from the trials on record, which are kept ``where``; says how many.

        Those that others disturbed are run again: it may be quiet now. So are those of which a
        host was lost, which is there again. Raises CannotError where the record is of a study
        with another identity.
        """
        recorded = self._ledger.identity
        if recorded is None:
            self._ledger.identify(identity)
            return 0
        different = [name for name in identity if identity[name] != recorded.get(name)]
        if different:
            raise CannotError(
                f"the study in {where} is of another "
                + ", ".join(name.replace("_", " ") for name in different),
                hint="resume it as it was started, or give another file with --study",
            )
        all_told = self._ledger.past()
        self._next = max((trial.number + 1 for trial, _ in all_told), default=0)
        past = [
            (trial, run)
            for trial, run in all_told
            if not was_disturbed(trial) and trial.kind != HostLost.kind
        ]
        for trial, run in past:
            self.book(trial, run)
        self._measuring.timer.step_seconds = 0.0  # theirs were taken of another command's time
        return len(past)

    def hear_of_others(self, space: SearchSpace) -> None:
        """Learn from what other tuners of a shared study have measured, and are measuring."""
        for heard in self._ledger.news():
            if heard.trial.plan not in space.values:
                self._not_for_here += 1  # a place of the budget, of which nothing is learnt
                continue
            trial = replace(heard.trial, number=self.next_number())
            self.book(trial, heard.run, doubt=heard.error)
            self._measuring.on_event(TrialEnded(trial=trial))
        self.history.claimed = self._ledger.claimed

    def book(self, trial: Trial, run: Run, *, doubt: float = 0.0) -> None:
        """Take a trial into everything that is learnt from.

        ``doubt``: how unsure its speed is (log), beside what its own steps scatter.
        """
        past, race, findings = self.history, self._measuring.race, self._measuring.findings
        findings.trials.append(trial)
        here = 0.0 if trial.elsewhere else trial.step_seconds
        self._measuring.timer.step_seconds += here
        past.tried.add(trial.plan)
        past.seconds += here
        findings.compile_seconds = max(findings.compile_seconds, trial.compile_seconds)
        if trial.plan.as_found:
            self._measuring.reference = tuple(run.losses)
        if trial.state != FAILED and not findings.never_quiet:
            findings.saw_quiet = True
        if trial.state == FAILED:
            if trial.kind not in (Contended.kind, HostLost.kind):
                past.failed.append(trial.plan)
            return
        guess = race.lost(run.logs) if trial.state == PRUNED else race.estimate(run.logs)
        guess = replace(guess, error=math.hypot(guess.error, doubt))
        race.learn(run.logs, guess, completed=trial.state == COMPLETED)
        busy = BUSY_ERROR if was_disturbed(trial) else 0.0
        past.plans.append(trial.plan)
        past.logs.append(guess.center)
        past.errors.append(max(guess.error, busy))
        if not trial.elsewhere:
            past.when.append(past.seconds - here / 2)
