"""Four machines and what was tuned on them, for golden files and contracts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from clean_machine import IPEX_ERA, SAPPHIRE_RAPIDS, topology
from confirmed import UNCOMPARED, confirmed
from unknown_machine import UNKNOWN

from cputune import Cluster, HostFacts, Plan, Result, Workload
from cputune.emitters import parse_hosts
from cputune.host.facts import Launcher
from cputune.plans.cores import usable_cores
from cputune.plans.layout import baseline_plan, make_plan
from cputune.records.claims import Speedup, host_fingerprint
from cputune.records.result import Measured, Throughput

TODAY = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}


ISA = ("amx_bf16", "avx512_bf16", "avx512f")


def machine(
    model: str, *, sockets: int, cores: int, smt: bool = False, mpi: str | None = None
) -> HostFacts:
    """A machine with Linux's numbering: first siblings of all cores, then second ones."""
    return replace(
        UNKNOWN,
        cpu=replace(SAPPHIRE_RAPIDS, model_name=model, codename=None, isa=ISA),
        topology=topology(sockets=sockets, cores=cores, smt=2 if smt else 1),
        python="3.11.8",
        launchers=(Launcher(name="mpirun", path="/usr/bin/mpirun", dialect=mpi),) if mpi else (),
    )


def tuned(
    facts: HostFacts, plan: Plan, workload: Workload, versions: dict[str, str], **values: Any
) -> Result:
    """A result whose best plan ran at 31.4 samples/s, 1.57 times the baseline."""
    fast = Throughput(centre=31.4, low=31.1, high=31.8)
    slow = Throughput(centre=20.0, low=19.7, high=20.4)
    today = baseline_plan(facts)
    fields: dict[str, Any] = {
        "confirmation": confirmed(today, plan if plan != today else replace(plan, ipex=True)),
        "host": host_fingerprint(facts),
        "versions": versions,
        "workload": workload,
        "baseline": Measured(plan=today, samples_per_second=slow),
        "best": Measured(plan=plan, samples_per_second=fast),
        "speedup": Speedup(ratio=1.57, low=1.51, high=1.62, pairs=5),
        "trials": (),
        "created": "2026-11-20T16:00:00+00:00",
        "data": "synthetic tokens",
        **values,
    }
    return Result(**fields)


def planned(result: Result, **changes: Any) -> Result:
    """The result with a best plan that differs in these fields, and was compared with nothing."""
    plan = replace(result.best.plan, **changes)
    return replace(result, best=replace(result.best, plan=plan), **UNCOMPARED)


@dataclass(frozen=True)
class Case:
    """What one machine's golden files are emitted from."""

    facts: HostFacts
    result: Result
    options: dict[str, Any] = field(default_factory=dict)


def script_workload(*arguments: str) -> Workload:
    """A script of the user that reads TrainingArguments."""
    seen = {"framework": "trainer", "parses_arguments": True, "global_batch_size": 96}
    return Workload(name="run_qa.py", argv=("run_qa.py", *arguments), **seen)


def one_socket() -> Case:
    facts = machine("Intel(R) Xeon(R) w5-3425", sockets=1, cores=8, mpi="openmpi5")
    plan = replace(
        make_plan(usable_cores(facts), 2, precision="bf16"),
        allocator="tcmalloc",
        preload=("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",),
    )
    return Case(facts, tuned(facts, plan, Workload.from_recipe("bert-base-squad"), TODAY))


def two_sockets_smt() -> Case:
    """The IPEX era, oneCCL with four workers, on two nodes."""
    facts = machine("Intel(R) Xeon(R) 8480+", sockets=2, cores=28, smt=True, mpi="intelmpi")
    plan = replace(
        make_plan(usable_cores(facts), 2, backend="ccl", ccl_workers=4),
        precision="bf16",
        ipex=True,
        allocator="jemalloc",
        openmp="libiomp5",
        preload=("/opt/conda/lib/libjemalloc.so.2", "/opt/conda/lib/libiomp5.so"),
    )
    return Case(
        facts,
        tuned(facts, plan, Workload.from_recipe("bert-large-squad"), IPEX_ERA),
        {
            "hosts": parse_hosts("node1,node2"),
            "cluster": Cluster(
                job_name="bert-large",
                namespace="training",
                image="registry.example.com/team/bert:1",
                pvc="shared",
                memory="128Gi",
                node_selector=(("node-type", "spr"),),
                time_limit="2-00:00:00",
                partition="cpu",
                account="nlp",
                interface="eth0",
            ),
        },
    )


def eight_sockets() -> Case:
    facts = machine("Intel(R) Xeon(R) Platinum 8490H", sockets=8, cores=28, smt=True, mpi="mpich")
    plan = make_plan(usable_cores(facts), 8, precision="bf16")
    workload = script_workload("--do_train", "--output_dir", "/data/my runs/$USER")
    return Case(facts, tuned(facts, plan, workload, TODAY))


def virtual_machine() -> Case:
    """Nothing beat the baseline, and no mpirun was found."""
    facts = machine("AMD EPYC", sockets=1, cores=2)
    plan = baseline_plan(facts)
    result = tuned(facts, plan, Workload.from_recipe("bert-mini"), TODAY)
    even = Speedup(ratio=1.0, low=0.98, high=1.02, pairs=10)
    return Case(facts, replace(result, best=result.baseline, speedup=even))


MACHINES = {
    "one-socket": one_socket,
    "two-sockets-smt": two_sockets_smt,
    "eight-sockets": eight_sockets,
    "virtual-machine": virtual_machine,
}
