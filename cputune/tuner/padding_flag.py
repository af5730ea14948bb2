"""What the script's own flag against padding brings, where padding may not be cut for it.

``run_qa.py`` and its like pad each sample to the longest there may be, and their loss counts it;
``--pad_to_max_length False`` trains otherwise, which is the user's to decide. So it is no plan: the
best plan is measured beside itself with the flag, in one block of turns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial

from cputune.levers import LEAST_SHARE
from cputune.plan import Plan
from cputune.steps import LearningRunner, Living, LivingRunner, PunctualRunner, Runner
from cputune.tuner.blocks import TooShort
from cputune.tuner.confirmation import TELL_APART_SECONDS, Confirmation
from cputune.tuner.events import Said
from cputune.tuner.gains import LOOK_DOUBT, Contender, gain_of
from cputune.tuner.living import most_living
from cputune.tuner.measuring import Findings, Measuring
from cputune.workload import Workload


def with_flag(workload: Workload) -> Workload | None:
    """The job with its script told to pad less; None where it pads little or has no such flag."""
    padding = workload.padding
    if padding is None or padding.kept is None or padding.mend is None:
        return None
    if padding.share < LEAST_SHARE:
        return None
    first, *rest = padding.mend.split()
    dropped, added = (rest, []) if first == "without" else ([], [first, *rest])

    def told(words: tuple[str, ...]) -> tuple[str, ...]:
        return (*(word for word in words if word not in dropped), *added) if words else ()

    argv, launch = told(workload.argv), told(workload.launch)
    return replace(workload, argv=argv, launch=launch, padding=None, training=None)


class _Either:
    """Two runners as one: this very plan by the second, all else by the first."""

    def __init__(self, runner: LivingRunner, other: LivingRunner, plan: Plan) -> None:
        self._runner, self._other, self._plan = runner, other, plan
        self.steps = runner.steps

    def living(self, plan: Plan) -> Living:
        """As the runner's."""
        return (self._other if plan is self._plan else self._runner).living(plan)


def gain_of_flag(
    measuring: Measuring,
    workload: Workload,
    plan: Plan,
    open_runner: Callable[[Workload, bool], AbstractContextManager[Runner]],
) -> tuple[float, float] | None:
    """How many times as fast the flag makes this plan, at least and at most.

    None where there is no flag, no time, no memory for two, or a runner that takes no other words.
    """
    other, padding = with_flag(workload), workload.padding
    needed = 2 * measuring.start_seconds + 2 * TELL_APART_SECONDS
    if other is None or padding is None or measuring.timer.left(1.0) < needed:
        return None
    if most_living(measuring.facts, measuring.findings.trials) < 2:
        return None
    baseline = Contender(role="baseline", plan=plan)
    rival = Contender(role="candidate", plan=replace(plan))
    # Its losses are others, and its rounds no part of the confirmation.
    findings = Findings(shared=measuring.findings.shared)
    own = replace(measuring, findings=findings, reference=(), on_event=lambda event: None)
    with open_runner(workload, True) as typed, open_runner(other, True) as told:
        if not (isinstance(typed, LivingRunner) and isinstance(told, LivingRunner)):
            return None
        if not isinstance(told, LearningRunner) or told.workload.argv != other.argv:
            return None
        for one in (typed, told):
            if isinstance(one, PunctualRunner):
                one.keep_to(partial(measuring.timer.left, 1.0))
        measuring.on_event(Said(text=f"measuring what {padding.mend} brings"))
        with suppress(TooShort):
            both = _Either(typed, told, rival.plan)
            Confirmation(own, baseline, (rival,)).tell_apart(both)
    gain = gain_of(baseline, rival, measuring.race.noise.deviation, doubt=LOOK_DOUBT)
    return None if gain is None or rival.out else (gain.speedup.low, gain.speedup.high)
