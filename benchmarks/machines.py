"""Machines that do not exist, and runners that draw step times from a model of them.

``machine()`` makes the facts of one; ``Model`` says how long a step of a plan takes
there; ``SimulatedRunner`` adds noise, delays and warm-up, and counts what was spent.
Nothing here measures anything: these are for comparing searches, thousands of times.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from cputune.host.facts import (
    Core,
    Cpu,
    HostFacts,
    Launcher,
    Library,
    Limits,
    Load,
    Memory,
    NumaNode,
    Package,
    Settings,
    Topology,
)
from cputune.plans.cores import nodes_spanned
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.steps import Step

GIB = 1 << 30
AMX = ("amx_bf16", "amx_int8", "amx_tile", "avx2", "avx512_bf16", "avx512_vnni", "avx512f")
AVX512 = ("avx2", "avx512_vnni", "avx512f")
AVX2 = ("avx2",)


def machine(
    *,
    sockets: int = 1,
    cores_per_socket: int = 8,
    threads_per_core: int = 1,
    nodes_per_socket: int = 1,
    cores_per_l3: int | None = None,
    isa: tuple[str, ...] = AMX,
    memory_gib: int = 256,
    cpu_quota: float | None = None,
    memory_limit_gib: float | None = None,
    allowed: tuple[int, ...] | None = None,
    libraries: tuple[str, ...] = (),
    packages: tuple[Package, ...] = (),
    environment: dict[str, str] | None = None,
) -> HostFacts:
    """Facts of a machine, numbered as Linux does: first every core, then its siblings."""
    total = sockets * cores_per_socket
    per_node = cores_per_socket // nodes_per_socket
    cores = tuple(
        Core(
            cpus=tuple(index + total * sibling for sibling in range(threads_per_core)),
            socket=index // cores_per_socket,
            numa_node=min(index // per_node, sockets * nodes_per_socket - 1),
            l3=None if cores_per_l3 is None else index // cores_per_l3,
        )
        for index in range(total)
    )
    online = tuple(range(total * threads_per_core))
    nodes = tuple(
        NumaNode(
            id=node,
            cpus=tuple(sorted(c for core in cores if core.numa_node == node for c in core.cpus)),
            memory_bytes=memory_gib * GIB // (sockets * nodes_per_socket),
        )
        for node in range(sockets * nodes_per_socket)
    )
    return HostFacts(
        cpu=Cpu(
            vendor="GenuineIntel",
            model_name="Simulated",
            codename=None,
            family=6,
            model=143,
            stepping=8,
            architecture="x86_64",
            hypervisor=False,
            isa=tuple(sorted(isa)),
        ),
        topology=Topology(
            cores=cores,
            online=online,
            present=online,
            allowed=online if allowed is None else allowed,
            numa_nodes=nodes,
        ),
        limits=Limits(
            cpu_quota=cpu_quota,
            cpuset=allowed,
            memory_bytes=None if memory_limit_gib is None else int(memory_limit_gib * GIB),
            shm_bytes=None,
            open_files=1024,
            memlock_bytes=None,
        ),
        memory=Memory(
            total_bytes=memory_gib * GIB,
            available_bytes=memory_gib * GIB,
            swap_total_bytes=0,
            swap_free_bytes=0,
        ),
        settings=Settings(
            governor=None,
            turbo=None,
            transparent_huge_pages=None,
            numa_balancing=None,
            smt=None,
            kernel=None,
            container=None,
        ),
        load=Load(
            average_1min=0.0,
            cpu_pressure_percent=0.0,
            memory_pressure_percent=0.0,
            steal_share=0.0,
        ),
        python="3.11.0",
        packages=packages,
        libraries=tuple(Library(name=n, path=f"/usr/lib/lib{n}.so.4") for n in libraries),
        environment=environment or {},
        recorded=True,
    )


TODAY = tuple(
    Package(name=name, version=version, location=None)
    for name, version in (("torch", "2.13.0"), ("transformers", "5.23.0"), ("accelerate", "1.15.0"))
)

IPEX_ERA = (
    Package(name="torch", version="2.8.0", location=None),
    Package(name="intel_extension_for_pytorch", version="2.8.0", location=None),
    Package(name="oneccl_bind_pt", version="2.8.0", location=None),
    Package(name="transformers", version="4.56.2", location=None),
    Package(name="accelerate", version="1.7.0", location=None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """How long an optimizer step takes: compute, memory bandwidth, and agreement of ranks.

    ``work`` is seconds of one core for one step in fp32; ``serial`` the share of it that
    threads do not divide (Amdahl); ``bandwidth`` how many cores saturate the memory of one
    NUMA node; ``straddle`` and ``socket_straddle`` what a rank pays for each doubling of
    the nodes and sockets under it; ``sync`` the share of ``work`` that a doubling of the
    ranks costs in all-reduce; the rest are factors of a step's compute.
    """

    work: float = 8.0
    serial: float = 0.01
    bandwidth: float = 24.0
    bandwidth_share: float = 0.3
    straddle: float = 0.15
    socket_straddle: float = 0.3
    unbound: float = 0.1
    smt: float = 1.05
    sync: float = 0.003
    ccl_sync: float = 0.7
    worker_gain: float = 0.25
    factors: dict[str, float] = field(
        default_factory=lambda: {
            "bf16": 0.35,
            "tcmalloc": 0.88,
            "jemalloc": 1.04,
            "libiomp5": 0.97,
            "ipex": 0.9,
        }
    )

    def seconds(self, facts: HostFacts, plan: Plan) -> float:
        """The noiseless time of one step."""
        threads = min(plan.threads_per_process, len(plan.cpus[0]))
        spread = [nodes_spanned(facts, cpus) for cpus in plan.cpus]
        by_cpu = {cpu: core for core in facts.topology.cores for cpu in core.cpus}
        cores_of_rank = len({id(by_cpu[cpu]) for cpu in plan.cpus[0]}) if plan.cpus[0] else 1
        cores_of_rank = min(cores_of_rank, threads)
        smt = self.smt if threads > cores_of_rank else 1.0
        ranks = plan.processes_per_node
        compute = self.work * self.factors.get(plan.precision, 1.0)
        parallel = (1 - self.serial) * compute / ranks
        per_rank = self.serial * compute / ranks**0.5 + parallel / (cores_of_rank / smt)
        nodes_used = max(sum(nodes for _, nodes in spread), 1)
        nodes_used = min(nodes_used, max(len(facts.topology.numa_nodes), 1))
        streams = ranks * cores_of_rank / nodes_used
        memory = (self.bandwidth_share * self.work * (0.6 if plan.precision == "bf16" else 1.0)) / (
            nodes_used * self.bandwidth * (1 - math.exp(-streams / self.bandwidth))
        )
        sockets, nodes = max(spread)
        penalty = 1 + self.straddle * math.log2(max(nodes, 1))
        penalty += self.socket_straddle * math.log2(max(sockets, 1))
        if plan.as_found:
            penalty += self.unbound
        step = (per_rank + memory) * penalty
        for name in (plan.allocator, plan.openmp):
            step *= self.factors.get(name, 1.0)
        if plan.ipex:
            step *= self.factors["ipex"]
        if ranks > 1:
            sync = self.sync * self.work * math.log2(ranks)
            if plan.backend == "ccl":
                sync *= self.ccl_sync / (1 + self.worker_gain * math.log2(1 + plan.ccl_workers))
            step += sync
        return step


@dataclass(slots=True, kw_only=True)
class SimulatedRunner:
    """Steps of a model with noise: ``noise`` per step, ``delays`` of them ``delay`` times longer.

    ``marked`` delays carry ``delayed_seconds`` as a real runner's would. ``warmup``
    multiplies the first steps; ``touch`` is the share of plans that first touch their memory in
    the first two steps (``FIRST_TOUCH``); ``run_noise`` is the same for all steps of a run. Batches
    are of unlike length by ``spread`` (of the log), the same ones for every plan, and a fifth of
    the time of a step is the same for each. The
    machine as a whole gets slower and faster by ``wander`` (standard deviation of the log),
    and has forgotten where it was after ``wander_seconds`` or two.
    ``spent_seconds`` counts every step that was read, and is the clock.
    """

    true: Callable[[Plan], float]
    workload: Workload
    seed: int = 0
    noise: float = 0.05
    run_noise: float = 0.0
    delays: float = 0.03
    delay: float = 5.0
    marked: bool = True
    wander: float = 0.0
    wander_seconds: float = 15.0
    warmup: tuple[float, ...] = ()
    touch: float = 0.0
    spread: float = 0.0
    spent_seconds: float = 0.0
    spent_steps: int = 0
    runs: int = 0
    _where: float | None = None
    _when: float = 0.0

    def steps(self, plan: Plan) -> Iterator[Step]:
        """Endless steps of a plan."""
        self.runs += 1
        key = zlib.crc32(repr(plan).encode())
        rng = random.Random((self.seed << 40) ^ (self.runs << 32) ^ key)
        true = self.true(plan) * math.exp(rng.gauss(0, self.run_noise))
        samples = self.workload.global_batch_size or 8
        if self.workload.batch_per_rank is not None:
            samples = self.workload.batch_per_rank * plan.processes_per_node
        warmup = self.warmup
        if zlib.crc32(f"touch {plan!r}".encode()) < self.touch * 2**32:
            warmup = FIRST_TOUCH
        elif self.touch and not warmup:
            warmup = USUAL_START
        index = 0
        while True:
            seconds = true * math.exp(rng.gauss(0, self.noise))
            size = 1000
            if self.spread:
                size = round(
                    size * math.exp(random.Random(f"{self.seed} {index}").gauss(0, self.spread))
                )
                seconds *= 0.2 + 0.8 * size / 1000
            if self.wander:
                seconds *= self._wandered(rng)
            if index < len(warmup):
                seconds *= warmup[index]
            delayed = 0.0
            if rng.random() < self.delays:
                delayed = seconds * (self.delay - 1) if self.marked else 0.0
                seconds *= self.delay
            self.spent_seconds += seconds
            self.spent_steps += 1
            yield Step(
                seconds=seconds,
                samples=samples,
                loss=5.0 - 0.01 * index,
                delayed_seconds=delayed,
                size=size,
            )
            index += 1

    def living(self, plan: Plan) -> SimulatedPlan:
        """The plan beside others: what the machine does meanwhile hits it too."""
        return SimulatedPlan(self.steps(plan))

    def _wandered(self, rng: random.Random) -> float:
        """What the machine's wandering makes of a step now (Ornstein and Uhlenbeck 1930)."""
        if self._where is None:
            self._where = rng.gauss(0, 1)
        kept = math.exp(-(self.spent_seconds - self._when) / self.wander_seconds)
        self._where = kept * self._where + math.sqrt(1 - kept**2) * rng.gauss(0, 1)
        self._when = self.spent_seconds
        return math.exp(self.wander * self._where)


