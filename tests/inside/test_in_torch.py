"""Masks of random bytes are masks of dropout: their rate, independence, scale and backward.

Each bound is wide enough that a true generator misses it once in a million seeds, and the seed
is fixed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from cputune.inside.in_torch import SAID

pytestmark = pytest.mark.torch

Told = Callable[[str], object]

# torch is imported once; each question is asked of a child of that process, because the setting
# lasts as long as the process.
SERVE = """
import json, os, sys
import torch
import torch.nn.functional as F
from cputune.inside.in_torch import MASKS, set_in
for line in sys.stdin:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    set_in(torch, {"dropout": "bytes"})
    torch.manual_seed(7)
    exec(json.loads(line))
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
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def told(server: subprocess.Popen[str]) -> Told:
    """What a process says that draws its masks so."""

    def asked(code: str) -> object:
        assert server.stdin is not None
        assert server.stdout is not None
        failed = "except Exception as error: print(json.dumps(repr(error)))"
        inside = "\n".join(f"    {line}" for line in code.splitlines())
        server.stdin.write(json.dumps(f"try:\n{inside}\n{failed}") + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    return asked


def test_the_rate_is_the_one_that_was_asked_for(told: Told) -> None:
    n = 1 << 22
    rates = told(
        f"ps = [0.1, 0.5, 0.9, 0.003]\n"
        f"print(json.dumps([[p, torch.empty({n}).bernoulli_(p).mean().item()] for p in ps]))"
    )
    assert isinstance(rates, list)
    for p, rate in rates:
        assert abs(rate - p) < 5 * (p * (1 - p) / n) ** 0.5 + 1 / (1 << 17)


def test_neighbours_rows_places_and_masks_have_nothing_to_do_with_each_other(told: Told) -> None:
    n = 1 << 20
    found = told(
        f"n = {n}\n"
        "one, two = (torch.empty(n).bernoulli_(0.5) - 0.5 for _ in range(2))\n"
        "lags = [(one[:-k] * one[k:]).mean().item() for k in (1, 2, 3, 4, 8, 64, 1024)]\n"
        "places = one.view(-1, 4).mean(0).tolist()\n"
        "print(json.dumps([*lags, (one * two).mean().item(), *places]))"
    )
    assert isinstance(found, list)
    correlations, places = found[:8], found[8:]
    assert max(map(abs, correlations)) < 5 * 0.25 / n**0.5
    assert max(map(abs, places)) < 5 * 0.5 / (n / 4) ** 0.5, "each of four words is as random"


def test_how_many_of_a_row_are_dropped_scatters_as_it_should(told: Told) -> None:
    variance = told(
        "rows = torch.empty(4096, 1000).bernoulli_(0.3).sum(1)\n"
        "print(json.dumps(rows.var().item()))"
    )
    assert variance == pytest.approx(1000 * 0.3 * 0.7, rel=0.12)


def test_what_is_kept_is_scaled_and_goes_backward_by_the_same_mask(told: Told) -> None:
    assert told(
        "x = torch.ones(1000, 1000, requires_grad=True)\n"
        "y = F.dropout(x, 0.25)\n"
        "y.sum().backward()\n"
        "print(json.dumps([sorted(set(y.flatten().tolist())), torch.equal(x.grad, y)]))"
    ) == [[0.0, pytest.approx(4 / 3)], True]


def test_nothing_is_dropped_in_evaluation_nor_at_a_rate_of_none(told: Told) -> None:
    assert told(
        "x = torch.ones(100)\n"
        "layers = [torch.nn.Dropout(0.5).eval(), torch.nn.Dropout(0.0)]\n"
        "print(json.dumps([bool((layer(x) == 1).all()) for layer in layers] + [MASKS.drawn]))"
    ) == [True, True, 0]


def test_attention_draws_its_masks_so_too(told: Told) -> None:
    assert told(
        "q = torch.randn(2, 4, 64, 32, requires_grad=True)\n"
        "F.scaled_dot_product_attention(q, q, q, dropout_p=0.1).sum().backward()\n"
        "print(json.dumps([MASKS.drawn, bool(q.grad.isfinite().all())]))"
    ) == [1, True]


def test_a_seed_repeats_a_mask_and_checkpointing_draws_it_again(told: Told) -> None:
    assert told(
        "from torch.utils.checkpoint import checkpoint\n"
        "def mask():\n"
        "    torch.manual_seed(3)\n"
        "    return torch.empty(999).bernoulli_(0.5)\n"
        "x = torch.ones(1000, requires_grad=True)\n"
        "y = checkpoint(lambda x: F.dropout(x * x, 0.5), x, use_reentrant=False)\n"
        "y.sum().backward()\n"
        "same = torch.equal(x.grad != 0, y != 0)\n"
        "other = torch.equal(torch.empty(999).bernoulli_(0.5), torch.empty(999).bernoulli_(0.5))\n"
        "print(json.dumps([torch.equal(mask(), mask()), same, other]))"
    ) == [True, True, False]


def test_every_kind_of_tensor_can_be_filled(told: Told) -> None:
    assert told(
        "kinds = [torch.empty(0), torch.empty(()), torch.empty(5, dtype=torch.bfloat16),\n"
        "         torch.empty(6, 4).t(), torch.empty(7, dtype=torch.bool)]\n"
        "kept = [kind.bernoulli_(1.0).float().sum().item() for kind in kinds]\n"
        "shapes = [list(kind.bernoulli_(0.5).shape) for kind in kinds]\n"
        "given = torch.Generator().manual_seed(1)\n"
        "a = torch.empty(64).bernoulli_(0.5, generator=given)\n"
        "b = torch.empty(64).bernoulli_(0.5, generator=given.manual_seed(1))\n"
        "print(json.dumps([kept, shapes, torch.equal(a, b)]))"
    ) == [[0.0, 1.0, 5.0, 24.0, 7.0], [[0], [], [5], [4, 6], [7]], True]


def test_an_impossible_rate_is_refused_as_torch_does(told: Told) -> None:
    said = told(
        "try:\n    torch.empty(3).bernoulli_(1.5)\n"
        "except RuntimeError as error:\n    print(json.dumps(str(error)))"
    )
    assert "expects p to be in [0, 1]" in str(said)


def test_products_are_allowed_in_bf16_and_a_rank_shows_it(told: Told) -> None:
    code = (
        "from cputune.inside import state\n"
        "before = state.products(torch)\n"
        "set_in(torch, {'products': 'bf16'})\n"
        "seen = state.products_rounded(torch)\n"
        "print(json.dumps([before, state.products(torch), seen in (True, False)]))"
    )
    assert told(code) == ["fp32", "bf16", True]


def test_every_setting_is_said_in_words() -> None:
    assert {name for name, _ in SAID} == {"products", "dropout", "compile"}
