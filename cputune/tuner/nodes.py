"""Runs several trials at once, each on a node of its own, where a plan needs fewer than there are.

A plan of one node may run on any node that is of the same kind as the first. Even such nodes differ
in speed. So today's launch is measured on each node before any other plan. A trial there counts as
a ratio to it, and its time is converted to the first node (``slower_by``). Plans of several nodes
always run on the first nodes. The confirmation always runs on the first nodes, too.

Each trial is read in a thread of its own, with what was known of the others when it began.
Everything else, events included, happens in the thread of the study.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from cputune.plan import Plan
from cputune.result import Origin, Throughput, Trial, host_fingerprint
from cputune.steps import Runner, SpreadingRunner
from cputune.tuner.events import Event, Said
from cputune.tuner.measuring import Measuring, speed
from cputune.tuner.race import WANDER, Z95
from cputune.tuner.reading import Run

if TYPE_CHECKING:
    from cputune.facts import HostFacts
    from cputune.ranks.hosts import RankHosts

MOST_AT_ONCE = 4
"""The most trials at once: each one that begins before another has ended is proposed without
knowing its speed."""


def slower_by(there: Throughput, here: Throughput) -> tuple[float, float]:
    """How much longer steps take there than here (log), by today's launch; its standard error."""
    return math.log(here.median / there.median), math.hypot(_error(there), _error(here))


