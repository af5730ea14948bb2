"""Whole training scripts with a property each, which are trained to the end both ways.

``trained.py`` tells how each comes out. What a script has as its body defines or replaces parts of
one of two frames, a loop over an Accelerator and a Trainer. Each ends with an evaluation and saves
its model; if TRUTH names a folder, every rank leaves its weights there. DRAWS is a seed for what is
drawn once model and data are made.
"""

from __future__ import annotations

from dataclasses import dataclass

_START = """
import json, os, random
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
torch.manual_seed(0)
RANK = int(os.getenv("RANK", "0"))
def draws():
    if os.getenv("DRAWS"):
        import numpy
        seed = int(os.getenv("DRAWS"))
        torch.manual_seed(seed), random.seed(seed), numpy.random.seed(seed)
def leave(name, trained):
    if os.getenv("TRUTH"):
        found = [p.detach().clone() for p in trained.parameters()]
        torch.save(found, os.path.join(os.getenv("TRUTH"), f"{name}-{RANK}.pt"))
    if os.getenv("NUDGE") and name == "start":
        dice = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for p in trained.parameters():
                p.mul_(1 + 1e-7 * torch.randn(p.shape, generator=dice))
"""

LOOP = (
    _START
    + """
from accelerate import Accelerator
SAMPLES, BATCH, EPOCHS = 96, 8, 8
accelerator = Accelerator(cpu=True)
dice = torch.Generator().manual_seed(1)
inputs = torch.randn(SAMPLES, 8, generator=dice)
labels = (inputs[:, :4] ** 2).argmax(1)
class Net(nn.Module):
    def __init__(self, *layers, out=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), *layers, nn.GELU(), nn.Linear(16, out))
    def forward(self, x):
        return self.net(x)
data, net = TensorDataset(inputs, labels), Net()
collate = sampler = None
shuffle = True
def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)
def optimizer_of(net):
    return torch.optim.AdamW(net.parameters(), lr=3e-3)
def schedule_of(optimizer):
    return None
def before_step(step, model):
    pass
def after_step(step, loss, optimizer):
    return False
def after_epoch(epoch, loss, model):
    return False
def evaluated(model):
    model.eval()
    test = accelerator.prepare(DataLoader(TensorDataset(inputs, labels), batch_size=8))
    right = []
    with torch.no_grad():
        for x, y in test:
            out, y = accelerator.gather_for_metrics((model(x), y))
            right.append(F.cross_entropy(out, y, reduction="none"))
    return float(torch.cat(right).mean())
def saved(model):
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
def train():
    global data
    loader = DataLoader(data, batch_size=BATCH, collate_fn=collate, sampler=sampler,
                        shuffle=shuffle and sampler is None)
    optimizer = optimizer_of(net)
    schedule = schedule_of(optimizer)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    leave("start", net)
    draws()
    step, ended = 0, False
    for epoch in range(EPOCHS):
        model.train()
        for x, y in loader:
            loss = loss_of(model, x, y)
            accelerator.backward(loss)
            before_step(step, model)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            optimizer.zero_grad()
            step += 1
            if after_step(step, loss, optimizer):
                ended = True
                break
        if after_epoch(epoch, loss, model) or ended:
            break
    return model
BODY
model = train()
found = evaluated(model)
saved(model)
if accelerator.is_main_process:
    with open("metrics.json", "w") as file:
        json.dump({"eval_loss": found}, file)
leave("end", accelerator.unwrap_model(model))
"""
)

TRAINER = (
    _START
    + """
from transformers import (
    BertConfig, BertForMaskedLM, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel,
    Trainer, TrainerCallback, TrainingArguments,
)
SAMPLES, BATCH, STEPS, PASSES = 96, 8, 1, 5
drop = 0.0
def small(**more):
    sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                 intermediate_size=32, max_position_embeddings=32, num_labels=3)
    return BertConfig(**{**sizes, "hidden_dropout_prob": drop,
                         "attention_probs_dropout_prob": drop, **more})
def tokens(number, longest=24):
    dice = torch.Generator().manual_seed(number)
    used = 4 + (number * 7) % (longest - 4)
    mask = (torch.arange(24) < used).long()
    return torch.randint(5, 50, (24,), generator=dice) * mask, mask
def sample(number):
    ids, mask = tokens(number)
    return {"input_ids": ids, "attention_mask": mask, "labels": int(ids[:4].sum() % 3)}
Kind, collate, extra, callbacks, test, model = Trainer, None, {}, [], None, None
def finished(trainer):
    pass
BODY
if model is None:
    model = BertForSequenceClassification(small())
if "data" not in globals():
    data = [sample(number) for number in range(SAMPLES)]
settings = dict(
    per_device_train_batch_size=BATCH, gradient_accumulation_steps=STEPS, num_train_epochs=PASSES,
    use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", logging_steps=5,
    learning_rate=1e-3,
)
given = {} if collate is None else {"data_collator": collate}
trainer = Kind(model=model, args=TrainingArguments("out", **{**settings, **extra}),
               train_dataset=data, eval_dataset=test or data, callbacks=callbacks, **given)
leave("start", model)
draws()
trainer.train()
trainer.save_metrics("eval", trainer.evaluate())
trainer.save_model("out/final")
finished(trainer)
leave("end", model)
"""
)

