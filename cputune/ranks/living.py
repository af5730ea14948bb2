"""A plan whose processes live beside others: they take steps in turn, and else stand still.

Whatever the machine does then hits all plans alike, and a ratio within one round of turns
says what of it is the plans'. A stopped process costs its memory alone: OpenMP's threads
do not spin, oneCCL's workers do not poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cputune.plan import Plan
from cputune.steps import Step

if TYPE_CHECKING:
    from cputune.ranks.runner import ProcessRunner


class LivingPlan:
    """The processes of one plan; they start at once, and stand still after each turn."""

    def __init__(self, runner: ProcessRunner, plan: Plan) -> None:
        self._runner = runner
        self._closed = False
        runner.begin(plan)
        self._steps = runner.steps(plan)

    def turn(self, steps: int) -> Sequence[Step]:
        """Let the plan take so many steps, then stop it; the first turn waits for its start.

        The ranks wait between two steps when they are stopped. Raises TrialError where the
        plan fails; nothing of it is left then.
        """
        self._runner.turn(steps)
        taken = tuple([next(self._steps) for _ in range(steps)])
        self._runner.stand_still()
        return taken

    def close(self) -> None:
        """End every process of it, and remove their files; a second time does nothing."""
        if not self._closed:
            self._closed = True
            self._runner.close()
