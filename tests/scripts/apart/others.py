"""Ways to train on several ranks that are no fault, and "own", which is one: the argument."""

import argparse
import contextlib
import time

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, TensorDataset

WAYS = [
    "own",
    "two_models",
    "zero",
    "probe",
    "folds",
    "uneven",
    "local_sgd",
    "evaluates",
    "accumulates",
]


def stepped(accelerator, model, optimizer, inputs, labels):
    optimizer.zero_grad()
    accelerator.backward(nn.functional.mse_loss(model(inputs), labels))
    optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    way = parser.parse_args().way
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=4 if way == "accumulates" else 1
    )
    x = torch.randn(512, 16)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    for _ in range(2 if way == "folds" else 1):
        loader = DataLoader(data, batch_size=8, shuffle=True)
        model, other = nn.Linear(16, 1), nn.Linear(16, 1)
        kind = torch.optim.AdamW
        if way == "zero":
            model = nn.parallel.DistributedDataParallel(model)
            optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, lr=1e-2)
            loader = accelerator.prepare(loader)
        else:
            optimizer = kind(model.parameters(), lr=1e-2)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        second = kind(other.parameters(), lr=1e-2)
        if way == "two_models":
            other, second = accelerator.prepare(other, second)
        with contextlib.ExitStack() as held:
            if way == "local_sgd":
                local = LocalSGD(
                    accelerator=accelerator, model=model, local_sgd_steps=8, enabled=True
                )
                held.enter_context(local)
            if way == "uneven":
                held.enter_context(Join([model]))
            for number, (inputs, labels) in enumerate(loader):
                if way == "uneven" and number > 20 + accelerator.process_index:
                    break
                if way == "accumulates":
                    with accelerator.accumulate(model):
                        stepped(accelerator, model, optimizer, inputs, labels)
                    continue
                stepped(accelerator, model, optimizer, inputs, labels)
                if way in ("two_models", "own"):
                    stepped(accelerator, other, second, inputs, labels)
                if way == "local_sgd":
                    local.step()
                if way == "evaluates" and number == 5 and accelerator.is_main_process:
                    time.sleep(20)
                if way == "probe" and number % 4 == 0 and accelerator.is_main_process:
                    second.zero_grad()
                    nn.functional.mse_loss(other(inputs), labels).backward()
                    second.step()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
