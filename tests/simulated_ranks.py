"""A tune in this process whose trials are played: no rank is started, nothing is measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import pytest

import cputune.host.probing.load
import cputune.ranks.runner
from cputune import HostFacts, Plan, Step, Workload
from cputune.host import locks

Script = Callable[[Plan], Iterable[Step]]


class FakeProcessRunner:
    """Plays ``script`` as the steps of each plan, in the place of the runner of real processes.

    ``opened`` are the workloads that it was made for, and whether with new processes.
    """

    script: Script
    opened: ClassVar[list[tuple[Workload, bool]]] = []

    def __init__(self, workload: Workload, facts: Any, *, fresh: bool = False, **_: Any) -> None:
        self.workload = workload
        self.opened.append((workload, fresh))

    def steps(self, plan: Plan) -> Iterator[Step]:
        yield from type(self).script(plan)

    def __enter__(self) -> FakeProcessRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def simulate(
    patch: pytest.MonkeyPatch, seconds: Callable[[Plan], float], facts: HostFacts | None = None
) -> type[FakeProcessRunner]:
    """Let a step of 8 samples take so long on the machine of these facts, until it is undone."""

    def endless(plan: Plan) -> Iterator[Step]:
        while True:
            yield Step(seconds=seconds(plan), samples=8)

    class Runner(FakeProcessRunner):
        script = staticmethod(endless)
        opened: ClassVar[list[tuple[Workload, bool]]] = []

    patch.setattr(cputune.ranks.runner, "ProcessRunner", Runner)
    patch.setattr(locks, "MEASURING", f"\0cputune.test.{os.getpid()}")
    patch.setattr(cputune.host.probing.load, "look_around", lambda host: ())
    if facts is not None:
        patch.setattr(cputune.host.probing, "probe", lambda host=None, watched=True: facts)
    return Runner
