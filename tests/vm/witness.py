"""What a script of a Trainer would be: each rank writes down where it may run. Needs no torch.

That it names TrainingArguments makes the default plan one of several ranks; a loop of its own
would get one.

witness.py DIRECTORY
"""

import json
import os
import sys
from pathlib import Path

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "MASTER_ADDR")

seen = {name: os.environ.get(name) for name in NAMES}
directory = Path(sys.argv[1])
directory.mkdir(parents=True, exist_ok=True)
(directory / f"rank-{seen['RANK']}.json").write_text(
    json.dumps({**seen, "cpus": sorted(os.sched_getaffinity(0))})
)
