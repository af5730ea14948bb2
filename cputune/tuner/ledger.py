"""The study's book: an Optuna study in which every trial is written as it ends.

In memory, or in an SQLite file that ``optuna-dashboard`` opens and that a later
``--resume`` goes on from. The value of a trial is seconds per sample; what cputune knows
beside it stands in the trial's user attributes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState

from cputune.documents import plain, record_of
from cputune.errors import CannotError
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, PRUNED, Trial
from cputune.tuner.reading import Run
from cputune.tuner.sampler import distributions
from cputune.tuner.space import SearchSpace
from cputune.workload import Workload

STUDY_NAME = "cputune"

_IDENTITY, _WORKLOAD = "cputune.identity", "cputune.workload"
_TRIAL, _RUN = "cputune.trial", "cputune.run"

Identity = Mapping[str, Any]
"""What must be the same for a study to be gone on with: plain JSON values by name."""


class Ledger:
    """Trials on record, and the one that runs."""

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        """Open the study; with a path in SQLite. Raises CannotError."""
        self._path = path
        storage = None if path is None else f"sqlite:///{path}"
        try:
            self._study = optuna.create_study(
                study_name=STUDY_NAME, storage=storage, direction="minimize", load_if_exists=resume
            )
        except optuna.exceptions.DuplicatedStudyError as error:
            raise CannotError(
                f"{path} holds a study already",
                hint="--resume goes on with it, --force starts over",
            ) from error
        except Exception as error:  # SQLAlchemy's own tree, which optuna lets through
            raise CannotError(
                f"{path} cannot be opened as a study: {_first_line(error)}",
                hint="give another file with --study",
            ) from error
        self._running: OptunaTrial | None = None

    @property
    def identity(self) -> Identity | None:
        """What the study on record is of; None for a new one."""
        found = self._study.user_attrs.get(_IDENTITY)
        return found if isinstance(found, Mapping) else None

    def identify(self, identity: Identity) -> None:
        """Write down what this study is of."""
        self._study.set_user_attr(_IDENTITY, dict(identity))

    @property
    def workload(self) -> Workload | None:
        """The workload as its first trial has shown it; None before that."""
        found = self._study.user_attrs.get(_WORKLOAD)
        return None if found is None else Workload.from_json(found)

    def remember(self, workload: Workload) -> None:
        """Write down what the first trial has shown of the workload."""
        self._study.set_user_attr(_WORKLOAD, workload.to_json())

    def past(self) -> list[tuple[Trial, Run]]:
        """The trials on record, in order; one that was cut off is told as failed and left out."""
        found = []
        for frozen in self._study.get_trials(deepcopy=False):
            if frozen.state == TrialState.RUNNING:
                self._study.tell(frozen.number, state=TrialState.FAIL)
            document = frozen.user_attrs.get(_TRIAL)
            if document is not None:
                run = frozen.user_attrs.get(_RUN, {})
                found.append(
                    (
                        record_of(Trial, document),
                        Run(logs=run.get("logs", []), losses=run.get("losses", [])),
                    )
                )
        return found

    def guide(self, sampler: BaseSampler) -> None:
        """Who proposes from now on."""
        self._study.sampler = sampler

    def begin_baseline(self) -> None:
        """Start the trial of today's launch, which has no knobs."""
        self._running = self._study.ask()

    def begin(self, space: SearchSpace, plan: Plan | None = None) -> Plan:
        """Start the next trial: a given plan of the space, or what the sampler proposes."""
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
        for index, value in enumerate(run.logs):
            running.report(math.exp(value), index)
        running.set_user_attr("plan", trial.plan.describe())
        running.set_user_attr("origin", trial.origin)
        if trial.reason is not None:
            running.set_user_attr("reason", trial.reason)
        losses = [v if v is None or math.isfinite(v) else None for v in run.losses]
        running.set_user_attr(_RUN, {"logs": run.logs, "losses": losses})
        running.set_user_attr(_TRIAL, plain(trial))
        self._running = None
        if trial.state == COMPLETED:
            assert trial.samples_per_second is not None
            self._study.tell(running, 1 / trial.samples_per_second.median)
        else:
            state = {PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}[trial.state]
            self._study.tell(running, state=state)

    def discard(self) -> None:
        """Remove the file of a study that never had a trial."""
        if self._path is not None:
            optuna.delete_study(study_name=STUDY_NAME, storage=f"sqlite:///{self._path}")
            self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """The running trial was interrupted: it counts as failed and is not on record."""
        if self._running is not None:
            self._study.tell(self._running, state=TrialState.FAIL)
            self._running = None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
