"""The machine changes under a study: its CPUs, its memory, its clock."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from faults.outcome import Outcome
from faults.parents import LIGHT
from faults.struck import first_trial, not_as_struck
from faults.watched import PATIENCE, TUNE, Watched, judge

GROUPS = Path("/sys/fs/cgroup")
MEMORY_BYTES = 1 << 30
BUDGET = ("--budget", "8", "--max-time", f"{60 * PATIENCE:.0f}s")
TWO_PLANS = ("--budget", "2", "--max-time", f"{300 * PATIENCE:.0f}s")
"""The launch as it is and another one. How many rounds of them fit into the time is open."""


@contextlib.contextmanager
def control_group(kind: str) -> Iterator[Path | None]:
    """A new control group below our own, of version 1 or 2; None where none can be made."""
    home = GROUPS / kind if (GROUPS / kind).is_dir() else GROUPS
    group = home / f"cputune-faults-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        yield group if any(group.glob(f"{kind}.*")) else None
    finally:
        with contextlib.suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                (home / "cgroup.procs").write_text(pid)
        group.rmdir()


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def cpuset_shrinks(place: Path, dice: Random) -> Outcome:
    """The CPUs of the whole study become the first one alone, after its first trial."""
    place.mkdir(parents=True)
    with control_group("cpuset") as group:
        cpus = sorted(os.sched_getaffinity(0))
        if group is None or len(cpus) < 2:
            return Outcome(tried=False)
        (group / "cpuset.cpus").write_text(",".join(map(str, cpus)))
        (group / "cpuset.mems").write_text("0")
        words = (*TUNE, *BUDGET, "--", *LIGHT)
        watched = Watched(place, words, limit=lambda: _enter(group))
        watched.until("trial 0:")
        watched.wait(dice.uniform(0.0, 1.0))
        (group / "cpuset.cpus").write_text(str(cpus[0]))
        return judge(watched, expects=(0, 3, 4))


def cpu_goes_offline(place: Path, dice: Random) -> Outcome:
    """The last CPU is taken offline after the first trial, and comes back at the end."""
    switch = Path(f"/sys/devices/system/cpu/cpu{max(os.sched_getaffinity(0))}/online")
    if not os.access(switch, os.W_OK) or os.environ.get("FAULTS_MAY_OFFLINE") != "1":
        return Outcome(tried=False)
    place.mkdir(parents=True)
    watched = Watched(place, (*TUNE, *BUDGET, "--", *LIGHT))
    watched.until("trial 0:")
    watched.wait(dice.uniform(0.0, 1.0))
    try:
        switch.write_text("0")
        return judge(watched, expects=(0, 3, 4))
    finally:
        switch.write_text("1")


def memory_of_the_group_is_gone(place: Path, dice: Random) -> Outcome:
    """The rank of trial 1 takes all memory of the control group: the kernel kills it for that, and
    the trial is run again, without the processes of trial 0."""
    place.mkdir(parents=True)
    with control_group("memory") as group:
        if group is None:
            return Outcome(tried=False)
        names = ("memory.limit_in_bytes", "memory.max")
        limits = [group / name for name in names if (group / name).exists()]
        limits[0].write_text(str(MEMORY_BYTES))
        words = (*TUNE, *TWO_PLANS, "--", *LIGHT)
        environment = first_trial("memory", place)
        watched = Watched(place, words, environment, limit=lambda: _enter(group))
        outcome = judge(watched, expects=(0, 4))
        return replace(outcome, why=outcome.why or _not_run_again(place))


def _not_run_again(place: Path) -> str:
    """What is wrong if trial 1 was not run again, or two plans were not compared; or nothing.

    They may lack a comparison for one reason: the time was over.
    """
    why = json.loads((place / "cputune.json").read_text())["not_compared"]
    if why is not None and not why.startswith("the time limit was reached"):
        return why
    return not_as_struck(place, fails=False)


CLOCK = """
import datetime, random, time
_dice, _true = random.Random({seed}), time.time
time.time = lambda: _true() + _dice.uniform(-1e6, 1e6)
time.time_ns = lambda: int(time.time() * 1e9)
"""


def clock_jumps(place: Path, dice: Random) -> Outcome:
    """The wall clock is another one at every look, days before or after."""
    place.mkdir(parents=True)
    (place / "sitecustomize.py").write_text(CLOCK.format(seed=dice.randrange(1 << 30)))
    words = (*TUNE, *BUDGET, "--max-time", "1h", "--", *LIGHT)
    watched = Watched(place, words, {"PYTHONPATH": str(place)})
    return judge(watched)


MACHINE = {
    "the cpuset shrinks to one CPU": cpuset_shrinks,
    "a CPU goes offline": cpu_goes_offline,
    "a rank takes the memory of its control group": memory_of_the_group_is_gone,
    "the wall clock jumps by days": clock_jumps,
}