def _error(rate: Throughput) -> float:
    """Standard error of the logarithm, from the 95 % interval."""
    return math.log(rate.high / rate.low) / (2 * Z95) if rate.low > 0 else WANDER


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A plan that is run, and what was read of it.

    ``number`` is the trial's; None for today's launch on another node. ``nodes`` are those that it
    runs on; none where all runs are on one machine. ``slower`` and ``doubt`` are what ``slower_by``
    gave. ``error`` is an exception that its thread raised.
    """

    number: int | None
    plan: Plan
    origin: Origin
    runner: Runner
    measuring: Measuring
    nodes: tuple[str, ...] = ()
    slower: float = 0.0
    doubt: float = 0.0
    run: Run = field(default_factory=Run)
    seconds: float = 0.0
    error: BaseException | None = None

    def measure(self) -> None:
        """Run it until it has steps enough."""
        self.run, self.seconds = self.measuring.quiet_run(self.runner, self.plan, self.number)


class Nodes:
    """The nodes of a search: which are busy, and how fast today's launch is on each.

    No two trials run at once where no other node is of the kind of the first, or where today's
    launch did not run there.
    """

    def __init__(
        self, runner: Runner, hosts: RankHosts | None, today: Trial | None, measuring: Measuring
    ) -> None:
        self._runner = runner
        self._hosts = hosts
        self._measuring = measuring
        self._running: dict[int, tuple[Attempt, Thread]] = {}
        self._told: SimpleQueue[Event | Attempt] = SimpleQueue()
        self._opened = ExitStack()
        self._runners: dict[str, Runner] = {}
        self._others: list[str] = []
        self._today = today
        self._speeds: dict[str, Throughput] = {}
        if hosts is None or today is None or today.samples_per_second is None:
            return
        if isinstance(runner, SpreadingRunner):
            (first, facts), *others = hosts.facts
            self._speeds[first] = self._here = today.samples_per_second
            alike = [name for name, one in others if _alike(facts, one)]
            self._others = alike[: MOST_AT_ONCE - 1]

    @property
    def trials(self) -> int:
        """How many trials run now."""
        return sum(attempt.number is not None for attempt, _ in self._running.values())

    def free_for(self, plan: Plan, to_come: int) -> tuple[str, ...] | None:
        """The nodes for a plan; None where it has to wait for those that are busy.

        ``to_come`` is how many trials may still begin. Where more of them are for one node than
        nodes are known, today's launch is started on another node.
        """
        if self._hosts is None or not self._others:
            return ()
        busy = {name for attempt, _ in self._running.values() for name in attempt.nodes}
        names = self._hosts.names
        if plan.nodes > 1:
            return None if busy.intersection(names[: plan.nodes]) else names[: plan.nodes]
        known = [name for name in names if name == names[0] or name in self._speeds]
        free = [name for name in known if name not in busy]
        if free:
            return (free[0],)
        unknown = [name for name in self._others if name in names and name not in (*known, *busy)]
        for name in unknown[: max(0, to_come - 1 - len(self._running) + self.trials)]:
            self._get_to_know(name)
        return None

    def attempt(self, plan: Plan, nodes: tuple[str, ...], number: int, origin: Origin) -> Attempt:
        """Prepare a trial on these nodes; a node other than the first has its own runner."""
        runner, measuring, slower, doubt = self._runner, self._measuring, 0.0, 0.0
        if nodes:
            there = self._speeds.get(nodes[0], self._here)
            if there is not self._here:
                slower, doubt = slower_by(there, self._here)
            runner = self._on(nodes[0])
            measuring = measuring.beside(measuring.race.shifted(slower), self._told.put)
        return Attempt(
            number=number,
            plan=plan,
            origin=origin,
            runner=runner,
            measuring=measuring,
            nodes=nodes,
            slower=slower,
            doubt=doubt,
        )

    def start(self, attempt: Attempt) -> None:
        """Measure it in a thread of its own."""
        thread = Thread(target=self._measure, args=(attempt,), daemon=True)
        self._running[id(attempt)] = attempt, thread
        thread.start()

    def next_ended(self) -> Attempt:
        """Wait for the next attempt that ends, and pass on events meanwhile."""
        while not isinstance(told := self._told.get(), Attempt):
            self._measuring.on_event(told)
        _, thread = self._running.pop(id(told))
        thread.join()
        if told.error is not None:
            raise told.error
        if told.number is None:
            self._know(told)
        return told

    def close(self) -> None:
        """End all attempts that still run."""
        for attempt, _ in self._running.values():
            attempt.measuring.timer.most_seconds = 0.0
        for _, thread in self._running.values():
            thread.join()
        self._opened.close()

    def _on(self, node: str) -> Runner:
        """The runner for a node; the one that is first now has the runner of the study."""
        assert self._hosts is not None
        if node == self._hosts.names[0]:
            return self._runner
        if node not in self._runners:
            assert isinstance(self._runner, SpreadingRunner)
            opened = self._runner.on(node, self._say)
            self._runners[node] = self._opened.enter_context(opened)
        return self._runners[node]

    def _say(self, text: str) -> None:
        self._told.put(Said(text=text))

    def _measure(self, attempt: Attempt) -> None:
        try:
            attempt.measure()
        except BaseException as error:
            attempt.error = error
        self._told.put(attempt)

    def _get_to_know(self, node: str) -> None:
        """Start today's launch on another node. It is no trial, and its steps are not shown."""
        assert self._today is not None
        race = self._measuring.race.shifted(0.0)
        race.fastest = race.expected = None
        self._say(f"today's launch is measured on {node}, to compare what runs there")
        self.start(
            Attempt(
                number=None,
                plan=self._today.plan,
                origin="baseline",
                runner=self._on(node),
                measuring=self._measuring.beside(race, lambda event: None),
                nodes=(node,),
            )
        )

    def _know(self, attempt: Attempt) -> None:
        (node,), run = attempt.nodes, attempt.run
        if run.failure is not None or run.cut is not None or not run.logs:
            self._others.remove(node)
            why = run.failure or run.cut
            self._measuring.on_event(Said(text=f"no trial runs on {node} alone: {why}"))
            return
        self._speeds[node] = speed(attempt.measuring.race.estimate(run.logs))


def _alike(first: HostFacts, other: HostFacts) -> bool:
    """Whether a plan of one node means the same on both nodes: it names CPUs."""
    cores = first.topology.allowed_cores == other.topology.allowed_cores
    return cores and host_fingerprint(first) == host_fingerprint(other)
