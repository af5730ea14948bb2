"""A rank that needs no torch: it says what one would say, a step each few milliseconds.

``light.py SECONDS`` makes steps that last so long.
"""

import os
import sys
import time

from cputune.inside import state
from cputune.inside.speak import Speaker

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 0.005
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}

speaker = Speaker()
speaker.say(
    {
        "event": "state",
        **state.read(),
        "world_size": WORLD,
        "backend": "gloo" if WORLD > 1 else None,
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "dtype": DTYPES.get(os.environ.get("ACCELERATE_MIXED_PRECISION", ""), "float32"),
        "optimizer": {"class": "AdamW", "fused": True, "foreach": False},
        "ipex": False,
        "framework": "accelerate",
        "samples": 8 // WORLD,
    }
)
number = 0
while True:
    number += 1
    time.sleep(SECONDS)
    speaker.say(
        {
            "event": "step",
            "number": number,
            "seconds": SECONDS,
            "samples": 8 // WORLD,
            "loss": 1.0,
            "delayed": 0.0,
        }
    )
