"""The batch of all ranks is collated once, and each of them gets its rows."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any, NoReturn

import pytest

from cputune.inside.applying.dispatch import Collate, packed, picked, rows_in, unpacked

torch: Any = None
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    globals()["torch"] = pytest.importorskip("torch")


class RefusedError(Exception):
    pass


def refuse(reason: str) -> NoReturn:
    raise RefusedError(reason)


def stacked(samples: list[int]) -> Any:
    return torch.tensor(samples)


def pairs(samples: list[int]) -> Any:
    """First all first rows, then all second ones."""
    return torch.tensor([*samples, *(-n for n in samples)])


def given(collate: Any, samples: int, *, whole: int, ranks: int) -> list[list[int]]:
    count, batches = Collate(collate, whole, ranks, refuse)(list(range(1, samples + 1)))
    assert count == samples
    return [batch.tolist() for batch in batches]


def test_each_rank_gets_its_rows_and_the_last_batch_is_filled_up() -> None:
    assert given(stacked, 4, whole=4, ranks=2) == [[1, 2], [3, 4]]
    assert given(stacked, 3, whole=4, ranks=2) == [[1, 2], [3, 1]]
    assert given(stacked, 1, whole=4, ranks=4) == [[1], [1], [1], [1]]


def test_of_an_evaluation_each_rank_gets_batches_of_its_own() -> None:
    collate = Collate(stacked, 2, 2, refuse, by_rank=True)
    assert [batch.tolist() for batch in collate([1, 2, 3, 4])[1]] == [[1, 2], [3, 4]]
    assert collate([1, 2, 3])[0] == 3
    assert [batch.tolist() for batch in collate([1, 2, 3])[1]] == [[1, 2], [3, 1]]
    assert [batch.tolist() for batch in collate([1, 2])[1]] == [[1, 2], [1, 2]]


def test_samples_of_several_rows_are_collated_for_each_rank() -> None:
    assert given(pairs, 4, whole=4, ranks=2) == [[1, 2, -1, -2], [3, 4, -3, -4]]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_that_are_not_those_of_samples_are_refused(rows: int) -> None:
    def packing(samples: list[int]) -> Any:
        return torch.zeros(rows, 5)

    with pytest.raises(RefusedError, match="rows of 4 samples, which cannot be divided over 2"):
        given(packing, 4, whole=4, ranks=2)


Two = namedtuple("Two", ["x", "y"])


def test_rows_are_picked_in_any_container_and_all_else_is_given_whole() -> None:
    x = torch.arange(4)
    batch = UserDict({"x": x, "two": Two(x, "same"), "names": ["a", "b", "c", "d"], "scale": 0.5})
    assert rows_in(batch) == 4
    share = picked(batch, 4, [2, 3])
    assert isinstance(share, UserDict)
    assert share["x"].tolist() == share["two"].x.tolist() == [2, 3]
    assert share["two"].y == "same"
    assert (share["names"], share["scale"]) == (["c", "d"], 0.5)
    assert picked([{"a": 1}, {"a": 2}], rows_in([{"a": 1}, {"a": 2}]), [1]) == [{"a": 2}]


def test_a_batch_comes_out_of_its_bytes_as_it_was() -> None:
    batch = {
        "x": torch.randn(3, 2).t(),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
        "one": torch.tensor(7),
        "more": (["a", None], torch.nn.Parameter(torch.ones(2))),
    }
    back = unpacked(memoryview(packed(batch)))
    for name in ("x", "half", "flags", "none", "one"):
        assert back[name].dtype == batch[name].dtype
        assert torch.equal(back[name], batch[name])
    assert back["more"][0] == ["a", None]
    assert back["more"][1].tolist() == [1.0, 1.0]
    back["x"].add_(1)  # it may be changed in place
