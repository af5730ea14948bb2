"""The best plan of an earlier result of the same command and machine, which a study tries first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from cputune.plans.plan import Plan
from cputune.records.claims import EQUIVALENT, FASTER, Speedup, factor

Text = Annotated[str, Meta(max_length=4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What became of the plan of an earlier result.

    Attributes:
        created: when it was measured.
        changes: what changed since then: ``torch 2.12.0 → 2.13.0``.
        speedup: its ratio over the launch of that time.
        gain: the ratio of the best plan over it, now. None if they are the same plan, or if they
            were not compared side by side.
        is_best: the best plan is the same one.
        not_tried: why it was not tried again.
    """

    created: Text | None
    changes: Annotated[tuple[Text, ...], Meta(max_length=64)]
    plan: Plan
    speedup: Speedup | None = None
    gain: Speedup | None = None
    is_best: bool = False
    not_tried: Text | None = None

    def text(self, speedup: Speedup | None) -> str:
        """``torch 2.12.0 → 2.13.0: your plan is still the best``.

        ``speedup`` is the ratio of the best plan over the launch, now.
        """
        since = "; ".join(self.changes) or "Nothing that is known has changed"
        return f"{since}: {self._outcome(speedup)}."

    def _outcome(self, speedup: Speedup | None) -> str:
        if self.not_tried is not None:
            return f"your plan was not tried again, {self.not_tried}"
        if self.is_best:
            text = "your plan is still the best"
            if speedup is not None:
                text += f", {factor(speedup)} over your launch"
                if self.speedup is not None and self.speedup.narrow:
                    text += f" ({factor(self.speedup)} then)"
            return text
        if self.gain is None and speedup is None:
            return "your plan was tried again, and nothing was compared"
        if self.gain is None:
            return "another plan is the best now; the two were not compared side by side"
        if self.gain.outcome == FASTER:
            return f"another plan is the best now, {factor(self.gain)} over yours"
        if self.gain.outcome == EQUIVALENT:
            return f"your plan is still as fast as the best, which is {factor(self.gain)} over it"
        return f"your plan may still be the best: the best one here is {factor(self.gain)} over it"
