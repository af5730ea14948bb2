"""The supervisors of one runner: on each machine one for each environment of libraries."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from cputune.plan import Plan
from cputune.ranks.listen import Post
from cputune.ranks.place import Place
from cputune.ranks.supervisor import Supervisor, join_all, names_of
from cputune.ranks.work_folder import WorkFolder
from cputune.workload import Workload

MOST = 6
"""So many are kept on each machine, those used last; one that has imported torch takes about
300 MB."""

Wanted = tuple[Place, Mapping[str, str]]
"""Where a supervisor is to run, and with which environment."""

Key = tuple[str, frozenset[tuple[str, ...]]]
"""The machine of a supervisor; its environment and what it has imported."""


class Supervisors:
    """Those that are ready for another plan."""

    def __init__(self, post: Post, work: WorkFolder, on_note: Callable[[str], None]) -> None:
        self._post = post
        self._work = work
        self._on_note = on_note
        self._kept: dict[Key, Supervisor] = {}

    def ready(
        self,
        wanted: Sequence[Wanted],
        modules: Sequence[str],
        most_seconds: float = math.inf,
    ) -> tuple[Supervisor, ...]:
        """One on each machine, with its environment, that has imported these modules.

        Those that are new import side by side. Raises Crashed or TimedOut where one does not come
        up, TimeUp where it takes longer than ``most_seconds``, HostLost.
        """
        keys = [
            (place.name, frozenset({*environment.items(), ("modules", *modules)}))
            for place, environment in wanted
        ]
        new: dict[Key, Supervisor] = {}
        try:
            for key, (place, environment) in zip(keys, wanted, strict=True):
                if not self._take_up(key):
                    self._make_room(place.name)
                    new[key] = Supervisor(environment, modules, self._work, place.start)
            if new:
                self._join(new, modules, most_seconds)
        except BaseException:
            for supervisor in new.values():
                supervisor.kill()  # it would not listen before all is imported
                supervisor.close()
            raise
        self._kept.update(new)
        return tuple(self._kept[key] for key in keys)

    def close(self) -> None:
        """End all of them."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _take_up(self, key: Key) -> bool:
        """Whether there is one that still lives; it is the last to go then."""
        supervisor = self._kept.pop(key, None)
        if supervisor is None:
            return False
        if not supervisor.alive:
            supervisor.close()
            return False
        self._kept[key] = supervisor
        return True

    def _make_room(self, place: str) -> None:
        there = [key for key in self._kept if key[0] == place]
        while len(there) >= MOST:
            self._kept.pop(there.pop(0)).close()

    def _join(
        self, new: Mapping[Key, Supervisor], modules: Sequence[str], most_seconds: float
    ) -> None:
        if modules:
            self._on_note(f"importing {names_of(modules)}")
        join_all(tuple(new.values()), self._post, most_seconds)
        unsafe = {name for supervisor in new.values() for name in supervisor.unsafe_threads}
        if unsafe:
            self._on_note(
                "ranks are started as new processes: importing the training stack starts "
                "threads (" + ", ".join(sorted(unsafe)) + ")"
            )


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
