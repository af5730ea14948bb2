"""Five seconds of real work: what all allowed CPUs reach, and how many threads really run.

Prints a line of JSON after each part: {"threads": 8, "ran": 8}, {"fp32_gflops": …}, {"mhz": …},
{"bf16_gflops": …}, {"copy_gb_per_second": …}, {"all_reduce_gb_per_second": …}. Times are wall-clock
times, so that CPU time lost to others shows.
"""

import contextlib
import datetime
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Rows of the matrices: 17 GFLOP a matmul, and 50 MB in fp32.
SIZE = 2048
# Duration of each part.
SECONDS = 1.0
COPIED_BYTES = 256 << 20
REDUCED_BYTES = 64 << 20
TICKS_PER_SECOND = 100
# A thread counts as running if it used a CPU for this share of a part.
RAN_SHARE = 0.5


def send(**facts: object) -> None:
    """Print the result so far; it survives a crash."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def ticks() -> dict[str, int]:
    """The CPU time of each thread."""
    by_thread = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parts = (task / "stat").read_text().rpartition(")")[2].split()
            by_thread[task.name] = int(parts[11]) + int(parts[12])
    return by_thread


def times_of(work: Callable[[], object], seconds: float = SECONDS) -> tuple[int, float]:
    """How often this was done, and in what time, without a warm-up call."""
    work()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        work()
        count += 1
    return count, time.perf_counter() - begun


def megahertz() -> float:
    """The highest current frequency in /proc/cpuinfo; 0 if it shows none."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        return max((float(mhz) for mhz in re.findall(r"cpu MHz\s*:\s*([\d.]+)", text)), default=0.0)
    return 0.0


def multiply(torch: Any) -> None:
    """Matmuls in fp32 with all threads, then in bf16."""
    matrix = torch.randn(SIZE, SIZE)
    flops = 2 * SIZE**3
    torch.mm(matrix, matrix)
    before = ticks()
    count, seconds = times_of(lambda: matrix @ matrix)
    used = [after - before.get(name, 0) for name, after in ticks().items()]
    ran = sum(each / TICKS_PER_SECOND > RAN_SHARE * seconds for each in used)
    send(threads=torch.get_num_threads(), ran=ran, busy=sum(used) / TICKS_PER_SECOND / seconds)
    send(fp32_gflops=count * flops / seconds / 1e9, mhz=megahertz())
    short = matrix.to(torch.bfloat16)
    count, seconds = times_of(lambda: short @ short)
    send(bf16_gflops=count * flops / seconds / 1e9)


def copy(torch: Any) -> None:
    """Read and write memory with all threads."""
    one = torch.ones(COPIED_BYTES // 4)
    other = torch.empty_like(one)
    count, seconds = times_of(lambda: other.copy_(one))
    send(copy_gb_per_second=2 * count * COPIED_BYTES / seconds / 1e9)


def reduce(torch: Any) -> None:
    """Two ranks, threads of this process, exchange gradients over loopback by gloo."""
    import torch.distributed as dist

    store = dist.HashStore()
    limit = datetime.timedelta(seconds=30)
    spent: list[float] = []

    def rank(number: int) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = limit
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        group = dist.ProcessGroupGloo(store, number, 2, options)
        tensor = torch.ones(REDUCED_BYTES // 4)
        group.allreduce([tensor]).wait()
        begun = time.perf_counter()
        for _ in range(4):
            group.allreduce([tensor]).wait()
        spent.append((time.perf_counter() - begun) / 4)

    ranks = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(30)
    if len(spent) == len(ranks):
        send(all_reduce_gb_per_second=REDUCED_BYTES / max(spent) / 1e9)


def main() -> None:
    """Each part in turn; a part that this torch cannot do is skipped."""
    import torch

    with torch.no_grad():
        multiply(torch)
        copy(torch)
    try:
        reduce(torch)
    except Exception as error:
        sys.stderr.write(f"all-reduce: {type(error).__name__}: {error}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
