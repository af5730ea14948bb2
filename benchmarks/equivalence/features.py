"""More scripts with a property each: what a collator, a data set, a seed or a later step changes.

What is true of each is known by how it is written, as in ``corpus``.
"""

from __future__ import annotations

from corpus import Planted, compute, loss

_ROWS = """
pairs = [data[n] for n in range(SAMPLES)]
class Rows(Dataset):
    def __len__(self):
        return len(pairs)
    def __getitem__(self, number):
        x, y = pairs[number]
        return {row}, y
data = Rows()
"""
_MIXED_UP = """
def collate(samples):
    x, y = torch.utils.data.default_collate(samples)
    share = torch.distributions.Beta(0.4, 0.4).sample()
    order = torch.randperm(len(x))
    return share * x + (1 - share) * x[order], y
"""
_HARDEST = """
def collate(samples):
    x, y = torch.utils.data.default_collate(samples)
    apart = torch.cdist(x, x).fill_diagonal_(9.0)
    return torch.stack([x, x[apart.argmin(1)]], 1), y
def loss_of(model, x, y):
    own, other = model(x[:, 0]), model(x[:, 1])
    return F.cross_entropy(own, y) + F.relu(1 - (own - other).pow(2).mean(1)).mean()
"""
_SCALED = """
def collate(samples):
    x, y = torch.utils.data.default_collate(samples)
    return (x - x.mean(0)) / x.std(0), y
"""
_NOISED = """
import random, numpy
def collate(samples):
    x = torch.stack([x * (1 + 0.1 * random.random()) for x, _ in samples])
    x = x + 0.1 * torch.from_numpy(numpy.random.randn(*x.shape)).float()
    x = x + 0.1 * torch.randn(x.shape)
    return x, torch.stack([y for _, y in samples])
"""
_PACKED = """
def collate(samples):
    ids = torch.cat([s["input_ids"][s["attention_mask"] > 0] for s in samples])
    rows = ids[: len(ids) // 16 * 16].view(-1, 16)
    return {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": rows.sum(1) % 3}
"""
_MASKED = """
from transformers import BertForMaskedLM
model = BertForMaskedLM(small)
def collate(samples):
    ids = torch.stack([s["input_ids"] for s in samples])
    mask = torch.stack([s["attention_mask"] for s in samples])
    chosen = (torch.rand(ids.shape) < 0.5) & (mask > 0)
    labels = torch.where(chosen, ids, torch.tensor(-100))
    return {"input_ids": torch.where(chosen, 3, ids), "attention_mask": mask, "labels": labels}
"""
_NOISED_WORDS = """
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2))
def collate(samples):
    ids = torch.stack([s["input_ids"] for s in samples])
    mask = torch.stack([s["attention_mask"] for s in samples])
    chosen = (torch.rand(ids.shape) < 0.5) & (mask > 0)
    labels = torch.where(chosen, ids, torch.tensor(-100))
    return {"input_ids": torch.where(chosen, 3, ids), "attention_mask": mask, "labels": labels}
"""
_PADDED = """
class Words(Dataset):
    def __len__(self):
        return SAMPLES
    def __getitem__(self, number):
        ids, mask = tokens(number)
        kept = ids[mask > 0]
        return {"input_ids": kept, "labels": int(kept[0] % 3)}
data = Words()
def collate(samples):
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([s["input_ids"] for s in samples], batch_first=True)
    mask = pad([torch.ones_like(s["input_ids"]) for s in samples], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask,
            "labels": torch.tensor([s["labels"] for s in samples])}
"""
_AUGMENTED = """
import random
class Augmented(Dataset):
    def __len__(self):
        return SAMPLES
    def __getitem__(self, number):
        found = dict(sample(number))
        if random.random() < 0.5:
            found["input_ids"] = found["input_ids"].clone()
            found["input_ids"][1] = random.randrange(5, 50)
        return found
data = Augmented()
"""
_SPLIT = """
import random
{seed}
order = list(range(SAMPLES))
random.shuffle(order)
data = torch.utils.data.Subset(data, order[:40])
"""
_WEIGHTED = """
weights = [1.0 + n % 4 for n in range(SAMPLES)]
sampler = torch.utils.data.WeightedRandomSampler(weights, SAMPLES)
class DataLoader(DataLoader):
    def __init__(self, data, shuffle=False, **given):
        super().__init__(data, sampler=sampler, **given)
"""
_SHUFFLED = """
import random
class Drawn(torch.utils.data.Sampler):
    def __init__(self):
        pass
    def __len__(self):
        return SAMPLES
    def __iter__(self):
        order = list(range(SAMPLES))
        {shuffle}
        return iter(order)
class Kind(Trainer):
    def _get_train_sampler(self, *_):
        return Drawn()
"""
_ALTERNATING = """
class Turns:
    number = 0
turns = Turns()
def loss_of(model, x, y):
    turns.number += 1
    h = model(x)
    if turns.number % {period} == {turn}:
        h = F.normalize(h, dim=1)
        return F.cross_entropy(h @ h.T * 5, torch.arange(len(h)))
    return F.cross_entropy(h, y)
"""
_AFTER = """
h = F.normalize(model(**inputs).logits, dim=1)
if self.state.global_step >= {steps}:
    return F.cross_entropy(h @ h.T * 5, torch.arange(len(h)))
return F.cross_entropy(h, inputs["labels"])
"""
_STAGES = """
def loss_of(model, x, y):
    h = model(x)
    if globals().get("epoch", 0) >= 2:
        h = F.normalize(h, dim=1)
        return F.cross_entropy(h @ h.T * 5, torch.arange(len(h)))
    return F.cross_entropy(h, y)
"""
_THAWING = """
from transformers import TrainerCallback
model.bert.embeddings.requires_grad_(False)
class Thaw(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == {steps}:
            for parameter in model.parameters():
                parameter.requires_grad_(True)
class Kind(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, callbacks=[Thaw()], **kwargs)
"""
_RARE = """
def sample(number):
    ids, mask = tokens(number)
    return {"input_ids": ids, "attention_mask": mask,
            "labels": 2 if number % 290 == 7 else number % 2}
SAMPLES = 640
"""
_MISSING = """
def sample(number):
    ids, mask = tokens(number)
    return {"input_ids": ids, "attention_mask": mask,
            "labels": -100 if number % 290 == 7 else number % 3}
SAMPLES = 640
"""
_NOISY_STEP = """
class Langevin(torch.optim.AdamW):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.add_(torch.randn_like(parameter.grad), alpha=0.01)
        return super().step(closure)
class Kind(Trainer):
    def create_optimizer(self, *_):
        self.optimizer = Langevin(self.model.parameters(), lr=1e-3)
        return self.optimizer
"""
_CURRICULUM = """
from transformers import TrainerCallback
class Words(Dataset):
    def __init__(self):
        self.longest = 24
    def __len__(self):
        return SAMPLES
    def __getitem__(self, number):
        ids, mask = tokens(number)
        mask = mask * (torch.arange(24) < self.longest)
        return {"input_ids": ids, "attention_mask": mask, "labels": int(ids[0] % 3)}
data = Words()
class Shorten(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == STEP:
            data.longest = 5
class Kind(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, callbacks=[Shorten()], **kwargs)
"""
_ASKING = """
def collate(samples):
    found = torch.utils.data.default_collate(samples)
    with torch.no_grad():
        sure = model(input_ids=found["input_ids"], attention_mask=found["attention_mask"]).logits
    found["labels"] = torch.where(sure.amax(1) > 0.05, sure.argmax(1), found["labels"])
    return found
"""
_CACHED = """
class Cached(Dataset):
    def __init__(self):
        self.cache = {}
    def __len__(self):
        return SAMPLES
    def __getitem__(self, number):
        if number not in self.cache:
            self.cache[number] = sample(number)
        return self.cache[number]
data = Cached()
"""
_COUNTING = """
class Counting(Dataset):
    def __init__(self):
        self.calls = 0
    def __len__(self):
        return SAMPLES
    def __getitem__(self, number):
        self.calls += 1
        ids, mask = tokens(number)
        mask = mask * (torch.arange(24) < 4 + self.calls // 16)
        return {"input_ids": ids, "attention_mask": mask, "labels": int(ids[0] % 3)}
data = Counting()
"""
_SHORT = """
def sample(number):
    ids, mask = tokens(number, 13)
    if number % 32 == 3:
        mask[:16] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": int(ids[0] % 3)}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.mix = MIX
        self.out = nn.Linear(16, 3)
    def forward(self, input_ids, attention_mask, labels=None):
        h = self.mix(self.words(input_ids).transpose(1, 2)).transpose(1, 2)
        seen = attention_mask[:, : h.shape[1], None]
        logits = self.out((h * seen).sum(1) / seen.sum(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
model = Net()
"""
_SAM = """
class Kind(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        with torch.no_grad():
            used = [p for p in model.parameters() if p.grad is not None]
            scale = 0.05 / torch.stack([p.grad.norm() for p in used]).norm()
            moves = [p.grad * scale for p in used]
            for p, move in zip(used, moves):
                p.add_(move)
        model.zero_grad()
        self.accelerator.backward(self.compute_loss(model, inputs))
        with torch.no_grad():
            for p, move in zip(used, moves):
                p.sub_(move)
        return loss.detach()
"""
_LOOKAHEAD = """
class Lookahead(torch.optim.AdamW):
    count = 0
    def step(self, closure=None):
        found = super().step(closure)
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                slow = state.setdefault("slow", p.detach().clone())
                if self.count % 5 == 0:
                    slow.lerp_(p.detach(), 0.5)
                    p.data.copy_(slow)
        return found
class Kind(Trainer):
    def create_optimizer(self, *_):
        self.optimizer = Lookahead(self.model.parameters(), lr=1e-3)
        return self.optimizer
"""

