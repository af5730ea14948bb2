"""The part of the space that the cores decide: ranks, threads, siblings, oneCCL workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import cast

from cputune.host.facts import Core, HostFacts
from cputune.plans.cores import paid_cores, usable_cores
from cputune.plans.knobs.affinity import ALL, node_counts
from cputune.plans.knobs.record import Ask, LeftOut
from cputune.plans.layout import make_plan, thinkable_ranks, thread_counts, why_not_ranks
from cputune.plans.memory import HALF, needed_bytes, room_bytes
from cputune.plans.placing import groups, rank_slices
from cputune.plans.plan import Plan
from cputune.plans.values import Backend, KnobValue
from cputune.plans.workload import Workload
from cputune.stack import LEAST_CCL_WORKERS
from cputune.text import cpulist

# Workers of a rank: oneCCL's default is 1; more than 4 leave too few cores. Assumed.
CCL_WORKER_COUNTS = (1, 2, 4)

# The beginning of the reason for ranks that cannot divide the batch.
UNDIVIDED = "a rank per NUMA node"

Values = Mapping[str, KnobValue]


@dataclass(slots=True, kw_only=True)
class Layouts:
    """Every layout of ranks on the cores of a machine, or of several alike, in plain fp32.

    ``facts`` are the first one's. ``value_bytes``: see ``needed_bytes``. ``left_out`` is filled
    while ``plans()`` is iterated.
    """

    facts: HostFacts
    workload: Workload
    ask: Ask
    backends: tuple[KnobValue, ...]
    value_bytes: int = HALF
    left_out: list[LeftOut] = field(default_factory=list)
    _refused: dict[int, str] = field(default_factory=dict)
    _smt_refused: bool = False
    _unfit: dict[int, str] = field(default_factory=dict)
    _fitting: set[int] = field(default_factory=set)
    _no_ccl_between: bool = False

    def plans(self) -> Iterator[tuple[Plan, Values]]:
        """Every layout with its knob values; some appear twice."""
        taken: set[int] = set()
        cores = usable_cores(self.facts)
        for nodes in self._node_counts():
            for ranks in self._ranks(cores, nodes):
                for plan, values in self._of_ranks(cores, ranks, nodes):
                    taken.add(ranks)
                    self._fitting.add(nodes)
                    yield replace(plan, nodes=nodes), {**values, "nodes": nodes, "ranks": ranks}
        self._say_why(cores, taken)

    def _node_counts(self) -> Sequence[int]:
        """The numbers of nodes for which plans are laid out."""
        there = max(1, len(self.ask.hosts))
        wanted = self.ask.fixed.get("nodes")
        if wanted is None:
            return node_counts(there)
        if int(wanted) <= there:
            return (int(wanted),)
        count = "one host"
        if there != 1:
            count = f"{there} hosts"
        self._leave_out(f"nodes={wanted}", f"{count} can be used (--hosts names more)")
        return ()

    def _ranks(self, cores: tuple[Core, ...], nodes: int) -> Iterator[int]:
        fixed = self.ask.fixed.get("ranks")
        sockets = len({core.socket for core in self.facts.topology.allowed_cores})
        counts = sorted({*range(1, sockets + 1), *thinkable_ranks(cores)})
        if fixed is not None:
            counts = [int(fixed)]
        for ranks in counts if cores else ():
            reason = self._why_not(cores, ranks, nodes, is_fixed=fixed is not None)
            if reason is None:
                yield ranks
            else:
                self._refused.setdefault(ranks, reason)
                if nodes > 1:
                    self._unfit.setdefault(nodes, f"{_ranks_each(ranks)}: {reason}")

    def _why_not(
        self, cores: tuple[Core, ...], ranks: int, nodes: int, *, is_fixed: bool
    ) -> str | None:
        if ranks > len(cores):
            count = "one core" if len(cores) == 1 else f"{len(cores)} cores"
            return f"each rank needs a core; {count} can be used"
        if not is_fixed:
            reason = why_not_ranks(cores, ranks, paid=paid_cores(self.facts))
            if reason is not None:
                return reason
        try:
            self.workload.samples_per_rank(ranks * nodes)
        except ValueError:
            if ranks == len(groups(cores, by_node=True)) > 1:
                return self._why_not_each_node(ranks * nodes)
            return (
                f"a global batch of {self.workload.global_batch_size} cannot be divided over "
                "this number of "
                "ranks (--batch-per-rank keeps each rank's batch instead)"
            )
        typed = self.workload.training
        if ranks * nodes != self.workload.launch_ranks:
            refusal = self.workload.refuses_ranks(ranks * nodes)
            if refusal is not None:
                return f"they would not train equivalently: {refusal}"
            strict = self.ask.keep in ("numbers", "mathematics")
            if strict and typed is not None and typed.uneven(ranks * nodes):
                return typed.uneven(ranks * nodes)
        needed = needed_bytes(self.workload, ranks, nodes=nodes, value_bytes=self.value_bytes)
        room = self._least_room(nodes)
        if room is None or needed <= room:
            return None
        return (
            f"needs at least {needed / 2**30:.1f} GiB of memory, "
            f"and there are {room / 2**30:.1f} GiB"
        )

    def _least_room(self, nodes: int) -> float | None:
        """Bytes of memory on the host that has the least; None: not known of any."""
        machines = [facts for _, facts in self.ask.hosts[:nodes]]
        if not machines:
            machines = [self.facts]
        least = None
        for machine in machines:
            room = room_bytes(machine)
            if room and (least is None or room < least):
                least = room
        return least

    def _why_not_each_node(self, world_size: int) -> str:
        """Why there is no rank per NUMA node, often the best layout, and what would allow it."""
        batch = self.workload.global_batch_size or 0
        more = math.ceil(batch / world_size) * world_size
        return (
            f"{UNDIVIDED}: a global batch of {batch} cannot be divided over "
            f"{world_size}, {more} can (--global-batch-size {more}, which is another training)"
        )

    def _of_ranks(
        self, cores: tuple[Core, ...], ranks: int, nodes: int
    ) -> Iterator[tuple[Plan, Values]]:
        """Backend, workers and threads for this number of ranks on the first node."""
        of_rank = rank_slices(cores, ranks)[0]
        for backend, workers, shared in self._communication(of_rank, ranks, nodes):
            if shared:
                computing = of_rank
            else:
                computing = of_rank[workers:]
            for threads, smt in self._threads(of_rank, computing, workers):
                plan = make_plan(
                    cores,
                    ranks,
                    threads=threads,
                    smt=smt,
                    ccl_workers=workers,
                    share_cores=shared,
                    backend=backend,
                )
                if _within_quota(plan, self.facts):
                    yield (
                        plan,
                        {
                            "threads": plan.threads_per_process,
                            "smt": smt,
                            "backend": backend,
                            "ccl_workers": workers,
                        },
                    )
                else:
                    self._smt_refused = True

    def _communication(
        self, of_rank: tuple[Core, ...], ranks: int, nodes: int
    ) -> Iterator[tuple[Backend, int, bool]]:
        """(backend, oneCCL workers, whether these share cores with threads)."""
        if ranks * nodes > 1:
            backends = self.backends
        else:
            backends = ("gloo",)
        if nodes > 1:
            backends = tuple(name for name in backends if name != "ccl")
            self._no_ccl_between = len(backends) < len(self.backends)
        for backend in self.ask.kept("backend", backends):
            counts: tuple[int, ...] = (0,)
            wanted = self.ask.fixed.get("ccl_workers")
            if backend == "ccl":
                counts = tuple(w for w in CCL_WORKER_COUNTS if 2 * w <= len(of_rank))
                if isinstance(wanted, int) and LEAST_CCL_WORKERS <= wanted <= len(of_rank):
                    counts = (wanted,)
                elif not counts and self.ask.fixed.get("backend") == "ccl":
                    # Real oneCCL runs so if the workers' CPUs are given.
                    counts = (LEAST_CCL_WORKERS,)
            for workers in self.ask.kept("ccl_workers", counts):
                shared = int(workers) >= len(of_rank)
                yield cast(Backend, backend), int(workers), shared

    def _threads(
        self, of_rank: tuple[Core, ...], computing: tuple[Core, ...], workers: int
    ) -> Iterator[tuple[int | None, bool]]:
        """(threads, siblings used); None threads are all that the CPUs of a rank allow."""
        wanted = self.ask.fixed.get("threads")
        for smt in self.ask.kept("smt", (False, True)):
            siblings = sum(len(core.cpus) for core in computing)
            if smt:
                if siblings > len(computing) and wanted in (None, ALL, siblings):
                    yield None, True
                continue
            counts = thread_counts(of_rank, ccl_workers=len(of_rank) - len(computing))
            if wanted == ALL:
                counts = counts[:1]
            elif wanted is not None:
                if int(wanted) <= len(computing):
                    counts = (int(wanted),)
                else:
                    counts = ()
            elif workers:
                counts = tuple(count for count in counts if 2 * count >= len(computing))
            for count in counts:
                yield count, False

    def _say_why(self, cores: tuple[Core, ...], taken: set[int]) -> None:
        topology, quota = self.facts.topology, self.facts.limits.cpu_quota
        if not cores:
            self._leave_out("ranks", "the CPUs of this machine are not known")
        elif paid_cores(self.facts) is not None:
            self._leave_out(
                "cores",
                f"a CPU quota of {quota:g} allows {len(cores)} of "
                f"{len(topology.allowed_cores)} cores",
            )
        self._say_why_ranks(taken)
        self._say_why_nodes()
        if self._smt_refused:
            self._leave_out(
                "smt", f"threads on SMT siblings would exceed the CPU quota of {quota:g}"
            )
        if topology.threads_per_core == 1:
            self._leave_out("smt", "the cores have no SMT siblings online")
        if "ccl" in self.backends and len(cores) < 4 and self.ask.fixed.get("backend") != "ccl":
            self._leave_out(
                "backend=ccl",
                "a oneCCL worker takes a core from the threads of its rank, and no two ranks of "
                "this machine have two each (--fix backend=ccl lets them share one)",
            )

    def _say_why_nodes(self) -> None:
        for nodes, reason in self._unfit.items():
            if nodes not in self._fitting:
                self._leave_out(f"nodes={nodes}", reason)
        if self._no_ccl_between:
            self._leave_out(
                "backend=ccl",
                "between nodes: trials over several hosts add up gradients over gloo",
            )

    def _say_why_ranks(self, taken: set[int]) -> None:
        """One line for all rank counts that are left out for one reason."""
        counts: dict[str, list[int]] = {}
        for ranks, reason in sorted(self._refused.items()):
            if ranks not in taken:
                counts.setdefault(reason, []).append(ranks)
        for reason, refused in counts.items():
            if len(refused) <= 6:
                listed = ",".join(map(str, refused))
            else:
                listed = cpulist.render(refused)
            self._leave_out(f"ranks={listed}", reason)

    def _leave_out(self, what: str, reason: str) -> None:
        self.left_out.append(LeftOut(what=what, why=reason))


def _within_quota(plan: Plan, facts: HostFacts) -> bool:
    quota = facts.limits.cpu_quota
    busy = set(chain.from_iterable(plan.cpus + plan.ccl_cpus))
    return quota is None or len(busy) <= max(1, math.floor(quota))


def _ranks_each(ranks: int) -> str:
    if ranks == 1:
        return "one rank on each"
    return f"{ranks} ranks on each"
