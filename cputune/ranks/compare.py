"""What the ranks see, held against the plan: one judge, for trials and for launches. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cputune.inside.messages import RankState
from cputune.knobs import KNOBS
from cputune.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One thing that a rank shows, beside what the plan says of it.

    ``rank`` is the global one. ``seen`` is None where the rank does not show it;
    ``unknown`` then says why, where that is known. ``by_cpu_number``: see ``Shown``.
    """

    what: str
    rank: int
    expected: str
    seen: str | None
    unknown: str | None = None
    by_cpu_number: bool

    @property
    def differs(self) -> bool:
        """Whether the rank shows another value than the plan's."""
        return self.seen is not None and self.seen != self.expected


def compare(plan: Plan, states: Sequence[tuple[int, RankState]]) -> tuple[Comparison, ...]:
    """Everything that the plan says, beside what each rank (number, state) shows.

    Each against the CPUs of its own node; launchers number the ranks node by node. Nothing
    is compared for a plan that is run as found.
    """
    if plan.as_found:
        return ()
    return tuple(
        Comparison(
            what=shown.what,
            rank=rank,
            expected=str(expected),
            seen=None if (seen := shown.seen(plan, state)) is None else str(seen) or "none",
            unknown=shown.unknown(state),
            by_cpu_number=shown.by_cpu_number,
        )
        for knob in KNOBS
        for shown in knob.shown
        for rank, state in states
        if (expected := shown.expected(_of_rank(plan, rank), rank % plan.processes_per_node))
        is not None
    )


def _of_rank(plan: Plan, rank: int) -> Plan:
    return plan.of_node(min(rank // plan.processes_per_node, plan.nodes - 1))


def differences(plan: Plan, states: Sequence[RankState]) -> tuple[str, ...]:
    """Where a rank's effective state is not the plan's, in words with both values."""
    wrong = [row for row in compare(plan, tuple(enumerate(states))) if row.differs]
    ranks: dict[tuple[str, str, str | None], list[int]] = {}
    for row in wrong:
        ranks.setdefault((row.what, row.expected, row.seen), []).append(row.rank)
    return tuple(
        f"{what}{_of(numbers, len(states))}: {seen}, the plan says {expected}"
        for (what, expected, seen), numbers in ranks.items()
    )


def _of(ranks: Sequence[int], world: int) -> str:
    """Which ranks are meant; nothing where it is all of them."""
    return "" if len(ranks) == world else f" of rank {', '.join(map(str, ranks))}"