class SimulatedPlan:
    """A plan of a runner that simulates, or replays, between its turns."""

    def __init__(self, steps: Iterator[Step]) -> None:
        self._steps = steps

    def turn(self, steps: int) -> Sequence[Step]:
        """Its next steps."""
        return tuple(islice(self._steps, steps))

    def close(self) -> None:
        """Nothing runs."""


class StepSource(Protocol):
    """A runner that counts what it has spent."""

    spent_seconds: float

    def steps(self, plan: Plan) -> Iterator[Step]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of which it is known how long every plan takes.

    ``seconds`` is the truth without noise, ``runner`` makes a noisy runner for a seed.
    """

    name: str
    facts: HostFacts
    workload: Workload
    seconds: Callable[[Plan], float]
    runner: Callable[[int], StepSource]


def simulated(
    name: str,
    facts: HostFacts,
    model: Model,
    *,
    recipe: str = "bert-mini",
    batch: int | None = None,
    **noise: Any,
) -> Machine:
    """A machine that follows a model, with 5 % of noise and 3 % of the steps delayed.

    ``batch`` are the samples of a step; None: the recipe's.
    """
    workload = Workload.from_recipe(recipe)
    workload = replace(workload, global_batch_size=batch or workload.global_batch_size)
    known: dict[Plan, float] = {}

    def seconds(plan: Plan) -> float:
        if plan not in known:
            known[plan] = model.seconds(facts, plan)
        return known[plan]

    def runner(seed: int) -> SimulatedRunner:
        return SimulatedRunner(true=seconds, workload=workload, seed=seed, **noise)

    return Machine(name=name, facts=facts, workload=workload, seconds=seconds, runner=runner)


FIRST_TOUCH = (3.6, 2.1)
"""The first steps with ``malloc=huge_pages`` on two Zen 4 cores, if no process before has used the
memory. Without, the first step took 2.1 times as long as the later ones, and the second one 1.0."""
USUAL_START = (2.1,)

SEEN_WARMUP = (2.0, 2.0, 1.35, 1.27, 1.16)
"""The first steps of BERT on two cores with torch 2.13, over what they settled at."""

EVERY_LIBRARY = ("tcmalloc", "jemalloc", "libiomp5")

MACHINES = (
    simulated(
        "one-socket",
        machine(cores_per_socket=16, threads_per_core=2, libraries=("tcmalloc",), packages=TODAY),
        Model(work=8, bandwidth=10, smt=1.08),
    ),
    simulated(
        "one-socket-no-bf16",
        machine(cores_per_socket=24, threads_per_core=2, isa=AVX512, packages=TODAY),
        Model(work=12, bandwidth=12, serial=0.03, smt=0.9),
    ),
    simulated(
        "two-sockets",
        machine(
            sockets=2,
            cores_per_socket=32,
            threads_per_core=2,
            libraries=EVERY_LIBRARY,
            packages=TODAY,
        ),
        Model(work=16, bandwidth=16),
    ),
    simulated(
        "two-sockets-warm-up",
        machine(sockets=2, cores_per_socket=28, libraries=("tcmalloc",), packages=TODAY),
        Model(work=16, bandwidth=14, socket_straddle=0.5),
        warmup=SEEN_WARMUP,
    ),
    simulated(
        "two-sockets-sub-numa",
        machine(
            sockets=2,
            cores_per_socket=56,
            threads_per_core=2,
            nodes_per_socket=4,
            libraries=EVERY_LIBRARY,
            packages=TODAY,
        ),
        Model(work=24, bandwidth=8, straddle=0.2, sync=0.0008, smt=0.95),
    ),
    simulated(
        "two-sockets-ipex-ccl",
        replace(
            machine(
                sockets=2,
                cores_per_socket=28,
                threads_per_core=2,
                libraries=("tcmalloc", "libiomp5"),
                packages=IPEX_ERA,
            ),
            launchers=(Launcher(name="mpirun", path="/opt/mpi/bin/mpirun", dialect="intelmpi"),),
        ),
        Model(work=16, bandwidth=12, sync=0.004),
    ),
    simulated(
        # What the guides say is wrong here: many small ranks, siblings, jemalloc.
        "two-sockets-odd",
        machine(
            sockets=2,
            cores_per_socket=32,
            threads_per_core=2,
            libraries=EVERY_LIBRARY,
            packages=TODAY,
        ),
        Model(
            work=10,
            serial=0.05,
            bandwidth=30,
            bandwidth_share=0.1,
            sync=0.0004,
            smt=1.2,
            factors={"bf16": 0.8, "tcmalloc": 1.06, "jemalloc": 0.86, "libiomp5": 0.9},
        ),
    ),
    simulated(
        # Ranks cost much and memory is slow: one socket's worth of threads is best.
        "eight-sockets-odd",
        machine(
            sockets=8,
            cores_per_socket=16,
            threads_per_core=2,
            libraries=EVERY_LIBRARY,
            packages=TODAY,
        ),
        Model(
            work=4,
            serial=0.02,
            bandwidth=2,
            bandwidth_share=0.1,
            straddle=0.05,
            socket_straddle=0.5,
            sync=0.02,
            smt=0.8,
            factors={"bf16": 0.6, "tcmalloc": 0.97, "jemalloc": 0.93, "libiomp5": 1.05},
        ),
    ),
    simulated(
        "eight-sockets",
        machine(
            sockets=8,
            cores_per_socket=8,
            threads_per_core=2,
            isa=AVX512,
            libraries=("tcmalloc", "jemalloc"),
            packages=TODAY,
        ),
        Model(work=16, bandwidth=6, socket_straddle=0.25, sync=0.002),
    ),
    simulated(
        "eight-sockets-sub-numa",
        machine(
            sockets=8,
            cores_per_socket=24,
            threads_per_core=2,
            nodes_per_socket=2,
            libraries=EVERY_LIBRARY,
            packages=TODAY,
        ),
        Model(work=64, bandwidth=8, sync=0.0006, serial=0.004),
    ),
    simulated(
        # One rank on one socket is best, and today's launch is nearly as fast.
        "two-sockets-no-bf16",
        machine(sockets=2, cores_per_socket=32, threads_per_core=2, isa=AVX512, packages=TODAY),
        Model(work=8, serial=0.03, bandwidth=40, bandwidth_share=0.1, sync=0.08, unbound=0.02),
    ),
    *(
        # A rank for each NUMA node is best where the batch can be divided over them.
        simulated(
            f"eight-sockets-18-cores-batch-{batch}",
            machine(sockets=8, cores_per_socket=18, threads_per_core=2, isa=AVX2, packages=TODAY),
            Model(work=40, bandwidth=6, socket_straddle=0.4, sync=0.001, smt=0.95),
            batch=batch,
        )
        for batch in (8, 12, 24)
    ),
    *(
        # Each socket has four NUMA nodes of twelve cores, each L3 three or four cores.
        simulated(
            f"eight-nodes-with-l3-batch-{batch}",
            machine(
                sockets=2,
                cores_per_socket=48,
                threads_per_core=2,
                nodes_per_socket=4,
                cores_per_l3=4,
                isa=AVX2,
                libraries=("tcmalloc",),
                packages=TODAY,
            ),
            Model(work=24, bandwidth=8, straddle=0.25, sync=0.0008, smt=0.95),
            batch=batch,
        )
        for batch in (12, 48)
    ),
)
