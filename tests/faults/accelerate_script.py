"""accelerate's nlp_example way: a loop of one's own, accumulation, evaluation, saving."""

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from tiny import Data, model
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default=None)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()

if args.output_dir is not None:
    os.makedirs(args.output_dir, exist_ok=True)
accelerator = Accelerator(
    cpu=args.cpu, gradient_accumulation_steps=args.accumulation, log_with=None
)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
train_loader = DataLoader(Data(), shuffle=True, batch_size=args.batch_size)
eval_loader = DataLoader(Data(20), batch_size=5)
net, optimizer, train_loader, eval_loader = accelerator.prepare(
    net, optimizer, train_loader, eval_loader
)
for _ in range(3):
    net.train()
    for batch in train_loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    net.eval()
    for batch in eval_loader:
        with torch.no_grad():
            accelerator.gather_for_metrics(net(**batch).logits)
    accelerator.save_state(args.output_dir)
Path("trained.txt").write_text("a trial never comes here")
