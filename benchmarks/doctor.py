"""How quick the doctor is, beside what people use today: two ratios in one run.

    python benchmarks/doctor.py [--rounds 7]

``cputune doctor`` beside ``python -m torch.utils.collect_env`` (at most 1/5), and
``cputune --help`` beside ``python -c pass`` (at most 4 times): in CPU time, user's and kernel's,
which other processes change little, and in wall time, for which the machine has to be quiet.
Every round runs all four, and a ratio is taken within a round. Python keeps its byte code, as it
does wherever cputune is installed. Printed are the median of the ratios and their range. Ends with
1 if a median misses its limit.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

CPUTUNE = str(Path(sysconfig.get_path("scripts")) / "cputune")
COMMANDS = {
    "cputune doctor": [CPUTUNE, "doctor", "--fail-on", "never"],
    "collect_env": [sys.executable, "-W", "ignore", "-m", "torch.utils.collect_env"],
    "cputune --help": [CPUTUNE, "--help"],
    "python -c pass": [sys.executable, "-c", "pass"],
}
RATIOS = (
    # ours, theirs, the most that the ratio may be
    ("cputune doctor", "collect_env", 0.2),
    ("cputune --help", "python -c pass", 4.0),
)


def seconds(argv: list[str]) -> tuple[float, float]:
    """CPU time of one run and its children, and its wall time; the output is thrown away."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> int:
    """Measure, print, compare with the limits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = max(1, parser.parse_args().rounds)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for argv in COMMANDS.values():  # fill the caches of files and byte code
        seconds(argv)
    times = [{name: seconds(argv) for name, argv in COMMANDS.items()} for _ in range(rounds)]
    failed = False
    for index, clock in enumerate(("CPU time", "wall time")):
        print(f"{clock}:")
        for name in COMMANDS:
            column = [row[name][index] for row in times]
            print(
                f"  {name:16} median {1000 * statistics.median(column):7.1f} ms, "
                f"{1000 * min(column):.1f} to {1000 * max(column):.1f}"
            )
        for ours, theirs, limit in RATIOS:
            ratios = [row[ours][index] / row[theirs][index] for row in times]
            median = statistics.median(ratios)
            failed |= median > limit
            print(
                f"  {ours} / {theirs}: median {median:.3f}, {min(ratios):.3f} to "
                f"{max(ratios):.3f} in {rounds} rounds "
                f"(limit {limit:g}: {'missed' if median > limit else 'kept'})"
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
