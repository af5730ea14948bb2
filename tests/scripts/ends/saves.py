"""Trains by a loop over accelerate, evaluates and saves. How it saves is its argument."""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def forward(self, x):
        return self.layer(x)

    def save_pretrained(self, place):
        Path(place).mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), Path(place) / "model.pt")


def main():
    parser = argparse.ArgumentParser()
    ways = ["unwrapped", "wrapped", "keys", "metrics", "folds", "half", "counts"]
    parser.add_argument("how", choices=ways)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    for _ in range(2 if args.how == "folds" else 1):
        torch.manual_seed(0)
        x = torch.randn(256, 16)
        data = TensorDataset(x, x.sum(1, keepdim=True))
        train, held_out = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, 8)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)
        for _ in range(args.epochs):
            batches = taken = iter(train)
            if args.how == "counts":  # a pass that ends earlier would be a StopIteration
                batches = (next(taken) for _ in range(len(train)))
            for inputs, labels in batches:
                optimizer.zero_grad()
                accelerator.backward(nn.functional.mse_loss(model(inputs), labels))
                optimizer.step()
            with torch.no_grad():
                losses = [nn.functional.mse_loss(model(x), y) for x, y in held_out]
                losses = torch.stack(losses)
                if args.how != "half":
                    losses = accelerator.gather(losses)
    metrics = {"eval_loss": float(losses.mean())}
    if accelerator.is_main_process:
        place = Path(args.output_dir)
        place.mkdir(parents=True, exist_ok=True)
        if args.how == "wrapped":
            model.save_pretrained(place)
        elif args.how == "keys":
            torch.save({"model": model.state_dict(), "step": 1}, place / "model.pt")
        else:
            accelerator.unwrap_model(model).save_pretrained(place)
        if args.how == "metrics" and accelerator.num_processes == 1:
            metrics["accuracy"] = 1.0
        (place / "metrics.json").write_text(json.dumps(metrics))
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
