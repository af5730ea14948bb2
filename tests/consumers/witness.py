"""A training script as plain as can be: every rank writes down what it saw, and they add up.

witness.py DIRECTORY [anything, to be carried exactly]
"""

import json
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
seen = {
    "host": socket.gethostname(),
    "rank": dist.get_rank(),
    "world_size": dist.get_world_size(),
    "sum": total.item(),
    "affinity": sorted(os.sched_getaffinity(0)),
    "threads": torch.get_num_threads(),
    "arguments": sys.argv[2:],
    "environment": dict(os.environ),
}
Path(sys.argv[1], f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
