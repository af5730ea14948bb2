"""Data set and collator are asked whether each row depends on its sample alone."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from golden_texts import Golden

from cputune.inside.applying.apart import draw_apart, seed_of
from cputune.inside.data_functions import changes_outside, refers_to_model
from cputune.inside.draws import Draws
from cputune.inside.sources import Sources

torch: Any = None
numpy: Any = None
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Import them where these tests run, not where they are collected."""
    globals()["torch"] = pytest.importorskip("torch")
    globals()["numpy"] = pytest.importorskip("numpy")


Collate = Callable[[list[Any]], Any]


class Rows:
    """A data set of sequences; each has a length of its own."""

    def __init__(self, length: int = 64) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": torch.arange(1, 4 + number % 5) + number, "y": number % 2}


class Rarely(Rows):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": torch.arange(3), "y": -100 if number == 41 else number % 2}


class Counting(Rows):
    calls = 0

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.calls += 1
        return {"x": torch.full((4,), self.calls), "y": 0}


class Cached(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Any] = {}

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number not in self.cache:
            self.cache[number] = super().__getitem__(number)
        found: dict[str, Any] = self.cache[number]
        return found


class Augmented(Rows):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": torch.arange(4) + random.randrange(100), "y": 0}


def padded(samples: list[Any]) -> dict[str, Any]:
    x = [sample["x"] for sample in samples]
    return {
        "x": torch.nn.utils.rnn.pad_sequence(x, batch_first=True),
        "y": torch.tensor([sample["y"] for sample in samples]),
    }


def noisy(samples: list[Any]) -> dict[str, Any]:
    """Draws for each sample, by Python one after the other and by torch and numpy for all rows."""
    x = torch.stack([sample["x"][:3] * random.random() for sample in samples])
    x = x + torch.randn(x.shape) + torch.from_numpy(numpy.random.rand(*x.shape))
    return {"x": x}


def popping(samples: list[Any]) -> dict[str, Any]:
    """Takes samples apart, as many a collator of transformers does."""
    return {"x": torch.tensor([sample.pop("y") for sample in samples])}


def two_texts(samples: list[Any]) -> dict[str, Any]:
    """Two encodings of a sample, each with a mask of its own (sentence-transformers)."""
    found = {}
    for name in ("anchor", "positive"):
        short = 3 if name == "positive" else 0  # in the first half of the batch
        rows = [torch.arange(1, 9 - short * (sample["x"][0] < 5)) for sample in samples]
        pad = torch.nn.utils.rnn.pad_sequence
        found[f"{name}_input_ids"] = pad(rows, batch_first=True, padding_value=99)
        found[f"{name}_attention_mask"] = pad([row * 0 + 1 for row in rows], batch_first=True)
    return found


def pairs(samples: list[Any]) -> Any:
    """Two rows of each sample, one after all of the other."""
    x = padded(samples)["x"]
    return torch.cat([x, -x])


def mixed_up(samples: list[Any]) -> dict[str, Any]:
    x = padded(samples)["x"].float()
    return {"x": 0.5 * x + 0.5 * x[torch.randperm(len(x))]}


def hardest(samples: list[Any]) -> dict[str, Any]:
    x = torch.stack([sample["x"][:3] ** 2 % 7 for sample in samples]).float()
    apart = torch.cdist(x, x).fill_diagonal_(99.0)
    return {"x": torch.stack([x, x[apart.argmin(1)]], 1)}


def centred(samples: list[Any]) -> dict[str, Any]:
    x = torch.stack([sample["x"][:3] for sample in samples]).float()
    return {"x": x - x.mean(0)}


