"""How fast gloo adds gradients between hosts: the same library and network as in the training.

    python reduce.py '{"rank": 0, "ranks": 2, "address": "10.0.0.1", "port": 40123,
                       "interface": "eth0", "seconds": 20}'

The script imports torch, prints ``{"ready": true}``, and waits for the line that says that all
hosts are ready. Every rank prints one line of JSON; that of rank 0 has ``bytes_per_second`` of an
all-reduce, ``delay_seconds`` of a small one, and ``pairs``: for each two hosts the bytes in a
second from the first to the second.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import sys
import time
from typing import Any

SMALL_BYTES, LARGE_BYTES = 64 << 10, 64 << 20  # latency counts for one, the rate for the other
# A transfer that takes so long is long enough to be timed.
LONG_SECONDS = 0.3

# All pairs of eight hosts. If there are more hosts, each is tried with the next one.
MOST_PAIRS = 28


def wait_for_others() -> bool:
    """Wait until all hosts are ready; False if one never will be."""
    print(json.dumps({"ready": True}), flush=True)
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    return not json.loads(line)["absent"]


def main() -> None:
    """Measure, and print the answer."""
    task = json.loads(sys.argv[1])
    os.environ["GLOO_SOCKET_IFNAME"] = task["interface"]
    import torch
    import torch.distributed as dist

    if not wait_for_others():
        print("{}", flush=True)
        os._exit(0)
    place = f"tcp://{task['address']}:{task['port']}"
    if ":" in task["address"]:
        place = f"tcp://[{task['address']}]:{task['port']}"
    dist.init_process_group(
        "gloo",
        init_method=place,
        rank=task["rank"],
        world_size=task["ranks"],
        timeout=datetime.timedelta(seconds=task["seconds"]),
    )
    answer = measured(torch, dist, task["rank"], task["ranks"])
    print(json.dumps(answer), flush=True)
    os._exit(0)


def measured(torch: Any, dist: Any, rank: int, ranks: int) -> dict[str, Any]:
    """What this rank has measured."""

    def seconds_of(work: Any) -> float:
        dist.barrier()
        begun = time.perf_counter()
        work()
        longest = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        return float(longest)

    one = torch.ones(1)
    dist.all_reduce(one)
    delay = min(seconds_of(lambda: dist.all_reduce(one)) for _ in range(5))
    size, took = SMALL_BYTES, 0.0
    while True:
        numbers = torch.zeros(size // 4)
        took = seconds_of(lambda numbers=numbers: dist.all_reduce(numbers))
        if took >= LONG_SECONDS or size >= LARGE_BYTES:
            break
        size *= 4
    rate = size / took
    pairs = list(itertools.combinations(range(ranks), 2))
    if len(pairs) > MOST_PAIRS:
        pairs = [(number, (number + 1) % ranks) for number in range(ranks)]
    rates = []
    numbers = torch.zeros(max(1, min(size, 4 << 20) // 4))
    for first, second in pairs if ranks > 2 else ():

        def between(first: int = first, second: int = second) -> None:
            if rank == first:
                dist.send(numbers, second)
                dist.recv(one, second)
            elif rank == second:
                dist.recv(numbers, first)
                dist.send(one, first)

        rates.append([first, second, 4 * len(numbers) / seconds_of(between)])
    return {"bytes_per_second": rate, "delay_seconds": delay, "pairs": rates}


if __name__ == "__main__":
    main()
