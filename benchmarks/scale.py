"""How cputune grows with the machine and with the number of hosts, by machines that are simulated.

    python benchmarks/scale.py                      # all tables of benchmarks/scaling.md
    python benchmarks/scale.py --tables machines    # or nodes, doctor
    python benchmarks/scale.py --write benchmarks/scaling.md

Nothing is trained. ``machines``: a node of 1 × 8 to 8 × 128 cores: to read it, to lay out its
plans, to propose one, memory, documents. ``nodes``: a plan of the largest machine on 1 to 1,024
of them: to emit it and to keep it, where all nodes are alike and where each has CPUs of its own.
``doctor``: as many hosts, each asked by a probe in a process of its own on this machine, which
stands for ssh. Every row is a new process; a time is the least of several. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import base64
import copy
import fnmatch
import json
import platform
import re
import resource
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from machines import EVERY_LIBRARY, TODAY, Model, SimulatedRunner, simulated

import cputune
from cputune.doctor.hosts import look_at_hosts
from cputune.host.facts import HostFacts, Library
from cputune.host.remote.named import Node
from cputune.host.remote.probed import READ
from cputune.plans.layout import guide_plan
from cputune.plans.plan import Plan
from cputune.report.diagnosis import document
from cputune.tuner.sampler import History, PlanSampler

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from hosts import builder
from nodes.fakes import FakeReach

SHAPES = ((1, 8), (1, 56), (2, 56), (2, 128), (4, 128), (8, 128))
NODES = (1, 4, 16, 64, 256, 1024)
HOSTS = (100, 1000)
TRIALS = 100
"""Trials that the model has learnt from where a proposal is timed."""
LEAST_OF = 3
BATCH = 1 << 16
"""Samples of a step over all ranks, that any number of nodes can share."""


def seconds(do: Callable[[], object], rounds: int = LEAST_OF) -> float:
    """The least time of several."""
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        do()
        taken.append(time.perf_counter() - started)
    return min(taken)


def mebibytes() -> float:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def kibibytes(document: object) -> float:
    """How long a document is as JSON."""
    return len(json.dumps(document).encode()) / 1024


def facts_of(sockets: int, cores: int) -> HostFacts:
    """A machine with SMT and every library, read from the files that Linux would show."""
    facts = cputune.probe(builder.machine(None, sockets=sockets, cores=cores, smt=2))
    libraries = tuple(Library(name=n, path=f"/usr/lib/lib{n}.so.4") for n in EVERY_LIBRARY)
    return replace(facts, packages=TODAY, libraries=libraries)


def asked_kibibytes(host: builder.FakeTree) -> float:
    """The files that the doctor fetches of a machine from afar, packed as they are sent."""
    wanted = [re.compile(fnmatch.translate(pattern)) for pattern in READ]
    texts = {at: text for at, text in host.files.items() if any(one.match(at) for one in wanted)}
    return len(base64.b64encode(zlib.compress(json.dumps(texts).encode(), 1))) / 1024


def machine_row(sockets: int, cores: int) -> dict[str, Any]:
    """What one machine costs."""
    host = builder.machine(None, sockets=sockets, cores=cores, smt=2)
    assert isinstance(host, builder.FakeTree)
    facts = facts_of(sockets, cores)
    job = cputune.Workload.from_recipe("bert-mini")
    before = mebibytes()
    space = cputune.search_space(facts, job)
    one = simulated("scale", facts, Model())
    result = cputune.tune(one.workload, facts=facts, runner=one.runner(0), budget=20)
    return {
        "machine": f"{sockets} × {cores}",
        "plans": len(space),
        "probe s": seconds(lambda: cputune.probe(host)),
        "space s": seconds(lambda: cputune.search_space(facts, job)),
        "model s": seconds(lambda: PlanSampler(space, History(), seed=0)),
        "proposal s": _proposal_seconds(space, one.seconds),
        "memory MiB": mebibytes() - before,
        "answer KiB": asked_kibibytes(host),
        "doctor KiB": kibibytes(document(cputune.diagnose(facts))),
        "result KiB": kibibytes(result.to_json()),
    }


def node_row(nodes: int) -> dict[str, Any]:
    """What the largest machine costs on so many nodes."""
    facts = facts_of(*SHAPES[-1])
    job = replace(cputune.Workload.from_recipe("bert-mini"), global_batch_size=BATCH)
    names = [f"node{number:04}" for number in range(nodes)]
    seen = [(name, copy.deepcopy(facts)) for name in names]  # as they come from lines
    started = time.perf_counter()
    space = cputune.search_space(facts, job, hosts=seen)
    row: dict[str, Any] = {"nodes": nodes, "plans": len(space)}
    row["space s"] = time.perf_counter() - started
    row["model s"] = seconds(lambda: PlanSampler(space, History(), seed=0), 1)
    row["proposal s"] = _proposal_seconds(space, lambda plan: Model().seconds(facts, plan))
    runner = SimulatedRunner(true=lambda plan: Model().seconds(facts, plan), workload=job)
    result = cputune.tune(job, facts=facts, runner=runner, budget=2)
    hosts = tuple(Node(name=name) for name in names)
    plan = replace(guide_plan(facts), nodes=nodes)
    there = replace(result, best=replace(result.best, plan=plan))

    def emit() -> tuple[cputune.EmittedFile, ...]:
        return cputune.emit(there, "mpirun", facts=facts, nodes=nodes, hosts=hosts)

    row["emit s"] = seconds(emit)
    row["files KiB"] = sum(len(file.text.encode()) for file in emit()) / 1024
    row["plan KiB"] = kibibytes(plan.to_json())
    row["memory MiB"] = mebibytes()
    return row


def _proposal_seconds(space: cputune.SearchSpace, time_of: Callable[[Plan], float]) -> float:
    """How long a proposal takes after ``TRIALS`` trials, what they say worked out with it."""
    history, plans = History(), list(space.plans())
    sampler = PlanSampler(space, history, seed=0)
    for plan in plans[:: max(1, len(plans) // TRIALS)][:TRIALS]:
        history.tried.add(plan)
        history.plans.append(plan)
        history.logs.append(time_of(plan))
        history.errors.append(0.01)
    return seconds(lambda: sampler.propose(len(history.plans)), 1)


def doctor_row(hosts: int) -> dict[str, Any]:
    """What it costs to look at so many hosts; each is a probe in a process of this machine."""
    nodes = [Node(name=f"node{number:04}") for number in range(hosts)]
    before, theirs = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    seen = look_at_hosts(nodes, FakeReach(), seconds=600.0)
    wall, ours = time.perf_counter() - started, time.process_time() - before
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    probes = used.ru_utime + used.ru_stime - theirs.ru_utime - theirs.ru_stime
    per_hundred = 100 / hosts
    return {
        "hosts": hosts,
        "told": sum(host.facts is not None for host in seen.hosts),
        "s per hundred": wall * per_hundred,
        "CPU s of ours per hundred": ours * per_hundred,
        "CPU s of probes per hundred": probes * per_hundred,
        "memory MiB": mebibytes(),
    }


TABLES: dict[str, tuple[Callable[..., dict[str, Any]], Sequence[tuple[int, ...]]]] = {
    # name: what makes a row, and of what
    "machines": (machine_row, SHAPES),
    "nodes": (node_row, tuple((nodes,) for nodes in NODES)),
    "doctor": (doctor_row, tuple((hosts,) for hosts in HOSTS)),
}


def rows(table: str) -> Iterator[dict[str, Any]]:
    """Each row from a process of its own, so that memory is the row's alone."""
    for of in TABLES[table][1]:
        argv = [sys.executable, __file__, "--row", table, *map(str, of)]
        told = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
        row: dict[str, Any] = json.loads(told.splitlines()[-1])
        yield row


