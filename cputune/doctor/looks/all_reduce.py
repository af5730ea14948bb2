"""One rank of an all-reduce over several hosts: how long DDP's buckets take.

    python all_reduce.py '{"sizes": [4, 1048576, 26214400], "seconds": 30,
        "variables": {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", ...}}'

Prints one line of JSON: of each size in bytes, in their order, the median seconds of this rank.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from datetime import timedelta

MOST_TIMES, LEAST_TIMES = 20, 3
SECONDS_EACH = 1.0


def main() -> None:
    """Meet the others, measure, say it, and leave at once."""
    asked = json.loads(sys.argv[1])
    os.environ.update(asked["variables"])
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=asked["seconds"]))
    told = []
    for size in asked["sizes"]:
        data = torch.ones(max(1, size // 4))
        dist.all_reduce(data)  # the first one opens buffers
        started = time.perf_counter()
        dist.all_reduce(data)
        wanted = SECONDS_EACH / max(time.perf_counter() - started, 1e-6)
        # All ranks must do it equally often: the first one says how often.
        times = torch.tensor([float(min(MOST_TIMES, max(LEAST_TIMES, wanted)))])
        dist.broadcast(times, 0)
        took = []
        for _ in range(int(times.item())):
            data.fill_(1.0)
            dist.barrier()
            started = time.perf_counter()
            dist.all_reduce(data)
            took.append(time.perf_counter() - started)
        told.append(statistics.median(took))
        if data[0].item() != dist.get_world_size():
            raise SystemExit("the sum of all ranks is wrong")
    print(json.dumps({"seconds": told}), flush=True)
    dist.barrier()
    # torch 2.13 may hang in the very end, when the interpreter frees gloo (pytorch#179291).
    os._exit(0)


if __name__ == "__main__":
    main()