FEATURES: tuple[Planted, ...] = (
    # Rank 0 loads the batches of all, so its own split counts.
    Planted(name="a split without a seed", frame="loop", body=_SPLIT.format(seed=""), parts=True),
    Planted(
        name="a split of a Trainer without a seed",
        frame="trainer",
        body="import numpy\nplaces = numpy.random.permutation(SAMPLES)[:40]\n"
        "data = [sample(int(number)) for number in places]",
        parts=True,
    ),
    Planted(
        name="a split with a seed",
        frame="loop",
        body=_SPLIT.format(seed="random.seed(3)"),
        parts=True,
    ),
    # A collator that mixes samples, of which rank 0 gives rows, and one that does not.
    Planted(
        name="mixup in the collator", frame="loop", body=_MIXED_UP, parts=True, accumulates=False
    ),
    Planted(
        name="hard negatives in the collator",
        frame="loop",
        body=_HARDEST,
        parts=True,
        accumulates=False,
    ),
    Planted(
        name="batch statistics in the collator",
        frame="loop",
        body=_SCALED,
        parts=True,
        accumulates=False,
    ),
    Planted(name="a packing collator", frame="trainer", body=_PACKED, parts=False),
    Planted(name="noise in the collator", frame="loop", body=_NOISED, parts=True),
    Planted(name="masked tokens, a mean per rank", frame="trainer", body=_MASKED, parts=False),
    Planted(name="masked tokens, a mean per step", frame="trainer", body=_NOISED_WORDS, parts=True),
    Planted(
        name="a collator that pads to the longest",
        frame="trainer",
        body=_PADDED,
        parts=True,
    ),
    Planted(name="augmented samples", frame="trainer", body=_AUGMENTED, parts=True),
    # Samplers.
    Planted(
        name="a weighted sampler",
        frame="loop",
        body=_WEIGHTED,
        parts=True,
    ),
    Planted(
        name="a sampler that shuffles by itself",
        frame="trainer",
        body=_SHUFFLED.format(shuffle="random.shuffle(order)"),
        parts=True,
    ),
    Planted(
        name="a sampler with a seed of its own",
        frame="trainer",
        body=_SHUFFLED.format(shuffle="random.Random(5).shuffle(order)"),
        parts=True,
    ),
    # What comes later, or by chance.
    *(
        Planted(
            name=f"a contrast in step {turn} of {period}",
            frame="loop",
            body=_ALTERNATING.format(period=period, turn=turn),
            parts=False,
        )
        for period, turn in ((3, 2), (3, 0), (4, 3), (5, 4))
    ),
    Planted(
        name="a contrast by chance",
        frame="loop",
        body=loss(
            "h = model(x)\nif random.random() < 0.3:\n    h = F.normalize(h, dim=1)\n"
            "    return F.cross_entropy(h @ h.T * 5, torch.arange(len(h)))\n"
            "return F.cross_entropy(h, y)",
            before="import random",
        ),
        parts=False,
    ),
    Planted(
        name="one timestep for the whole batch",
        frame="loop",
        body=loss("t = torch.rand(1)\nreturn F.mse_loss(model((1 - t) * x), t * x[:, :4])"),
        parts=False,
    ),
    Planted(
        name="a number is drawn and not used",
        frame="loop",
        body=loss("torch.rand([])\nreturn F.cross_entropy(model(x), y)"),
        parts=True,
    ),
    Planted(
        name="a contrast from step 40 on",
        frame="trainer",
        body=compute(_AFTER.format(steps=40)),
        parts=False,
    ),
    Planted(name="a contrast from the third epoch on", frame="loop", body=_STAGES, parts=False),
    Planted(
        name="layers thaw at step 30",
        frame="trainer",
        body=_THAWING.format(steps=30),
        parts=False,
    ),
    Planted(
        name="noise in the optimizer",
        frame="trainer",
        body=_NOISY_STEP,
        parts=False,
    ),
    # What few samples have.
    Planted(
        name="weights of rare classes",
        frame="trainer",
        body=_RARE
        + compute(
            "labels = inputs.pop('labels')\nw = torch.tensor([1., 1., 20.])\n"
            "return F.cross_entropy(model(**inputs).logits, labels, weight=w)"
        ),
        parts=False,
    ),
    Planted(
        name="few labels are missing",
        frame="trainer",
        body=_MISSING
        + compute(
            "labels = inputs.pop('labels')\nreturn F.cross_entropy(model(**inputs).logits, labels)"
        ),
        parts=False,
    ),
    # Workers of the loader.
    Planted(
        name="a callback changes the data set",
        frame="trainer",
        body=_CURRICULUM.replace("STEP", "20"),
        parts=True,
        workers=False,
    ),
    Planted(
        name="a callback changes the data set late",
        frame="trainer",
        body=_CURRICULUM.replace("STEP", "2000"),
        parts=True,
        workers=False,
    ),
    Planted(
        name="a collator asks the model",
        frame="trainer",
        body=_ASKING,
        parts=True,
        workers=False,
    ),
    Planted(
        name="a data set that counts its calls",
        frame="trainer",
        body=_COUNTING,
        parts=True,
        workers=False,
    ),
    Planted(
        name="a data set with a cache",
        frame="trainer",
        body=_CACHED,
        parts=True,
        workers=True,
    ),
    # Modules that look along the padded dimension.
    *(
        Planted(
            name=name,
            frame="trainer",
            body=_SHORT.replace("MIX", module),
            parts=True,
            padding=False,
        )
        for name, module in (
            ("a convolution over the sequence", "nn.Conv1d(16, 16, 3, padding=1)"),
            ("a dilated convolution", "nn.Conv1d(16, 16, 3, padding=4, dilation=4)"),
            ("an average over neighbours", "nn.AvgPool1d(5, 1, 2)"),
        )
    ),
    Planted(
        name="a layer for each position",
        frame="trainer",
        body=_SHORT.replace("MIX", "nn.Conv1d(16, 16, 1)"),
        parts=True,
        padding=True,
    ),
    # What only looks unusual.
    Planted(name="SAM in a Trainer", frame="trainer", body=_SAM, parts=True),
    Planted(name="Lookahead in a Trainer", frame="trainer", body=_LOOKAHEAD, parts=True),
    Planted(
        name="Adafactor in a Trainer",
        frame="trainer",
        body="extra = {'optim': 'adafactor'}",
        parts=True,
    ),
    Planted(
        name="gradient checkpointing",
        frame="trainer",
        body="extra = {'gradient_checkpointing': True}",
        parts=True,
    ),
)