def print_table(table: str) -> str:
    """The rows as Markdown, printed as they come, and all of it."""
    lines: list[str] = []
    for row in rows(table):
        if not lines:
            lines += [f"| {' | '.join(row)} |", f"|{'---|' * len(row)}"]
            print("", *lines, sep="\n")
        lines.append(f"| {' | '.join(map(cell, row.values()))} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def cell(value: object) -> str:
    """Two digits of what was measured, whole numbers and names as they are."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def put(page: Path, table: str) -> None:
    """Put a table into a page, in the place of the one whose first column has the same name."""
    head = table.partition("\n")[0]
    first = re.escape(head.split("|")[1])
    text = page.read_text(encoding="utf-8")
    text, found = re.subn(rf"^\|{first}\|.*\n(\|.*\n)+", lambda _: f"{table}\n", text, flags=re.M)
    assert found == 1, f"{page} has {found} tables that begin with{first}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tables", nargs="*", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    parser.add_argument("--row", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        make, _ = TABLES[options.row[0]]
        print(json.dumps(make(*map(int, options.row[1:]))))
        return
    print(f"{cputune.probe().cpu.model_name}, Python {platform.python_version()}")
    for name in options.tables:
        table = print_table(name)
        if options.write is not None:
            put(options.write, table)


if __name__ == "__main__":
    main()
