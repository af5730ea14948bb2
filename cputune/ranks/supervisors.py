"""The supervisors of one runner: one for each environment in which libraries are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cputune.ranks.listen import Post
from cputune.ranks.supervisor import Supervisor
from cputune.ranks.work_folder import WorkFolder

MOST = 6
"""So many are kept, those used last; one that has imported torch takes about 300 MB."""


class Supervisors:
    """Those that are ready for another plan."""

    def __init__(self, post: Post, work: WorkFolder, on_note: Callable[[str], None]) -> None:
        self._post = post
        self._work = work
        self._on_note = on_note
        self._kept: dict[frozenset[tuple[str, ...]], Supervisor] = {}

    def ready(self, environment: Mapping[str, str], modules: Sequence[str]) -> Supervisor:
        """One with this environment that has imported these modules.

        Raises Crashed or TimedOut where a new one does not come up.
        """
        key = frozenset({*environment.items(), ("modules", *modules)})
        supervisor = self._kept.pop(key, None)
        if supervisor is not None and not supervisor.alive:
            supervisor.close()
            supervisor = None
        if supervisor is None:
            supervisor = self._start(environment, modules)
        self._kept[key] = supervisor  # the last used is the last to go
        return supervisor

    def close(self) -> None:
        """End all of them."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _start(self, environment: Mapping[str, str], modules: Sequence[str]) -> Supervisor:
        while len(self._kept) >= MOST:
            self._kept.pop(next(iter(self._kept))).close()
        if modules:
            self._on_note("importing " + ", ".join(m.split(".")[0] for m in modules[:2]))
        supervisor = Supervisor(environment, modules, self._work)
        try:
            supervisor.join(self._post)
        except BaseException:
            supervisor.close()
            raise
        if supervisor.unsafe_threads:
            self._on_note(
                "ranks are started as new processes: importing the training stack starts "
                "threads (" + ", ".join(supervisor.unsafe_threads) + ")"
            )
        return supervisor