def packed(samples: list[Any]) -> dict[str, Any]:
    x = torch.cat([sample["x"] for sample in samples])
    return {"x": x[: len(x) // 8 * 8].view(-1, 8)}


def joined(samples: list[Any]) -> dict[str, Any]:
    return {"x": torch.cat([sample["x"] for sample in samples])[None]}


def sources(data: Any, collate: Collate = padded) -> Sources:
    """Those of a script that has just trained on a batch."""
    found = Sources(Draws())
    places = deque([list(range(8))])
    found.fetched(SimpleNamespace(_dataset=data, _collate_fn=collate, _cputune_indices=places))
    found.trained()
    return found


@pytest.mark.parametrize("collate", [padded, noisy, popping, pairs, two_texts])
def test_a_collator_that_makes_each_row_of_its_sample_is_accepted(collate: Collate) -> None:
    asked = sources(Rows(), collate)
    assert [why for _, why in asked.ask()] == [""] * 3
    assert asked.drawn == (collate is noisy)


@pytest.mark.parametrize("collate", [mixed_up, hardest, centred, packed, joined])
def test_a_collator_that_mixes_samples_is_refused(collate: Collate) -> None:
    found = dict(sources(Rows(), collate).ask())
    assert found["collator"].startswith("its collator makes each row of a batch out of several")


@pytest.mark.parametrize(
    ("data", "changes", "drawn"),
    [(Rows, 0, 0), (Counting, 1, 0), (Cached, 0, 0), (Augmented, 0, 1)],
)
def test_a_data_set_that_changes_as_it_is_asked_is_refused(
    data: type[Rows], changes: int, drawn: int
) -> None:
    asked = sources(rows := data())
    found = dict(asked.ask())
    assert bool(found["samples"]) == bool(changes)
    assert asked.drawn == bool(drawn)
    assert getattr(rows, "calls", 0) == 0, "as before"


def test_random_numbers_of_a_data_sets_own_are_a_state_that_ranks_would_share() -> None:
    class Own(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.dice = numpy.random.default_rng(1)

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"x": torch.full((3,), self.dice.random()), "y": 0}

    before = (rows := Own()).dice.bit_generator.state
    assert dict(sources(rows).ask())["samples"]
    assert rows.dice.bit_generator.state == before


def test_what_a_callback_changes_or_a_model_decides_is_seen_later(golden: Golden) -> None:
    rows, model = Rows(), torch.nn.Linear(3, 3)
    asked = sources(rows)
    assert dict(asked.ask())["workers"] == ""
    rows.__class__ = Rarely
    golden(dict(asked.ask())["workers"])

    def judged(samples: list[Any]) -> Any:
        with torch.no_grad():
            return model(padded(samples)["x"][:, :3].float())

    asked = sources(rows, judged)
    before = asked.figure()
    assert asked.depends_on_weights(before) == ""
    with torch.no_grad():
        model.weight.add_(1.0)
    assert "depends on the weights" in asked.depends_on_weights(before)


def test_a_batch_with_a_rare_sample_has_it_in_one_of_its_parts() -> None:
    found = sources(Rarely()).of_rare_samples()
    assert found is not None
    batch, size = found
    assert size == 8
    assert (batch["y"] == -100).tolist() == [True] + [False] * 7
    assert sources(Rows()).of_rare_samples() is None


class Levelled(Rows):
    """As of a script: another method than those of a data set changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 0
        self._fill()

    def _fill(self) -> None:
        self.filled = True

    def set_level(self, level: int) -> None:
        self.level = level


class Callback:
    def __init__(self) -> None:
        self.level = 3

    def on_step_end(self, data: Any) -> None:
        data.longest = 5


class Longest(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.longest = 9


def test_code_that_would_change_a_data_set_later_is_read(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr("cputune.inside.data_functions.of_script", lambda name: name == __name__)
    golden(changes_outside(Levelled(), padded))
    said = "Callback.on_step_end sets its longest while it trains"
    assert changes_outside(Longest(), padded) == said
    assert changes_outside(torch.utils.data.Subset(Longest(), [1]), padded) == said
    assert changes_outside(Cached(), padded) == ""


def test_a_collator_that_refers_to_a_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cputune.inside.data_functions.of_script", lambda name: name == __name__)
    model = torch.nn.Linear(3, 3)

    def judged(samples: list[Any]) -> Any:
        return model(padded(samples)["x"])

    assert refers_to_model(Rows(), judged).startswith("its judged refers to a model")
    assert refers_to_model(Rows(), padded) == ""
    model.requires_grad_(False)
    assert refers_to_model(Rows(), judged) == "", "it is not trained"


def test_ranks_draw_apart_and_tell_the_seed_of_the_script() -> None:
    drawn = []
    for rank in range(3):
        torch.manual_seed(42)
        draw_apart(rank)
        assert torch.initial_seed() == 42
        drawn.append(tuple(torch.rand(4).tolist()))
        assert (seed_of(rank) == 42) == (rank == 0)
    torch.manual_seed(42)
    assert drawn[0] == tuple(torch.rand(4).tolist()), "the first as one rank alone"
    assert len(set(drawn)) == 3
