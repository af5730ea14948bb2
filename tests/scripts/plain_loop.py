"""A loop over torch alone: a DataLoader, a loss, an optimizer; then a checkpoint."""

import argparse
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--evaluate_every", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(96, 16)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    train = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    held_out = DataLoader(data, batch_size=32)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = args.epochs * len(train) // args.accumulate
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    evaluate(model, held_out)
    done = 0
    for _ in range(args.epochs):
        for number, (inputs, labels) in enumerate(train, start=1):
            lower = torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext()
            with lower:
                loss = nn.functional.cross_entropy(model(inputs), labels)
            (loss / args.accumulate).backward()
            if number % args.accumulate:
                continue
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if done % args.evaluate_every == 0:
                evaluate(model, held_out)
    torch.save(model.state_dict(), "plain_loop.pt")
    print(f"{done} steps, accuracy {evaluate(model, held_out):.2f}")


if __name__ == "__main__":
    main()
