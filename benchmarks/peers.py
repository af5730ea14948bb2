"""The tuned launch beside what else people start a training with: same script, same batch.

    python benchmarks/peers.py [cputune.json] [--minutes 5.5]

Reads what `cputune tune` has found for a recipe, emits its torchrun.sh, and starts beside it: the
launch as found, bf16 by hand, tcmalloc preloaded by hand, torch's own `run_cpu`, torchrun,
`accelerate launch`, and `ipexrun` where it is installed; of a recipe whose samples are padded to
one length also tcmalloc with each batch padded to its longest by hand.

Each is compared with the tuned launch alone, as `tune` compares its plans: at least three blocks of
new processes of the two, in alternating order of starts, taking turns. So the interval has the
scatter between processes, and no crowd of launches slows down those that suffer from it. All at
once would be quicker, but wrong: glibc's malloc loses up to 18 % with four alive. The tuned launch
is compared with itself, too, as a control: 1.00 has to be in that interval. Prints a Markdown
table: samples per second (median), and how much faster the tuned launch is, with the 95 % interval.

Needs a quiet machine, and memory for two launches. The minutes are divided among the launches; each
takes at least three blocks, of two starts of some ten seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from turns import Contender, in_blocks, table

import cputune
from cputune.host.facts import HostFacts
from cputune.inside import recipe_script
from cputune.plans.knobs.precision import native_precisions
from cputune.plans.layout import baseline_plan
from cputune.plans.workload import Recipe, Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.result import Result
from cputune.stack import ipex_use, versions_of
from cputune.tuner.gains import Gain

TUNED = "cputune's torchrun.sh"
CONTROL = "the same launch once more (control)"
BY_HAND = "longest.json"
"""The recipe as a collator would have it that pads each batch to its longest sample."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", nargs="?", default="cputune.json", type=Path)
    parser.add_argument("--minutes", type=float, default=5.5)
    arguments = parser.parse_args()
    begun = time.monotonic()
    result = Result.load(arguments.result)
    recipe = result.workload.recipe
    if recipe is None:
        sys.exit("the result is of a script: tune a recipe for this benchmark")
    facts = cputune.probe()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for file in cputune.emit(result, "torchrun"):
            Path(file.name).write_text(file.text, encoding="utf-8")
        Path("train.py").write_text(recipe_script().read_text("utf-8"), "utf-8")
        for name, padding in (("recipe.json", None), (BY_HAND, "longest")):
            said = recipe.to_json()
            if said["lengths"] and padding:
                said["lengths"]["padding"] = padding
            Path(name).write_text(json.dumps(said), encoding="utf-8")
        contenders = [
            contender(facts, recipe, name, words, ranks)
            for name, words, ranks in launches(facts, result)
        ]
        tuned, *others = contenders
        control = contender(facts, recipe, CONTROL, ["bash", "torchrun.sh"], tuned.plan.world_size)
        gains = {}
        with ExitStack() as ended:
            for one in (tuned, control, *others):
                ended.enter_context(one.runner)
            for number, other in enumerate((control, *others), start=1):
                until = begun + 60 * arguments.minutes * number / len(contenders)
                gain = in_blocks(tuned, other, until=until)
                print(f"{other.name}: {other.failed or text_of(gain)}", file=sys.stderr, flush=True)
                if gain is not None:
                    gains[other.name] = gain
        os.chdir("/")
    report(facts, result, tuned, [control, *others], gains)