FRAMES = {"loop": LOOP, "trainer": TRAINER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """One script.

    Attributes:
        name: what is special about it.
        body: what it defines or replaces of its frame.
        frame: one of ``FRAMES``; empty: the body is the script.
        lever: the knob that is asked about, and its value.
        draws: whether it draws other numbers with each plan, so that weights are compared with
            those of other draws.
        processes: whether it differs between processes that are no forks of one: hashes of words.
        other: why several ranks train something else, if a few draws cannot show it.
    """

    name: str
    body: str
    frame: str = "loop"
    lever: tuple[str, int | str] = ("ranks", 2)
    draws: bool = False
    processes: bool = False
    other: str = ""

    @property
    def source(self) -> str:
        """The text of the script."""
        return FRAMES[self.frame].replace("BODY", self.body) if self.frame else self.body


def _loop(name: str, body: str, *, draws: bool = False, other: str = "") -> Whole:
    return Whole(name=name, body=body, draws=draws, other=other)


def _trainer(name: str, body: str, *, processes: bool = False) -> Whole:
    return Whole(name=name, body=body, frame="trainer", processes=processes)


def _compute(body: str) -> str:
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
class Kind(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
{lines}
        return (loss, out) if return_outputs else loss
"""


OF_SCRIPTS = (
    # What is later, or between ranks.
    _trainer(
        "gradual unfreezing",
        """
class Thaw(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 30:
            for p in model.bert.parameters():
                p.requires_grad = True
callbacks = [Thaw()]
model = BertForSequenceClassification(small())
for p in model.bert.parameters():
    p.requires_grad = False
class Kind(Trainer):
    def create_optimizer(self, *_):
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return self.optimizer
""",
    ),
    _loop(
        "unfreezing in the sixth epoch",
        """
net.net[0].requires_grad_(False)
def after_epoch(epoch, loss, model):
    if epoch == 4:
        for p in net.parameters():
            p.requires_grad_(True)
""",
    ),
    _loop(
        "a plateau of the local loss",
        """
plateau = []
def schedule_of(optimizer):
    plateau.append(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1))
def after_epoch(epoch, loss, model):
    plateau[0].step(loss.item())
""",
    ),
    _loop(
        "a plateau of the gathered loss",
        """
plateau = []
def schedule_of(optimizer):
    plateau.append(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1))
def after_epoch(epoch, loss, model):
    plateau[0].step(accelerator.reduce(loss.detach(), "mean").item())
""",
    ),
    _loop(
        "early stopping by the local loss",
        """
best = [9.0]
def after_step(step, loss, optimizer):
    best[0] = min(best[0], loss.item())
    return step > 40 and loss.item() > 1.15 * best[0]
""",
    ),
    _trainer(
        "early stopping by the evaluation",
        """
from transformers import EarlyStoppingCallback
callbacks = [EarlyStoppingCallback(early_stopping_patience=1)]
extra = dict(eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
             metric_for_best_model="eval_loss", learning_rate=3e-2, num_train_epochs=4)
""",
    ),
    _trainer(
        "the best model at the end",
        """
extra = dict(eval_strategy="steps", eval_steps=10, save_strategy="steps", save_steps=10,
             save_total_limit=1, load_best_model_at_end=True, num_train_epochs=3)
test = [sample(number) for number in range(200, 240)]
""",
    ),
    # What differs between starts.
    _loop(
        "a random split without a seed",
        """
import numpy
held = set(numpy.random.permutation(SAMPLES)[:24].tolist())
data = torch.utils.data.Subset(data, [n for n in range(SAMPLES) if n not in held])
""",
    ),
    _trainer(
        "classes in the order of a set",
        processes=True,
        body="""
names = {"red", "green", "blue"}
number_of = {name: n for n, name in enumerate(names)}
def sample(number):
    ids, mask = tokens(number)
    label = number_of[["red", "green", "blue"][int(ids[0] % 3)]]
    return {"input_ids": ids, "attention_mask": mask, "labels": label}
""",
    ),
    _loop(
        "a random split with a seed",
        """
from torch.utils.data import random_split
data, _ = random_split(data, [72, 24], generator=torch.Generator().manual_seed(4))
""",
    ),
    # Collators.
    _loop(
        "hard negatives in the collator",
        """
def collate(samples):
    x, y = torch.utils.data.default_collate(samples)
    near = (x @ x.T).fill_diagonal_(-99.0).argmax(1)
    return torch.cat([x, x[near]], 1), y
def loss_of(model, x, y):
    own, other = model(x[:, :8]), model(x[:, 8:])
    return F.cross_entropy(own, y) + F.relu(1 - (own - other).norm(dim=1)).mean()
""",
    ),
    _loop(
        "cutmix in the collator",
        """
def collate(samples):
    x, y = torch.utils.data.default_collate(samples)
    x = torch.cat([x[:, :5], x.roll(1, 0)[:, 5:]], 1)
    return x, y
""",
    ),
    _trainer(
        "packed sequences",
        """
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
def collate(samples):
    flat = torch.cat([s["input_ids"][s["attention_mask"] == 1] for s in samples])
    rows = flat[: len(flat) // 24 * 24].view(-1, 24)
    return {"input_ids": rows, "labels": rows}
""",
    ),
    _trainer(
        "sorted and padded to the longest",
        """
def sample(number):
    ids, mask = tokens(number)
    return {"input_ids": ids[mask == 1], "labels": int(ids[:4].sum() % 3)}
def collate(samples):
    samples = sorted(samples, key=lambda s: -len(s["input_ids"]))
    pad = torch.nn.utils.rnn.pad_sequence
    return {"input_ids": pad([s["input_ids"] for s in samples], batch_first=True),
            "attention_mask": pad([torch.ones_like(s["input_ids"]) for s in samples],
                                  batch_first=True),
            "labels": torch.tensor([s["labels"] for s in samples])}
extra = dict(remove_unused_columns=False)
""",
    ),
    _loop(
        "normalised by a running mean in the collator",
        """
class Normalised:
    def __init__(self):
        self.mean = torch.zeros(8)
    def __call__(self, samples):
        x, y = torch.utils.data.default_collate(samples)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean, y
collate = Normalised()
""",
    ),
    # Later stages, and turns.
    _loop(
        "two stages",
        """
stage = [1]
def loss_of(model, x, y):
    out = model(x)
    if stage[0] == 1:
        return F.cross_entropy(out, y)
    out = F.normalize(out, dim=1)
    return F.cross_entropy(out @ out.T * 5, torch.arange(len(x)))
def after_epoch(epoch, loss, model):
    if epoch == 3:
        stage[0] = 2
""",
    ),
    _trainer(
        "a contrast after the warm-up",
        _compute(
            """
out = model(**inputs)
loss = out.loss
if self.state.global_step >= 45:
    h = F.normalize(out.logits, dim=1)
    loss = loss + F.cross_entropy(h @ h.T * 9, torch.arange(len(h)))
"""
        ),
    ),
    _loop(
        "a contrast by chance",
        """
def loss_of(model, x, y):
    out = model(x)
    if random.random() < 0.15:
        h = F.normalize(out, dim=1)
        return F.cross_entropy(h @ h.T * 5, torch.arange(len(h)))
    return F.cross_entropy(out, y)
""",
        draws=True,
        other="each rank has the negatives of half a batch",
    ),
    _loop(
        "alternating tasks",
        """
turn = [0]
def loss_of(model, x, y):
    turn[0] += 1
    if turn[0] % 2:
        return F.cross_entropy(model(x), y)
    return F.mse_loss(model(x), x[:, :4])
""",
    ),
    _loop(
        "a contrast in every seventh step",
        """
turn = [0]
def loss_of(model, x, y):
    turn[0] += 1
    out = model(x)
    if turn[0] % 7:
        return F.cross_entropy(out, y)
    h = F.normalize(out, dim=1)
    return F.cross_entropy(h @ h.T * 5, torch.arange(len(h)))
""",
    ),
    # Rare samples.
    _loop(
        "weights of rare classes",
        """
labels[:] = 0
labels[::2] = 1
labels[61] = 3
weight = torch.tensor([1.0, 1.0, 1.0, 30.0])
def loss_of(model, x, y):
    return F.cross_entropy(model(x), y, weight=weight)
""",
    ),
    _loop(
        "labels that are missing",
        """
labels[[7, 33, 70]] = -100
""",
    ),
    # Random numbers.
    _loop(
        "noise in the optimizer",
        """
class Langevin(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=0.01)
def optimizer_of(net):
    return Langevin(net.parameters(), lr=0.05)
shuffle = False
""",
        draws=True,
    ),
    _loop(
        "timesteps of diffusion",
        """
shuffle = False
def loss_of(model, x, y):
    t = torch.randint(0, 100, (len(x), 1)) / 100
    noise = torch.randn_like(x)
    return F.mse_loss(model((1 - t) * x + t * noise), noise[:, :4])
""",
        draws=True,
    ),
    _loop(
        "dropout",
        """
shuffle = False
net = Net(nn.Dropout(0.3))
""",
        draws=True,
    ),
    _loop(
        "manual seeds in the loss",
        """
step = [0]
def loss_of(model, x, y):
    step[0] += 1
    torch.manual_seed(step[0] + 1000 * int(os.getenv("DRAWS", "0")))
    return F.cross_entropy(model(x + 0.5 * torch.randn_like(x)), y)
shuffle = False
""",
        draws=True,
    ),
    _loop(
        "one mask for the whole batch",
        """
shuffle = False
def loss_of(model, x, y):
    keep = (torch.rand(8) < 0.6).float()
    return F.cross_entropy(model(x * keep), y)
""",
        draws=True,
        other="a step has the mean of two masks",
    ),
    # Samplers.
    _loop(
        "a weighted sampler",
        """
sampler = torch.utils.data.WeightedRandomSampler([1.0 + n % 5 for n in range(SAMPLES)], SAMPLES)
""",
    ),
    _loop(
        "a sampler with state and a seed",
        """
class Turning(torch.utils.data.Sampler):
    def __init__(self):
        self.epoch = 0
    def __len__(self):
        return SAMPLES
    def __iter__(self):
        self.epoch += 1
        return iter(torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
                    .tolist())
sampler = Turning()
""",
    ),
    _loop(
        "a sampler that follows the losses",
        """
class Hard(torch.utils.data.Sampler):
    hard = []
    def __len__(self):
        return SAMPLES
    def __iter__(self):
        order = list(range(SAMPLES))
        if len(self.hard) > 3:
            order = order[len(self.hard) % 11:] + order[: len(self.hard) % 11]
            order = [n for n in order if (n * 7 + int(100 * self.hard[-1])) % 5] + order
            order = order[:SAMPLES]
        return iter(order)
sampler = Hard()
def after_step(step, loss, optimizer):
    sampler.hard.append(loss.item())
""",
    ),
    # State.
    _loop(
        "batch statistics",
        """
net = Net(nn.BatchNorm1d(16))
""",
    ),
    _loop(
        "a queue of keys",
        """
queue = F.normalize(torch.randn(16, 4), dim=1)
def loss_of(model, x, y):
    h = F.normalize(model(x), dim=1)
    near = (h * h.roll(1, 1)).sum(1, keepdim=True)
    seen = torch.cat([near, h @ queue.clone().T], 1) * 5
    loss = F.cross_entropy(seen, torch.zeros(len(x), dtype=torch.long))
    queue.copy_(torch.cat([h.detach(), queue])[: len(queue)])
    return loss
""",
    ),
    _loop(
        "an average of the weights",
        """
import copy
mean = copy.deepcopy(net)
def after_step(step, loss, optimizer):
    with torch.no_grad():
        for own, p in zip(mean.parameters(), net.parameters()):
            own.lerp_(p, 0.05)
def saved(model):
    leave("mean", mean)
    if accelerator.is_main_process:
        torch.save({"mean": mean.state_dict(), "model": net.state_dict()}, "model.pt")
""",
    ),
    _loop(
        "a teacher that follows",
        """
import copy
teacher = copy.deepcopy(net)
def loss_of(model, x, y):
    with torch.no_grad():
        wanted = teacher(x).softmax(1)
    out = model(x)
    return F.cross_entropy(out, y) + F.cross_entropy(out, wanted)
def after_step(step, loss, optimizer):
    with torch.no_grad():
        for own, p in zip(teacher.parameters(), net.parameters()):
            own.lerp_(p, 0.05)
""",
    ),
    _loop(
        "a schedule that counts ranks",
        """
def schedule_of(optimizer):
    total = EPOCHS * (SAMPLES // (BATCH * accelerator.num_processes))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / total))
""",
    ),
    _loop(
        "a schedule of the samples seen",
        """
seen = [0]
def loss_of(model, x, y):
    seen[0] += len(x)
    return F.cross_entropy(model(x), y)
def after_step(step, loss, optimizer):
    for group in optimizer.param_groups:
        group["lr"] = 3e-3 / (1 + seen[0] / 200)
""",
    ),
    _loop(
        "a schedule of epochs",
        """
rates = []
def schedule_of(optimizer):
    rates.append(torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))
def after_epoch(epoch, loss, model):
    rates[0].step()
""",
    ),
    # The end.
    _loop(
        "evaluation by hand",
        """
def evaluated(model):
    test = accelerator.prepare(DataLoader(TensorDataset(inputs, labels), batch_size=8))
    losses = []
    with torch.no_grad():
        for x, y in test:
            losses.append(F.cross_entropy(model(x), y).item())
    return sum(losses) / len(losses)
""",
    ),
    _loop(
        "saved without unwrapping",
        """
def saved(model):
    if accelerator.is_main_process:
        torch.save(model.state_dict(), "model.pt")
""",
        other="its keys begin with module.",
    ),
    _loop(
        "each rank saves",
        """
def saved(model):
    torch.save(accelerator.unwrap_model(model).state_dict(), f"model-{RANK}.pt")
""",
    ),
    _trainer(
        "resumed from its checkpoint",
        """
extra = dict(save_strategy="steps", save_steps=10, max_steps=20)
def finished(trainer):
    from transformers.trainer_utils import get_last_checkpoint
    later = TrainingArguments("out", **{**settings, **extra, "max_steps": 40})
    again = Kind(model=model, args=later, train_dataset=data)
    again.train(resume_from_checkpoint=get_last_checkpoint("out"))
""",
    ),
    # Several models, unusual layers.
    _loop(
        "a model of two tasks",
        """
class Two(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(4, 1)
    def forward(self, x):
        out = self.net(x)
        return out, self.other(out)[:, 0]
net = Two()
def loss_of(model, x, y):
    out, size = model(x)
    return F.cross_entropy(out, y) + F.mse_loss(size, x.norm(dim=1))
def evaluated(model):
    return 0.0
""",
    ),
    _loop(
        "tied weights",
        """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 8, bias=False)
        self.out.weight = self.into.weight
    def forward(self, x):
        return self.out(torch.tanh(self.into(x)))[:, :4]
net = Tied()
""",
    ),
    _trainer("gradient checkpointing", "extra = {'gradient_checkpointing': True}"),
    _loop(
        "a gradient of its own",
        """
class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clamp(-1, 1)
    @staticmethod
    def backward(ctx, grad):
        return grad
class Straight(Net):
    def forward(self, x):
        return self.net[2](Clipped.apply(self.net[0](x)))
net = Straight()
""",
    ),
    _loop(
        "a gradient that is scaled by the batch",
        """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x
    @staticmethod
    def backward(ctx, grad):
        return grad / (grad.norm() + 1e-6)
class Own(Net):
    def forward(self, x):
        return Scaled.apply(self.net(x))
net = Own()
""",
    ),
    _trainer(
        "SAM",
        """
class Kind(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        self.accelerator.backward(self.compute_loss(model, inputs))
        moves = []
        with torch.no_grad():
            size = torch.sqrt(sum((p.grad ** 2).sum() for p in model.parameters()
                                  if p.grad is not None))
            for p in model.parameters():
                if p.grad is not None:
                    move = 0.05 * p.grad / size
                    p.add_(move)
                    moves.append((p, move))
        model.zero_grad()
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        with torch.no_grad():
            for p, move in moves:
                p.sub_(move)
        return loss.detach()
""",
    ),
    _loop(
        "Lookahead",
        """
class Lookahead(torch.optim.AdamW):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]
        self.turns = 0
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.turns += 1
        if self.turns % 4 == 0:
            own = [p for g in self.param_groups for p in g["params"]]
            for slow, p in zip(self.slow, own):
                slow.lerp_(p, 0.5)
                p.copy_(slow)
def optimizer_of(net):
    return Lookahead(net.parameters(), lr=3e-3)
""",
    ),
    _trainer("Adafactor", "extra = {'optim': 'adafactor'}"),
    _trainer(
        "layers of unlike rates",
        """
class Kind(Trainer):
    def create_optimizer(self, *_):
        own = self.model.module if hasattr(self.model, "module") else self.model
        self.optimizer = torch.optim.AdamW([
            {"params": own.bert.parameters(), "lr": 1e-4},
            {"params": own.classifier.parameters(), "lr": 1e-2}])
        return self.optimizer
""",
    ),
    _trainer(
        "accumulated over four batches",
        "BATCH, STEPS, PASSES = 4, 4, 8\nextra = dict(max_grad_norm=0.1)",
    ),
    _loop(
        "a network against another one",
        """
other = accelerator.prepare(nn.Linear(4, 1))
steps = torch.optim.Adam(other.parameters(), lr=1e-3)
def loss_of(model, x, y):
    made = model(x)
    real = F.one_hot(y, 4).float()
    judged = F.softplus(other(made.detach())).mean() + F.softplus(-other(real)).mean()
    accelerator.backward(judged)
    steps.step()
    steps.zero_grad()
    return F.softplus(-other(made)).mean() + F.cross_entropy(made, y)
""",
    ),
    # Late, so that nothing but the guard can see it.
    _loop(
        "unfreezing at step 700",
        """
EPOCHS = 80
net.net[0].requires_grad_(False)
def after_step(step, loss, optimizer):
    if step == 700:
        globals()["net"].net[0].requires_grad_(True)
""",
    ),
    _loop(
        "noise from step 600 on",
        """
EPOCHS = 60
def before_step(step, model):
    if step >= 600:
        with torch.no_grad():
            for p in model.parameters():
                p.grad += 0.1 * torch.randn_like(p)
""",
        draws=True,
    ),
    _loop(
        "a plateau that comes late",
        """
EPOCHS = 60
plateau = []
def schedule_of(optimizer):
    plateau.append(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=10))
def after_epoch(epoch, loss, model):
    if epoch > 30:
        plateau[0].step(loss.item())
""",
    ),
    _loop(
        "a local loss stops it late",
        """
EPOCHS = 60
def after_step(step, loss, optimizer):
    return step > 400 and loss.item() < 0.4
""",
    ),
)

_OTHER = (
    Whole(
        name="a convolution over padding",
        frame="trainer",
        lever=("padding", "cut"),
        body="""
def sample(number):
    ids, mask = tokens(number, 12)
    return {"input_ids": ids, "attention_mask": mask, "labels": int(ids[:4].sum() % 3)}
class Over(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(50, 16), nn.Conv1d(16, 16, 5, padding=2)
        self.out = nn.Linear(16, 3)
    def forward(self, input_ids, attention_mask, labels=None):
        h = self.mix(self.words(input_ids).transpose(1, 2)).amax(2)
        logits = self.out(h)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
model = Over()
if os.getenv("CUT"):
    def collate(samples):
        found = torch.utils.data.default_collate(samples)
        longest = int(found["attention_mask"].sum(1).max())
        return {name: v[:, :longest] if v.dim() > 1 else v for name, v in found.items()}
""",
    ),
    Whole(
        name="attention over padding",
        frame="trainer",
        lever=("padding", "cut"),
        body="""
def sample(number):
    ids, mask = tokens(number, 12)
    return {"input_ids": ids, "attention_mask": mask, "labels": int(ids[:4].sum() % 3)}
""",
    ),
    Whole(
        name="a callback changes the data",
        frame="trainer",
        lever=("workers", 1),
        body="""
class Words(Dataset):
    longest = 24
    def __len__(self):
        return SAMPLES
    def __getitem__(self, number):
        found = sample(number)
        found["attention_mask"] = found["attention_mask"] * (torch.arange(24) < self.longest)
        return found
data = Words()
class Shorter(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 5 == 0:
            data.longest = max(4, data.longest - 2)
callbacks = [Shorter()]
""",
    ),
    Whole(
        name="a collator asks the model",
        frame="trainer",
        lever=("workers", 1),
        body="""
def collate(samples):
    found = torch.utils.data.default_collate(samples)
    with torch.no_grad():
        out = model(input_ids=found["input_ids"], attention_mask=found["attention_mask"])
    asked = found["input_ids"][:, 1] % 2 == 0
    found["labels"] = torch.where(asked, out.logits.argmax(1), found["labels"])
    return found
""",
    ),
    Whole(
        name="a plain data set",
        frame="trainer",
        lever=("workers", 1),
        body="",
    ),
)

WHOLE: tuple[Whole, ...] = (*OF_SCRIPTS, *_OTHER)
