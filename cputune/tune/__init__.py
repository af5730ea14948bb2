"""HostFacts + Workload → Result: the search space, the study, the measuring, the confirming.

``cputune.tune(job)`` tunes; ``cputune.search_space(facts, job)`` says what it would try.
Optuna is imported when a study starts, not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cputune._callable import make_callable

if TYPE_CHECKING:
    from cputune.facts import HostFacts
    from cputune.tune.space import SearchSpace
    from cputune.workload import Workload


def search_space(
    facts: HostFacts,
    job: Workload,
    *,
    knobs: Iterable[str] | None = None,
    fix: Mapping[str, Any] | None = None,
    allow_slow_precision: bool = False,
) -> SearchSpace:
    """Every plan that this machine can run for this job, and what was left out and why.

    ``knobs`` names what is varied (all of it by default; the rest stays as it is today),
    ``fix`` holds a knob at a value. ``allow_slow_precision`` offers bf16 on a CPU that
    does not multiply it in hardware. Raises UsageError for an unknown knob and for a
    value that no plan of this machine can have.
    """
    from cputune.tune.space import build_space

    return build_space(facts, job, vary=knobs, fix=fix, allow_slow_precision=allow_slow_precision)


def tune(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError


make_callable(__name__, tune)
