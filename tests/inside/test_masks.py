"""Masks of random bytes are masks of dropout: their rate, independence, scale and backward.

Each bound is wide enough that a true generator misses it once in a million seeds, and the seed
is fixed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cputune.inside.applying.dropout import bits_for

pytestmark = pytest.mark.torch

Told = Callable[[str], list[Any]]

# torch is imported once; each question is asked of a child of that process, because the setting
# lasts as long as the process.
SERVE = """
import json, os, sys
import torch
import torch.nn.functional as F
from cputune.inside.applying.dropout import Masks
def say(*values):
    print(json.dumps(values))
for line in sys.stdin:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    masks = Masks()
    masks.replace(torch)
    torch.manual_seed(7)
    try:
        exec(json.loads(line))
    except Exception as error:
        say(repr(error))
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-u", "-W", "error", "-c", SERVE]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def told(server: subprocess.Popen[str]) -> Told:
    """What a process says that draws its masks so."""

    def asked(code: str) -> list[Any]:
        server.stdin.write(json.dumps(code) + "\n")
        server.stdin.flush()
        said: list[Any] = json.loads(server.stdout.readline())
        return said

    return asked


def test_the_rate_is_the_one_that_was_asked_for(told: Told) -> None:
    n = 1 << 22
    rates = told(
        f"ps = [0.1, 0.5, 0.9, 0.003, 0.9999, 1e-6]\n"
        f"say(*[[p, torch.empty({n}).bernoulli_(p).mean(dtype=float).item()] for p in ps])"
    )
    for p, rate in rates:
        assert abs(rate - p) < 5 * (p * (1 - p) / n) ** 0.5


@pytest.mark.parametrize(
    ("p", "bits"),
    [
        *((0.5, 16), (0.1, 16), (0.9, 16), (0.05, 16)),
        *((0.003, 32), (0.999, 32), (1 / (1 << 18), 32)),
        *((1e-9, None), (1 - 1e-9, None)),
    ],
)
def test_a_share_is_drawn_to_a_part_in_ten_thousand(p: float, bits: int | None) -> None:
    assert bits_for(p) == bits
    if bits is not None:
        drawn = round(p * (1 << bits)) / (1 << bits)
        assert abs(drawn - p) <= 1e-4 * p
        assert abs((1 - drawn) - (1 - p)) <= 1e-4 * (1 - p)


def test_neighbours_rows_places_and_masks_have_nothing_to_do_with_each_other(told: Told) -> None:
    n = 1 << 20
    found = told(
        f"n = {n}\n"
        "one, two = (torch.empty(n).bernoulli_(0.5) - 0.5 for _ in range(2))\n"
        "lags = [(one[:-k] * one[k:]).mean().item() for k in (1, 2, 3, 4, 8, 64, 1024)]\n"
        "places = one.view(-1, 4).mean(0).tolist()\n"
        "say(*lags, (one * two).mean().item(), *places)"
    )
    correlations, places = found[:8], found[8:]
    assert max(map(abs, correlations)) < 5 * 0.25 / n**0.5
    assert max(map(abs, places)) < 5 * 0.5 / (n / 4) ** 0.5, "each of four words is as random"


def test_how_many_of_a_row_are_dropped_scatters_as_it_should(told: Told) -> None:
    (variance,) = told("say(torch.empty(4096, 1000).bernoulli_(0.3).sum(1).var().item())")
    assert variance == pytest.approx(1000 * 0.3 * 0.7, rel=0.12)


SAYS = {
    "what_is_kept_is_scaled_and_goes_backward_by_the_same_mask": (
        """
x = torch.ones(1000, 1000, requires_grad=True)
y = F.dropout(x, 0.25)
y.sum().backward()
say(sorted(set(y.flatten().tolist())), torch.equal(x.grad, y))
""",
        [[0.0, pytest.approx(4 / 3)], True],
    ),
    "nothing_is_dropped_in_evaluation_nor_at_a_rate_of_none": (
        """
x = torch.ones(100)
layers = [torch.nn.Dropout(0.5).eval(), torch.nn.Dropout(0.0)]
say(*[bool((layer(x) == 1).all()) for layer in layers], masks.drawn)
""",
        [True, True, 0],
    ),
    "attention_draws_its_masks_so_too": (
        """
q = torch.randn(2, 4, 64, 32, requires_grad=True)
F.scaled_dot_product_attention(q, q, q, dropout_p=0.1).sum().backward()
say(masks.drawn, bool(q.grad.isfinite().all()))
""",
        [1, True],
    ),
    "attention_that_fits_is_computed_with_them_and_repeats_by_its_seed": (
        """
from cputune.inside.applying.hooking import set_hooks
set_hooks(masks.hooks()[1:])
q = torch.randn(2, 4, 64, 32, requires_grad=True)
def attended():
    torch.manual_seed(3)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
one, two = attended(), attended()
F.scaled_dot_product_attention(q, q, q)
say(masks.attention.used, torch.equal(one, two), masks.drawn)
""",
        [2, True, 2],
    ),
    "a_seed_repeats_a_mask_and_checkpointing_draws_it_again": (
        """
from torch.utils.checkpoint import checkpoint
def mask(seed):
    torch.manual_seed(seed)
    return torch.empty(999).bernoulli_(0.5)
x = torch.ones(1000, requires_grad=True)
y = checkpoint(lambda x: F.dropout(x * x, 0.5), x, use_reentrant=False)
y.sum().backward()
same = torch.equal(x.grad != 0, y != 0)
say(torch.equal(mask(3), mask(3)), same, torch.equal(mask(3), mask(4)))
""",
        [True, True, False],
    ),
    "every_kind_of_tensor_can_be_filled": (
        """
kinds = [torch.empty(0), torch.empty(()), torch.empty(5, dtype=torch.bfloat16),
         torch.empty(6, 4).t(), torch.empty(7, dtype=torch.bool)]
kept = [kind.bernoulli_(1.0).float().sum().item() for kind in kinds]
shapes = [list(kind.bernoulli_(0.5).shape) for kind in kinds]
given = torch.Generator().manual_seed(1)
a = torch.empty(64).bernoulli_(0.5, generator=given)
b = torch.empty(64).bernoulli_(0.5, generator=given.manual_seed(1))
say(kept, shapes, torch.equal(a, b))
""",
        [[0.0, 1.0, 5.0, 24.0, 7.0], [[0], [], [5], [4, 6], [7]], True],
    ),
    "what_bytes_cannot_draw_is_torchs_own": (
        """
rare = torch.empty(1000).bernoulli_(1e-9)
sure = torch.empty(1000, dtype=torch.float64).bernoulli_(1 - 1e-9)
flags = torch.empty(1 << 16, dtype=torch.bool).bernoulli_(0.5)
before = masks.drawn
torch.empty(10).bernoulli_(0.003)
say(rare.sum().item(), sure.sum().item(), abs(flags.float().mean().item() - 0.5) < 0.01, before,
    masks.drawn)
""",
        [0.0, 1000.0, True, 0, 1],
    ),
    "an_impossible_rate_is_refused_as_torch_does": (
        """
try:
    torch.empty(3).bernoulli_(1.5)
except RuntimeError as error:
    say("expects p to be in [0, 1]" in str(error))
""",
        [True],
    ),
}


@pytest.mark.parametrize(("code", "says"), SAYS.values(), ids=SAYS)
def test_a_mask_of_bytes_is_a_mask(told: Told, code: str, says: list[object]) -> None:
    assert told(code) == says
