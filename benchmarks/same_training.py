"""A whole training as typed, and as a plan carries it to 1 and 2 ranks: loss and metric beside.

    python benchmarks/same_training.py [SEEDS]

The task is UCI's handwritten digits, as scikit-learn brings them: a loop over an Accelerator with
dropout, a linear schedule and an evaluation loader that is prepared first. Nothing here is timed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from cputune.inside import applying_script
from cputune.inside.applying.force import Force

TRAIN = """
import json, sys, torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

set_seed(int(sys.argv[1]))
accelerator = Accelerator(cpu=True)
digits = load_digits()
pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
held, rest = order[:357], order[357:]
test = DataLoader(TensorDataset(pixels[held], labels[held]), batch_size=64)
train = DataLoader(TensorDataset(pixels[rest], labels[rest]), batch_size=32, shuffle=True)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
total = 8 * len(train)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
model, optimizer, test, train, schedule = accelerator.prepare(
    model, optimizer, test, train, schedule)
steps = 0
for epoch in range(8):
    model.train()
    for x, y in train:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); schedule.step(); optimizer.zero_grad(); steps += 1
model.eval()
losses, right = [], []
with torch.no_grad():
    for x, y in test:
        out, y = accelerator.gather_for_metrics((model(x), y))
        losses.append(torch.nn.functional.cross_entropy(out, y, reduction="none"))
        right.append(out.argmax(-1) == y)
if accelerator.is_main_process:
    print("END" + json.dumps({"steps": steps, "rate": schedule.get_last_lr()[0],
        "loss": float(torch.cat(losses).mean()), "right": float(torch.cat(right).float().mean())}))
"""


def train(script: Path, seed: int, ranks: int, force: Force | None) -> dict[str, float]:
    """One training from start to end; what it says at its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    carried = [] if force is None else [str(applying_script()), force.to_json()]
    numbers = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    started = [
        subprocess.Popen(
            [sys.executable, *carried, str(script), str(seed)],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                **({**numbers, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate()[0] for process in started]
    line = next(line for line in said[0].splitlines() if line.startswith("END"))
    told: dict[str, float] = json.loads(line[3:])
    return told


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("seed  launch              steps  last rate  test loss  right")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAIN, encoding="utf-8")
        for seed in range(seeds):
            for name, ranks, force in (
                ("as typed, 1 rank", 1, None),
                ("plan of 1 rank", 1, Force(world_size=1, loader=1)),
                ("plan of 2 ranks", 2, Force(world_size=2, loader=1)),
            ):
                end = train(script, seed, ranks, force)
                print(
                    f"{seed:4}  {name:18} {end['steps']:6} {end['rate']:10.2g} "
                    f"{end['loss']:10.4f} {end['right']:6.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
