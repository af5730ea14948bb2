"""Training scripts with a property each, and whether parts of their batches train the same.

Each is a whole script: ``source`` puts a body into one of two frames, a loop over an Accelerator
and a Trainer. What is true of a script is known by how it is written.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOP = """
import sys
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

torch.manual_seed(0)
SAMPLES, BATCH, WORKERS = 64, 8, 0
accelerator = Accelerator(cpu=True)
class Net(nn.Module):
    def __init__(self, *layers, out=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), *layers, nn.GELU(), nn.Linear(16, out))
        self.extra = nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return self.net(x)
data = TensorDataset(torch.randn(SAMPLES, 8), torch.randint(0, 4, (SAMPLES,)))
net, schedule, collate, shuffle = Net(), None, None, True
def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)
{body}
if isinstance(data, IterableDataset):
    shuffle = False
loader = DataLoader(data, batch_size=BATCH, shuffle=shuffle, collate_fn=collate)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for epoch in range(9):
    for x, y in loader:
        loss = loss_of(model, x, y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""

TRAINER = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    BertConfig, BertForMultipleChoice, BertForSequenceClassification, BertForTokenClassification,
    GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments,
)

torch.manual_seed(0)
SAMPLES, BATCH, STEPS = 64, 8, 1
sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
             intermediate_size=32, max_position_embeddings=32, num_labels=3)
small = BertConfig(**sizes)
def tokens(number, longest=24):
    dice = torch.Generator().manual_seed(number)
    used = 4 + (number * 7) % (longest - 4)
    mask = (torch.arange(24) < used).long()
    return torch.randint(5, 50, (24,), generator=dice) * mask, mask
def sample(number):
    ids, mask = tokens(number)
    return {"input_ids": ids, "attention_mask": mask, "labels": int(ids[0] % 3)}
model, Kind, collate, extra = BertForSequenceClassification(small), Trainer, None, {}
{body}
if "data" not in globals():
    data = [sample(number) for number in range(SAMPLES)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=BATCH, gradient_accumulation_steps=STEPS, max_steps=60,
    use_cpu=True, report_to="none", disable_tqdm=True, **extra,
)
given = {} if collate is None else {"data_collator": collate}
Kind(model=model, args=arguments, train_dataset=data, **given).train()
"""

FRAMES = {"loop": LOOP, "trainer": TRAINER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A script of the corpus.

    Attributes:
        name: what is special about it.
        frame: one of ``FRAMES``.
        body: what it adds.
        parts: whether the loss of a batch is that of its parts, so that ranks may be offered.
        padding: whether its padding may be cut; None where nothing is to be cut.
        repeats: whether two starts of it train the same.
        accumulates: whether its batch may be taken in parts, one by one; None: as ``parts``.
        workers: whether other processes may prepare its batches; None: not asked.
    """

    name: str
    frame: str
    body: str
    parts: bool
    padding: bool | None = None
    repeats: bool = True
    accumulates: bool | None = None
    workers: bool | None = None


def loss(body: str, before: str = "") -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"{before}\ndef loss_of(model, x, y):\n{lines}\n"


