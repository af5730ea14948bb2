"""What each knob is worth here, one at a time, beside the plan without it.

    python benchmarks/knobs.py [--recipe bert-mini] [--minutes 6] [--only dropout,malloc]
    python benchmarks/knobs.py --only ddp,omp,attention,clipping,memory,interop,channels

The base is one rank over all cores, in bf16 where the CPU multiplies it, with tcmalloc where it was
found. Of each knob that lives here one plan has it and one has not; all are alive at once and take
three steps in turn, so that each round compares all of them. Prints a Markdown table: how much
faster the plan with the knob is, with the 95 % interval over rounds.

Levers that are no knobs (`LEVERS`) are read by words of the launch, only where `--only` names them:
as long as none was seen to pay, none is shipped.

Needs a quiet machine, and about 1 GiB of memory for each plan.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from turns import Contender, ratio, side_by_side, table

import cputune
from cputune.host.facts import HostFacts
from cputune.inside import recipe_script
from cputune.plans.cores import usable_cores
from cputune.plans.knobs import knob_named
from cputune.plans.knobs.libraries import preloads
from cputune.plans.knobs.precision import advised_precision, native_precisions
from cputune.plans.knobs.record import Ask
from cputune.plans.layout import baseline_plan, make_plan
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue
from cputune.plans.workload import DEFAULT_RECIPE, Workload
from cputune.ranks.runner import ProcessRunner

ASKED: tuple[tuple[str, KnobValue], ...] = (
    ("dropout", "bytes"),
    ("optimizer", "adamw_torch"),
    ("accumulation", 2),
    ("malloc", "kept"),
    ("malloc", "huge_pages"),
    ("padding", "cut"),
    ("order", "length"),
)
"""Knobs and the value that is compared with that of the base."""

LEVERS: tuple[tuple[str, int, dict[str, object], tuple[str, ...]], ...] = (
    ("ddp: gradient_as_bucket_view", 2, {"ddp": {"gradient_as_bucket_view": True}}, ()),
    ("ddp: static_graph", 2, {"ddp": {"static_graph": True}}, ()),
    ("ddp: find_unused_parameters", 2, {}, ("--ddp_find_unused_parameters", "True")),
    ("ddp: buckets of 100 MB", 2, {}, ("--ddp_bucket_cap_mb", "100")),
    ("omp: OMP_WAIT_POLICY=passive", 2, {"variables": {"OMP_WAIT_POLICY": "PASSIVE"}}, ()),
    ("omp: OMP_WAIT_POLICY=active", 2, {"variables": {"OMP_WAIT_POLICY": "ACTIVE"}}, ()),
    ("attention: eager", 1, {"model": {"attn_implementation": "eager"}}, ()),
    ("clipping: none, the most that a fused one could bring", 1, {}, ("--max_grad_norm", "0")),
    ("memory: interleaved", 1, {"words": ["numactl", "--interleave=all"]}, ()),
    ("memory: HBM first", 1, {"words": ["numactl", "--preferred-many=HBM"]}, ()),
    ("interop: one thread", 1, {"interop": 1}, ()),
    ("channels: last", 1, {"channels_last": True}, ()),
)
"""What is read of a lever: its ranks, and what is other in its launch."""

PATCHED = """
import json, os, runpy, sys
import torch
said = json.loads(os.environ["LEVER"])
if said.get("interop"):
    torch.set_num_interop_threads(said["interop"])
if said.get("ddp"):
    kind = torch.nn.parallel.DistributedDataParallel
    init = kind.__init__
    kind.__init__ = lambda *args, **kwargs: init(*args, **{**kwargs, **said["ddp"]})
if said.get("channels_last"):
    import transformers
    init_ = transformers.Trainer.__init__
    def begun(self, *args, **kwargs):
        init_(self, *args, **kwargs)
        self.model.to(memory_format=torch.channels_last)
    transformers.Trainer.__init__ = begun
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

FIRST = {
    "malloc": {"allocator": "default", "preload": ()},
    "order": {"settings": {"padding": "cut"}},
}
"""In what else the plans that are compared for a knob differ from the base."""


def base_plan(facts: HostFacts) -> Plan:
    """One rank over all cores, in the advised precision, with tcmalloc where it was found."""
    plan = make_plan(usable_cores(facts), 1, precision=advised_precision(facts))
    if facts.library("tcmalloc") is not None:
        plan = replace(plan, allocator="tcmalloc")
    return replace(plan, preload=preloads(plan, facts))


def pairs(facts: HostFacts, job: Workload, only: set[str]) -> Iterator[tuple[str, Plan, Plan]]:
    """What is compared: the knob, the plan without it, the plan with it."""
    base = base_plan(facts)
    for name, value in ASKED:
        if only and name not in only:
            continue
        knob = knob_named(name)
        assert knob.offers is not None
        assert knob.put is not None
        here = knob.choices(facts, Ask(workload=job, fixed={name: value}))
        if value not in here.values:
            print(f"{name}={value}: {here.left_out[0].why}", file=sys.stderr)
            continue
        without = replace(base, **FIRST.get(name, {}))
        changed = knob.put(without, value, facts)
        if changed is not None:
            yield f"{name}={value}", without, changed


