"""What does ``cputune run`` cost before a training starts? Seconds more than plain python.

    python benchmarks/run_start.py --rounds 21             # to the first line of an empty script
    python benchmarks/run_start.py --rounds 5 --to-step    # and to the first step of a tiny model

Rounds are interleaved: each starts the script by plain ``python``, by ``cputune run`` where no
plan is known, and by ``cputune run`` with the plan of a result. A figure is the median of the
differences to plain python, with the range in which 19 of 20 medians of such rounds lie; in
brackets the CPU seconds, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launch_lines import MODEL

import cputune
from cputune.plans.layout import baseline_plan, mild_plan
from cputune.plans.workload import Workload
from cputune.records.claims import host_fingerprint
from cputune.records.history import history_folder
from cputune.records.result import Measured, Result, Throughput

UNKNOWN = "no plan is known"
EMPTY = "print('started', flush=True)\n"
STEP = f"""{MODEL}
optimizer = torch.optim.AdamW(model.parameters())
loss = model(**collate(rows[:8])).loss
loss.backward()
optimizer.step()
print('started', flush=True)
"""


def known(script: str) -> None:
    """A result here, as a study of this script would have left it."""
    facts = cputune.probe()
    speed = Throughput(centre=1.0, low=0.9, high=1.1)
    job = Workload.script([script], global_batch_size=8)
    result = Result(
        host=host_fingerprint(facts),
        versions={},
        workload=job,
        baseline=Measured(plan=baseline_plan(facts), samples_per_second=speed),
        best=Measured(plan=mild_plan(facts), samples_per_second=speed),
        speedup=None,
        not_compared="a benchmark made it",
        trials=(),
        created="2026-11-26T12:00:00+00:00",
    )
    result.save("cputune.json")


def started(argv: list[str]) -> tuple[float, float]:
    """Seconds until the script has printed its line, and CPU seconds of all of it."""
    before, began = os.times(), time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n", argv
        taken = time.perf_counter() - began
    after = os.times()
    used = after.children_user + after.children_system
    return taken, used - before.children_user - before.children_system


def median_range(values: list[float]) -> str:
    """The median with the range of 19 in 20 medians of rounds drawn from these."""
    draw = random.Random(0)
    drawn = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return f"{statistics.median(values):.3f} s ({drawn[25]:.3f} to {drawn[974]:.3f})"


def main() -> None:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--to-step", action="store_true", help="also to the first step of a model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cputune-run-") as place:
        os.chdir(place)
        os.environ["XDG_STATE_HOME"] = place
        assert history_folder() is not None
        for name, text in (("empty.py", EMPTY), ("step.py", STEP))[: 1 + options.to_step]:
            Path(name).write_text(text)
            known(name)
            plain = [sys.executable, name]
            run = [sys.executable, "-m", "cputune", "run"]
            ways = {UNKNOWN: [*run, "--", *plain], "the plan of a result": [*run, "--", *plain]}
            measured(name, plain, ways, options.rounds)


def measured(name: str, plain: list[str], ways: dict[str, list[str]], rounds: int) -> None:
    """Print what each way costs more than plain python, to the first line of a script."""
    result = Path("cputune.json").read_bytes()
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    usual = []
    for _ in range(rounds):
        usual.append(started(plain))
        for way, argv in ways.items():
            if way == UNKNOWN:
                Path("cputune.json").unlink()
            taken[way].append(started(argv))
            Path("cputune.json").write_bytes(result)
    print(f"{name}: python {statistics.median(seconds for seconds, _ in usual):.3f} s")
    for way, found in taken.items():
        pairs = list(zip(found, usual, strict=True))
        more = [ours[0] - theirs[0] for ours, theirs in pairs]
        cpu = statistics.median(ours[1] - theirs[1] for ours, theirs in pairs)
        print(f"  cputune run, {way}: {median_range(more)} more [{cpu:.3f} CPU s]")


if __name__ == "__main__":
    main()
