"""The supervisors of one runner: one for each environment in which libraries are loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from cputune.plan import Plan
from cputune.ranks.listen import Post
from cputune.ranks.supervisor import Supervisor, names_of
from cputune.ranks.work_folder import WorkFolder
from cputune.workload import Workload

MOST = 6
"""So many are kept, those used last; one that has imported torch takes about 300 MB."""


class Supervisors:
    """Those that are ready for another plan."""

    def __init__(self, post: Post, work: WorkFolder, on_note: Callable[[str], None]) -> None:
        self._post = post
        self._work = work
        self._on_note = on_note
        self._kept: dict[frozenset[tuple[str, ...]], Supervisor] = {}

    def ready(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        most_seconds: float = math.inf,
    ) -> Supervisor:
        """One with this environment that has imported these modules.

        Raises Crashed or TimedOut where a new one does not come up, TimeUp where it takes
        longer than ``most_seconds``.
        """
        key = frozenset({*environment.items(), ("modules", *modules)})
        supervisor = self._kept.pop(key, None)
        if supervisor is not None and not supervisor.alive:
            supervisor.close()
            supervisor = None
        if supervisor is None:
            supervisor = self._start(environment, modules, most_seconds)
        self._kept[key] = supervisor  # the last used is the last to go
        return supervisor

    def close(self) -> None:
        """End all of them."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _start(
        self, environment: Mapping[str, str], modules: Sequence[str], most_seconds: float
    ) -> Supervisor:
        while len(self._kept) >= MOST:
            self._kept.pop(next(iter(self._kept))).close()
        if modules:
            self._on_note(f"importing {names_of(modules)}")
        supervisor = Supervisor(environment, modules, self._work)
        try:
            supervisor.join(self._post, most_seconds)
        except BaseException:
            supervisor.kill()  # it would not listen before all is imported
            supervisor.close()
            raise
        if supervisor.unsafe_threads:
            self._on_note(
                "ranks are started as new processes: importing the training stack starts "
                "threads (" + ", ".join(supervisor.unsafe_threads) + ")"
            )
        return supervisor


def modules_of(plan: Plan, workload: Workload, source: str) -> tuple[str, ...]:
    """What the parent of forks imports; nothing where ranks must be new processes.

    A script (its text is ``source``) that sets variables itself may mean some that are
    read at import. libgomp counts the CPUs that it may use when it is loaded, and waits
    differently with more threads than that (gomp_init_num_threads), so such plans are not
    forked either.
    """
    if plan.oversubscribed:
        return ()
    ipex = ("intel_extension_for_pytorch",) if plan.ipex else ()
    recipe = workload.recipe
    if recipe is not None:
        kind = recipe.model["model_type"].replace("-", "_")
        family = f"transformers.models.{kind}.modeling_{kind}"
        return ("torch", *ipex, "transformers.trainer", "transformers.hf_argparser", family)
    if re.search(r"\benviron\b|\bputenv\b", source):
        return ()
    found = ["torch", *ipex]
    found += ["transformers.trainer"] if "Trainer" in source else []
    for name in ("accelerate", "transformers", "datasets", "evaluate"):
        if re.search(rf"\b{name}\b", source):
            found.append(name)
    return tuple(found)