def hbm_nodes(facts: HostFacts) -> str:
    """The memory nodes that are HBM, as numactl names them: of a CPU Max those without CPUs."""
    if "CPU Max" not in (facts.cpu.model_name or ""):
        return ""
    return ",".join(str(node.id) for node in facts.topology.numa_nodes if node.cpus == ())


def why_not(name: str, facts: HostFacts, job: Workload) -> str | None:
    """Why a lever says nothing here; None where it is read."""
    if name.startswith("memory") and shutil.which("numactl") is None:
        return "numactl is not installed"
    if name.startswith("memory") and len(facts.topology.numa_nodes) < 2:
        return "there is one memory node"
    if "HBM" in name and not hbm_nodes(facts):
        return "no memory node is HBM"
    if name.startswith("channels") and job.recipe and job.recipe.task != "image-classification":
        return "the recipe trains on no images (--recipe vit-base-beans)"
    return None


def levers(facts: HostFacts, job: Workload, only: set[str]) -> Iterator[tuple[str, int, Workload]]:
    """The launches that are compared for levers: what it is called, its ranks, the launch."""
    assert job.recipe is not None
    asked = []
    for lever in (one for one in LEVERS if one[0].partition(":")[0] in only):
        why = why_not(lever[0], facts, job)
        if why is None:
            asked.append(lever)
        else:
            print(f"{lever[0]}: {why}", file=sys.stderr)
    plain: tuple[tuple[str, int, dict[str, object], tuple[str, ...]], ...]
    plain = tuple((f"{n} ranks", n, {}, ()) for n in sorted({ranks for _, ranks, *_ in asked}))
    Path("patched.py").write_text(PATCHED, encoding="utf-8")
    Path("train.py").write_text(recipe_script().read_text("utf-8"), encoding="utf-8")
    fast = ["--bf16"] if "bf16" in native_precisions(facts) else []
    for name, ranks, other, flags in (*plain, *asked):
        recipe = job.recipe.to_json()
        recipe["model"] |= other.get("model", {})
        file = f"{len(list(Path().iterdir()))}.json"
        Path(file).write_text(json.dumps(recipe), encoding="utf-8")
        batch = ["--per_device_train_batch_size", str(job.recipe.global_batch_size // ranks)]
        variables = {"ACCELERATE_USE_CPU": "true", "LEVER": json.dumps(other)}
        variables |= other.get("variables", {})  # type: ignore[operator]
        words = ["env", *(f"{name}={value}" for name, value in variables.items())]
        more: list[str] = other.get("words", [])  # type: ignore[assignment]
        words += [word.replace("HBM", hbm_nodes(facts)) for word in more]
        words += ["python"] if ranks == 1 else ["torchrun", "--nproc-per-node", str(ranks)]
        words += ["patched.py", "train.py", file, "--output_dir", "out", "--use_cpu"]
        launch = Workload(
            name=recipe["name"],
            argv=("patched.py", "train.py", file),
            launch=(*words, *batch, *fast, *flags),
            launch_ranks=ranks,
            framework="trainer",
            parses_arguments=True,
        )
        yield name, ranks, launch


def read_levers(facts: HostFacts, job: Workload, only: set[str], until: float) -> None:
    """The table of levers, each beside the launch of as many ranks without it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        running = [
            (ranks, Contender(
                name=name, runner=ProcessRunner(launch, facts, fresh=True),
                plan=baseline_plan(facts, ranks=ranks),
            ))
            for name, ranks, launch in levers(facts, job, only)
        ]  # fmt: skip
        side_by_side([one for _, one in running], until=until)
        os.chdir("/")
    plain = {ranks: one for ranks, one in running if one.name == f"{ranks} ranks"}
    rows = {
        one.name: (plain[ranks].name, one.failed or plain[ranks].failed or ratio(one, plain[ranks]))
        for ranks, one in running
        if one is not plain[ranks]
    }
    print(table(rows, ("lever", "beside", "faster by ×")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default=DEFAULT_RECIPE)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    facts = cputune.probe()
    job = Workload.from_recipe(arguments.recipe)
    only = set(filter(None, arguments.only.split(",")))
    if only & {name.partition(":")[0] for name, *_ in LEVERS}:
        read_levers(facts, job, only, until)
        return
    compared = list(pairs(facts, job, only))
    plans = dict.fromkeys(plan for _, *both in compared for plan in both)
    contenders = {
        plan: Contender(
            name=plan.describe(), runner=ProcessRunner(job, facts, fresh=True), plan=plan
        )
        for plan in plans
    }
    side_by_side(list(contenders.values()), until=until)
    rows = {}
    for name, without, changed in compared:
        one, other = contenders[changed], contenders[without]
        failed = one.failed or other.failed
        told = failed or ratio(one, other)
        rows[name] = (other.name, told)
    print(table(rows, ("knob", "beside", "faster by ×")))
    rounds = max(len(one.seconds) for one in contenders.values())
    print(f"\n{facts.cpu.model_name}, {job.name}, global batch {job.global_batch_size};", end=" ")
    print(f"{rounds} rounds.")


if __name__ == "__main__":
    main()
