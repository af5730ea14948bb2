"""Real frameworks under a plan of another number of ranks: they train what they would as typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from numbered_ranks import numbered_ranks

from cputune.inside import applying_script
from cputune.inside.applying.force import Force

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

SEEN = """
import json, os, sys
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

steps = []

def look(optimizer, *_):
    grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    norm = float(torch.stack([g.norm() for g in grads]).norm())
    steps.append((optimizer.param_groups[0]["lr"], norm))

register_optimizer_step_pre_hook(look)

def tell(**more):
    if os.environ.get("RANK", "0") == "0":
        print("SEEN" + json.dumps({"rates": [s[0] for s in steps], "norms": [s[1] for s in steps],
                                   **more}))
"""

LOOP = (
    SEEN
    + """
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.used(x)

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
held_out, train = DataLoader(data, batch_size=32), DataLoader(data, batch_size=%d, shuffle=True)
model = Model()
rate = 1e-2 * accelerator.num_processes
optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
total = len(train)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
model, optimizer, held_out, train, schedule = accelerator.prepare(
    model, optimizer, held_out, train, schedule
)
batches = []
for x, y in train:
    batches.append(len(x))
    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
tell(batches=batches, ranks=accelerator.num_processes)
"""
)

TRAINER = (
    SEEN
    + """
import dataclasses
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers import HfArgumentParser

torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0))
ids = torch.randint(5, 60, (64, 8)).tolist()
data = [{"input_ids": row, "attention_mask": [1] * 8, "labels": row[0] % 2} for row in ids]
flags = ["--output_dir", "out", "--max_steps", "3", "--use_cpu", "--optim", "sgd",
         "--learning_rate", "1e-2", "--max_grad_norm", "0", "--report_to", "none",
         "--save_strategy", "no", "--disable_tqdm", "True", *sys.argv[1:]]
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
seen = []
class Counting(Trainer):
    def training_step(self, model, inputs, *words):
        seen.append(len(inputs["labels"]))
        return super().training_step(model, inputs, *words)
for one in (args, dataclasses.replace(args, per_device_train_batch_size=4)):
    Counting(model=model, args=one, train_dataset=data).train()
tell(batches=seen)
"""
)


def run(folder: Path, script: str, *words: str, ranks: int, force: Force | None) -> Any:
    """What the first rank of a launch has told: learning rates, norms and batches."""
    path = folder / "train.py"
    path.write_text(script, encoding="utf-8")
    carried = []
    if force is not None:
        carried = [str(applying_script()), json.dumps(force.changed())]
    ended = numbered_ranks(ranks, *carried, str(path), *words, cwd=folder, numbered=ranks > 1)
    assert [one.status for one in ended] == [0] * ranks, ended
    (line,) = [line for line in ended[0].out.splitlines() if line.startswith("SEEN")]
    return json.loads(line[len("SEEN") :])


def loop(folder: Path, *, batch: int, ranks: int, **force: Any) -> Any:
    script = LOOP.replace("%d", str(batch))
    return run(folder, script, ranks=ranks, force=Force(**force) if force else None)


@pytest.mark.matrix
def test_a_loop_over_accelerate_trains_the_same_on_more_ranks(tmp_path: Path) -> None:
    """Its evaluation loader is prepared first, its model has parameters that no step uses, its
    learning rate is scaled by the ranks, and accelerate steps its schedule once for each of them.
    """
    typed = loop(tmp_path, batch=8, ranks=1)
    two = loop(tmp_path, batch=8, ranks=2, world_size=2, loader=1, find_unused=True)
    assert two["ranks"] == 2, "what is asked after the first batch is as it is"
    assert (typed["batches"], two["batches"]) == ([8] * 12, [4] * 12)
    assert two["rates"] == typed["rates"]
    assert two["norms"] == pytest.approx(typed["norms"], rel=1e-4)


@pytest.mark.matrix
def test_a_loop_over_accelerate_trains_the_same_on_fewer_ranks(tmp_path: Path) -> None:
    whole = ("return self.used(x)", "return self.used(x) + 0 * self.unused(x)")
    used = LOOP.replace("%d", "4").replace(*whole)
    typed = run(tmp_path, used, ranks=2, force=None)
    one = loop(tmp_path, batch=4, ranks=1, world_size=1, typed_ranks=2, loader=1)
    assert (typed["batches"], one["batches"]) == ([4] * 12, [8] * 12)
    assert one["rates"] == typed["rates"]
    assert one["norms"] == pytest.approx(typed["norms"], rel=1e-4)


@pytest.mark.matrix
@pytest.mark.parametrize("by_flags", [pytest.param(False, marks=pytest.mark.matrix), True])
def test_a_trainer_has_the_gradients_and_the_batches_of_its_launch_as_typed(
    tmp_path: Path, *, by_flags: bool
) -> None:
    """BERT's classifier takes the number of items and does not divide its loss by it."""
    words = ("--gradient_accumulation_steps", "2", "--per_device_train_batch_size")
    typed = run(tmp_path, TRAINER, *words, "8", ranks=1, force=None)
    force = Force(world_size=2, samples_per_rank=8, by_flags=by_flags)
    two = run(tmp_path, TRAINER, *words, "4" if by_flags else "8", ranks=2, force=force)
    assert typed["batches"] == [8] * 6 + [4] * 6
    assert two["batches"] == [4] * 6 + [2] * 6
    assert two["rates"] == typed["rates"]
    assert two["norms"] == pytest.approx(typed["norms"], rel=1e-4)