def launches(facts: HostFacts, result: Result) -> Iterator[tuple[str, list[str], int]]:
    """What each is called, the words that start it, and how many ranks that are."""
    recipe = result.workload.recipe
    assert recipe is not None
    batch = recipe.global_batch_size
    fast = ["--bf16"] if "bf16" in native_precisions(facts) else []
    said = ", bf16" if fast else ""

    def train(ranks: int, *flags: str, recipe: str = "recipe.json") -> list[str]:
        words = ["train.py", recipe, "--output_dir", "out", "--use_cpu"]
        return [*words, "--per_device_train_batch_size", str(batch // ranks), *flags]

    yield TUNED, ["bash", "torchrun.sh"], result.best.plan.processes_per_node
    yield "python, as found", ["python", *train(1)], 1
    if fast:
        yield "python --bf16", ["python", *train(1, *fast)], 1
    xeon = ["python", "-m", "torch.backends.xeon.run_cpu", "--ninstances", "1"]
    yield f"run_cpu{said}", [*xeon, *train(1, *fast)], 1
    tcmalloc = facts.library("tcmalloc")
    if tcmalloc is not None:
        words = ["env", f"LD_PRELOAD={tcmalloc.path}", "python", *train(1, *fast)]
        yield f"LD_PRELOAD=tcmalloc python{said}", words, 1
        if recipe.lengths is not None and recipe.lengths.padding == "max_length":
            words = [*words[:2], "python", *train(1, *fast, recipe=BY_HAND)]
            yield f"LD_PRELOAD=tcmalloc python{said}, padded by hand to the longest", words, 1
        # It looks for libtcmalloc.so in CONDA_PREFIX first, and not for Debian's _minimal.so.4.
        place = Path("conda/lib")
        place.mkdir(parents=True, exist_ok=True)
        (place / "libtcmalloc.so").symlink_to(tcmalloc.path)
        found = ["env", f"CONDA_PREFIX={place.parent.resolve()}"]
        words = [*found, *xeon, "--enable-tcmalloc", *train(1, *fast)]
        yield f"run_cpu --enable-tcmalloc{said}", words, 1
    ranks = max(2, len(facts.topology.numa_nodes))
    if batch % ranks == 0 and ranks <= len(facts.topology.allowed_cores):
        # accelerate >= 1.13 trains every rank alone without it (huggingface/accelerate#3883).
        words = ["env", "ACCELERATE_USE_CPU=true", "torchrun", "--nproc-per-node", str(ranks)]
        yield f"torchrun, {ranks} ranks{said}", [*words, *train(ranks, *fast)], ranks
    mixed = ["--mixed_precision", "bf16"] if fast else []
    words = ["accelerate", "launch", "--cpu", *mixed, *train(1, *fast)]
    yield f"accelerate launch --cpu{said}", words, 1
    if shutil.which("ipexrun", path=str(Path(sys.executable).parent)) is not None:
        use = ["--use_ipex"] if ipex_use(versions_of(facts)).possible else []
        words = ["ipexrun", "--ninstances", "1", *train(1, *fast, *use)]
        yield f"ipexrun{said}{', IPEX' if use else ''}", words, 1


def contender(
    facts: HostFacts, recipe: Recipe, name: str, words: list[str], ranks: int
) -> Contender:
    """A launch as it is typed, in processes that stand still between their turns."""
    job = Workload(
        name=recipe.name,
        argv=("train.py", "recipe.json"),
        launch=tuple(words),
        launch_ranks=ranks,
        framework="trainer",
        parses_arguments=True,
    )
    plan = baseline_plan(facts, ranks=ranks)
    return Contender(name=name, runner=ProcessRunner(job, facts, fresh=True), plan=plan)


def text_of(gain: Gain | None) -> str:
    """How many times as fast, with the 95 % interval."""
    if gain is None:
        return "not compared"
    speedup = gain.speedup
    return f"{speedup.ratio:.2f} ({speedup.low:.2f}–{speedup.high:.2f})"


def report(
    facts: HostFacts,
    result: Result,
    tuned: Contender,
    others: Sequence[Contender],
    gains: Mapping[str, Gain],
) -> None:
    """The table, what was launched, and what could not be."""
    if not tuned.seconds:
        sys.exit(f"the tuned launch did not run: {tuned.failed}")
    ran = [tuned, *[one for one in others if one.name in gains]]
    rows = {}
    for one in sorted(ran, key=lambda one: -one.samples_per_second):
        gain = gains.get(one.name)
        rows[one.name] = (f"{one.samples_per_second:.1f}", "" if gain is None else text_of(gain))
    print(table(rows, ("launch", "samples/s", "the tuned launch is faster by ×")))
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    print(f"\n{facts.cpu.model_name}, {len(facts.topology.allowed_cores)} cores; {versions}.")
    print(f"{result.workload.name}, global batch {result.workload.global_batch_size};", end=" ")
    print(f"tuned: {result.best.plan.describe()}; {len(tuned.seconds)} rounds.")
    for one in (tuned, *others):
        if one.failed is not None:
            print(f"{one.name}: {one.failed}")


if __name__ == "__main__":
    main()
