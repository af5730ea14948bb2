"""How often ranks of a script abort or hang at their very end, with and without apply_plan.py.

    python benchmarks/clean_end.py --launches 100

Two ranks train a little with DistributedDataParallel over gloo. One script leaves a collective
at work as ``async_op`` does, and ends without a word about its process group, as most do; the
other destroys its group and then frees its model, as those that use accelerate do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cputune.inside import applying_script
from cputune.ranks.engines import held_port

TRAIN = """
import torch
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
"""
ENDS = {
    "silent": "work = torch.distributed.all_reduce(torch.ones(1 << 20), async_op=True)",
    "tidy": """
gathered = [torch.empty(1 << 20) for _ in range(2)]
torch.distributed.all_gather(gathered, torch.ones(1 << 20))
torch.distributed.destroy_process_group()
del model
""",
}
RANKS = 2
MOST_SECONDS = 60.0


def launch(command: Sequence[str]) -> str:
    """How one launch ended, in a word."""
    with held_port() as holder:
        port = str(holder.getsockname()[1])
        world = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
        world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(RANKS)
        ]
        try:
            codes = [rank.wait(timeout=MOST_SECONDS) for rank in ranks]
        except subprocess.TimeoutExpired:
            return "hung"
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return "ended well" if not any(codes) else f"ended with {codes}"


def count(command: Sequence[str], launches: int) -> Counter[str]:
    """How many launches ended how."""
    return Counter(launch(command) for _ in range(launches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=100)
    parser.add_argument("--plain", action="store_true", help="without apply_plan.py, to compare")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        apply = [] if arguments.plain else [str(applying_script()), "{}"]
        for kind, end in ENDS.items():
            script = Path(place) / f"{kind}.py"
            script.write_text(TRAIN + end)
            ends = count([sys.executable, *apply, str(script)], arguments.launches)
            print(f"{arguments.launches} launches, {RANKS} ranks, {kind}{' plain' * (not apply)}:")
            for how, times in ends.most_common():
                print(f"  {times:4} {how}")


if __name__ == "__main__":
    main()