DRAWS = """
import json, os, random
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

class Augmented(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        return number, torch.rand(1), random.random()

set_seed(1)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Augmented(), batch_size=%d, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
taken, drawn = [], []
for epoch in range(2):
    for numbers, x, y in loader:
        steps = torch.randint(0, 2**40, (len(x),))
        accelerator.backward((model(x) - y[:, None].float()).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        both = accelerator.gather((numbers, steps, x[:, 0], y))
        taken.append(sorted(both[0].tolist()))
        drawn.append([len(set(each.tolist())) for each in both[1:]])
    torch.rand(accelerator.process_index + 1)  # ranks are apart after each pass
if accelerator.is_main_process:
    print("SEEN" + json.dumps({"taken": taken, "drawn": drawn}))
"""


DEALT = """
import json, os, random
import numpy, torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

own = torch.Generator()

class Counting(Dataset):
    asked = 0
    def __len__(self):
        return len(values)
    def __getitem__(self, number):
        self.asked += 1
        return values[number] + self.asked

class Stream(IterableDataset):
    def __iter__(self):
        return (value + random.random() for value in values)

def mixed(samples):
    x = torch.stack(samples)
    x = 0.7 * x + 0.3 * x[torch.randperm(len(x))] + torch.randn(x.shape, generator=own)
    return {"x": x * random.random() + numpy.random.rand(), "names": [str(len(x))] * len(x)}

class Batches:
    batch_size, drop_last = 8, False
    def __iter__(self):
        order = list(WeightedRandomSampler(torch.rand(41), 41))
        random.shuffle(order)
        return iter(order[at : at + 8] for at in range(0, 41, 8))
    def __len__(self):
        return 6

accelerator = Accelerator(cpu=True)
kinds = {
    "sampler": lambda: DataLoader(Counting(), batch_sampler=Batches(), collate_fn=mixed),
    "shuffled": lambda: DataLoader(Counting(), batch_size=8, shuffle=True, collate_fn=mixed),
    "stream": lambda: DataLoader(Stream(), batch_size=8, collate_fn=mixed),
}
seen = {}
for kind in kinds:
    set_seed(int(os.environ.get("RANK", "0")))  # another data set in each rank
    values = torch.rand(41)
    own.manual_seed(3)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, kinds[kind]())
    taken, tasks, ends = [], [], []
    for epoch in range(2):
        for batch in loader:
            accelerator.backward(model(batch["x"][:, None]).mean())
            optimizer.step()
            taken.append(accelerator.gather(batch["x"]).tolist())
            ends.append(accelerator.gradient_state.end_of_dataloader)
            tasks.append([random.random(), batch["names"][0]])
    every = [tasks]
    if accelerator.num_processes > 1:
        every = [None] * accelerator.num_processes
        torch.distributed.all_gather_object(every, tasks)
    seen[kind] = {"taken": taken, "tasks": every, "ends": ends}
if accelerator.is_main_process:
    print("SEEN" + json.dumps(seen))
"""


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one rank and two have seen of each kind of loader."""
    folder = tmp_path_factory.mktemp("dealt")
    return [
        run(folder, DEALT, ranks=1, force=None),
        run(folder, DEALT, ranks=2, force=Force(world_size=2)),
    ]


@pytest.mark.parametrize("kind", ["sampler", "shuffled", "stream"])
def test_rank_0_loads_what_one_rank_would(kind: str, dealt: Any) -> None:
    """With state, draws, mixed samples and data that differ in each rank; 41 samples by 8."""
    typed, two = (seen[kind] for seen in dealt)
    assert len(typed["taken"]) == len(two["taken"]) == 12
    assert two["tasks"] == [typed["tasks"][0]] * 2, "loops that draw go on alike"
    assert two["ends"] == typed["ends"]
    for number, (alone, together) in enumerate(zip(typed["taken"], two["taken"], strict=True)):
        if number % 6 == 5:  # one sample is left for two ranks
            alone = alone * 2
        assert together == pytest.approx(alone)


def test_ranks_draw_apart_for_their_samples_and_agree_on_the_order(tmp_path: Path) -> None:
    """Each rank is seeded alike by the script, as most scripts do."""
    typed = run(tmp_path, DRAWS.replace("%d", "8"), ranks=1, force=None)
    two = run(tmp_path, DRAWS.replace("%d", "8"), ranks=2, force=Force(world_size=2))
    assert typed["drawn"] == two["drawn"] == [[8, 8, 8]] * 16
    assert two["taken"][:8] == typed["taken"][:8]
    # What the steps have drawn decides on the order of the next pass; no sample is in it twice.
    assert sorted(number for step in two["taken"][8:] for number in step) == list(range(64))