def compute(body: str, before: str = "") -> str:
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""{before}
class Kind(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
{lines}
"""


_VIEWS = """
one = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
two = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
"""
_QUEUE = """
keys = F.normalize(model(x), dim=1)
found = F.cross_entropy(keys @ queue.clone().T * 5, y)
queue[:len(keys)] = keys.detach()
return found
"""
_LENGTHS = """
def sample(number):
    ids, mask = tokens(number, 12)
    return {"input_ids": ids, "attention_mask": mask, "labels": int(ids[0] % 3)}
"""

_PAIRS = """
def collate(samples):
    x = torch.stack([sample[0] for sample in samples])
    return torch.{rows}, torch.zeros(2 * len(x), dtype=torch.long)
"""
_AFTER_ALL = _PAIRS.format(rows="cat([x, x.flip(1)])")
_IN_TURN = _PAIRS.format(rows="stack([x, x.flip(1)], 1).flatten(0, 1)")
_PREFERRED = """
chosen, rejected = model(x).sum(1).chunk(2)
return -F.logsigmoid(chosen - rejected).mean()
"""
_CONTRASTED = """
chosen, rejected = F.normalize(model(x), dim=1).chunk(2)
return sum(F.cross_entropy(x @ x.T * 5, torch.arange(len(x))) for x in (chosen, rejected))
"""

CORPUS: tuple[Planted, ...] = (
    # A loop over an Accelerator: the loss of a batch is the mean over its samples.
    Planted(name="cross entropy", frame="loop", body="", parts=True),
    Planted(
        name="squared error",
        frame="loop",
        body=loss("return F.mse_loss(model(x), x[:, :4])"),
        parts=True,
    ),
    Planted(
        name="noise on the input",
        frame="loop",
        body=loss("return F.cross_entropy(model(x + torch.randn_like(x)), y)"),
        parts=True,
    ),
    Planted(
        name="diffusion: a timestep for each sample",
        frame="loop",
        body=loss("t = torch.rand(len(x), 1)\nreturn F.mse_loss(model((1 - t) * x), t * x[:, :4])"),
        parts=True,
    ),
    Planted(
        name="integer timesteps and noise",
        frame="loop",
        body=loss(
            "t = torch.randint(0, 1000, (len(x), 1)) / 1000\nn = torch.randn(x.shape)\n"
            "return F.mse_loss(model(t * x + n), n[:, :4])"
        ),
        parts=True,
    ),
    Planted(
        name="dropout",
        frame="loop",
        body="net = Net(nn.Dropout(0.5))",
        parts=True,
    ),
    Planted(
        name="a variational latent",
        frame="loop",
        body=loss(
            "h = model(x)\nz = torch.distributions.Normal(h[:, :2], h[:, 2:].exp()).rsample()\n"
            "return ((z - x[:, :2]) ** 2).mean()"
        ),
        parts=True,
    ),
    Planted(
        name="gumbel softmax",
        frame="loop",
        body=loss("return F.cross_entropy(F.gumbel_softmax(model(x)), y)"),
        parts=True,
    ),
    Planted(
        name="layer norm",
        frame="loop",
        body="net = Net(nn.LayerNorm(16))",
        parts=True,
    ),
    Planted(
        name="group norm",
        frame="loop",
        body="net = Net(nn.GroupNorm(4, 16))",
        parts=True,
    ),
    Planted(
        name="a penalty on the weights",
        frame="loop",
        body=loss(
            "own = sum((p ** 2).sum() for p in model.parameters())\n"
            "return F.cross_entropy(model(x), y) + 1e-3 * own"
        ),
        parts=True,
    ),
    Planted(
        name="label smoothing",
        frame="loop",
        body=loss("return F.cross_entropy(model(x), y, label_smoothing=0.1)"),
        parts=True,
    ),
    Planted(
        name="a gate at zero before layer norm",
        frame="loop",
        body=loss(
            "return F.cross_entropy(model(x) * (1 + accelerator.unwrap_model(model).extra), y)"
        ),
        parts=True,
    ),
    Planted(
        name="an advantage that adds up to zero",
        frame="loop",
        body=loss(
            "p = F.log_softmax(model(x), 1)\nreturn ((p - p.detach()) * (x[:, :4] - 1)).mean()"
        ),
        parts=True,
    ),
    Planted(
        name="a stream",
        frame="loop",
        body="pairs = [data[n] for n in range(SAMPLES)]\nclass Stream(IterableDataset):\n"
        "    def __iter__(self):\n        return iter(pairs)\ndata = Stream()",
        parts=True,
    ),
    Planted(
        name="44 samples, batch 8",
        frame="loop",
        body="data = torch.utils.data.Subset(data, range(44))",
        parts=True,
    ),
    Planted(
        name="pairs of answers, the chosen ones first",
        frame="loop",
        body=loss(_PREFERRED, before=_AFTER_ALL),
        parts=True,
    ),
    Planted(
        name="choices of a question in turn",
        frame="loop",
        body=loss("return F.cross_entropy(model(x).sum(1).view(-1, 2), y[::2])", before=_IN_TURN),
        parts=True,
    ),
    # The loss of a batch is not that of its parts.
    Planted(
        name="chosen answers among each other",
        frame="loop",
        body=loss(_CONTRASTED, before=_AFTER_ALL),
        parts=False,
    ),
    Planted(
        name="in-batch negatives of random views",
        frame="loop",
        body=loss(_VIEWS + "return F.cross_entropy(one @ two.T * 5, torch.arange(len(x)))"),
        parts=False,
    ),
    Planted(
        name="in-batch negatives",
        frame="loop",
        body=loss("h = model(x)\nreturn F.cross_entropy(h @ x[:, :4].T, torch.arange(len(x)))"),
        parts=False,
    ),
    Planted(
        name="batch norm",
        frame="loop",
        body="net = Net(nn.BatchNorm1d(16))",
        parts=False,
    ),
    Planted(
        name="a queue of keys",
        frame="loop",
        body=loss(_QUEUE, "queue = F.normalize(torch.randn(8, 4), dim=1)"),
        parts=False,
    ),
    Planted(
        name="the variance of the batch",
        frame="loop",
        body=loss("h = model(x)\nreturn F.cross_entropy(h, y) + (1 - h.std(0)).relu().mean()"),
        parts=False,
    ),
    Planted(
        name="the hardest samples alone",
        frame="loop",
        body=loss(
            "each = F.cross_entropy(model(x), y, reduction='none')\nreturn each.topk(3)[0].mean()"
        ),
        parts=False,
    ),
    Planted(
        name="a sum over the batch",
        frame="loop",
        body=loss("return F.cross_entropy(model(x), y, reduction='sum')"),
        parts=False,
    ),
    Planted(
        name="mixup",
        frame="loop",
        body=loss(
            "order = torch.randperm(len(x))\nreturn F.cross_entropy(model((x + x[order]) / 2), y)"
        ),
        parts=False,
    ),
    Planted(
        name="a weighted mean of classes",
        frame="loop",
        body=loss(
            "w = torch.tensor([1., 5., 1., 9.])\nreturn F.cross_entropy(model(x), y, weight=w)"
        ),
        parts=False,
    ),
    Planted(
        name="a ranking of pairs",
        frame="loop",
        body=loss("h = model(x)[:, 0]\nd = h[:, None] - h[None]\nreturn F.softplus(d).mean()"),
        parts=False,
    ),
    Planted(
        name="a root of the mean square",
        frame="loop",
        body=loss("return F.mse_loss(model(x), x[:, :4]).sqrt()"),
        parts=False,
    ),
    Planted(
        name="a gate at zero hides the batch",
        frame="loop",
        body=loss(
            "own = accelerator.unwrap_model(model)\nh = model(x)\n"
            "return F.cross_entropy(h + own.extra ** 2 * (h - h.mean(0)) * 9, y)"
        ),
        parts=False,
    ),
    Planted(
        name="a seed from the clock",
        frame="loop",
        body="import time\ntorch.manual_seed(time.time_ns() % 100000)\nnet = Net()",
        parts=True,
        repeats=False,
    ),
    # A Trainer.
    Planted(name="sequence classification", frame="trainer", body="", parts=True),
    Planted(
        name="sequences padded too far",
        frame="trainer",
        body=_LENGTHS,
        parts=True,
        padding=True,
    ),
    Planted(
        name="tokens, a mean for each rank",
        frame="trainer",
        body="model = BertForTokenClassification(small)\ndef sample(number):\n"
        "    ids, mask = tokens(number)\n"
        "    labels = torch.where(mask > 0, ids % 3, torch.tensor(-100))\n"
        "    return {'input_ids': ids, 'attention_mask': mask, 'labels': labels}",
        parts=False,
    ),
    Planted(
        name="a causal language model",
        frame="trainer",
        body="model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=16,"
        " n_layer=1, n_head=2))\ndef sample(number):\n    ids, mask = tokens(number)\n"
        "    return {'input_ids': ids, 'attention_mask': mask,"
        " 'labels': torch.where(mask > 0, ids, torch.tensor(-100))}",
        parts=True,
    ),
    Planted(
        name="multiple choice",
        frame="trainer",
        body="model = BertForMultipleChoice(small)\ndef sample(number):\n"
        "    pairs = [tokens(3 * number + n, 12) for n in range(3)]\n"
        "    return {'input_ids': torch.stack([i for i, _ in pairs]), 'attention_mask':"
        " torch.stack([m for _, m in pairs]), 'labels': number % 3}",
        parts=True,
        padding=True,
    ),
    Planted(
        name="a loss over all positions",
        frame="trainer",
        body=_LENGTHS
        + compute(
            "out = model(input_ids=inputs['input_ids'], attention_mask=inputs['attention_mask'],"
            " output_hidden_states=True)\nreturn out.hidden_states[-1].sin().mean()"
        ),
        parts=True,
        padding=False,
    ),
    Planted(
        name="in-batch negatives of sentences",
        frame="trainer",
        body=compute(
            "out = model(input_ids=inputs['input_ids'], attention_mask=inputs['attention_mask'],"
            " output_hidden_states=True)\nh = F.normalize(out.hidden_states[-1][:, 0], dim=1)\n"
            "return F.cross_entropy(h @ h.T * 9, torch.arange(len(h)))"
        ),
        parts=False,
    ),
    Planted(
        name="class weights",
        frame="trainer",
        body=compute(
            "labels = inputs.pop('labels')\nw = torch.tensor([1., 5., 9.])\n"
            "return F.cross_entropy(model(**inputs).logits, labels, weight=w)"
        ),
        parts=False,
    ),
    Planted(
        name="a counter in compute_loss",
        frame="trainer",
        body=compute(
            "self.seen = getattr(self, 'seen', 0) + 1\n"
            "return model(**inputs).loss * (1 + 0.1 * self.seen)"
        ),
        parts=True,
        accumulates=False,
    ),
    Planted(
        name="accumulated in two batches",
        frame="trainer",
        body="STEPS, BATCH = 2, 4",
        parts=True,
    ),
    Planted(
        name="a Trainer with 44 samples",
        frame="trainer",
        body="SAMPLES = 44",
        parts=True,
    ),
    Planted(
        name="a stream of a Trainer",
        frame="trainer",
        body="class Stream(IterableDataset):\n    def __iter__(self):\n"
        "        return (sample(number) for number in range(1000))\ndata = Stream()",
        parts=True,
    ),
    Planted(
        name="label smoothing of a Trainer",
        frame="trainer",
        body="extra = {'label_smoothing_factor': 0.1}",
        parts=True,
    ),
)


def source(planted: Planted) -> str:
    """The whole script."""
    return FRAMES[planted.frame].replace("{body}", planted.body)
