"""The knobs ``gradients`` and ``gradient_precision``: what ranks send to each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from numbered_ranks import numbered_ranks

import cputune

TRAIN = """
import copy, json, sys
import torch
from torch import nn

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
words, wide = nn.Embedding(20000, 32), nn.Linear(8 * 32, 2000)
model = nn.parallel.DistributedDataParallel(nn.Sequential(words, nn.Flatten(), wide))
if "--own-hook" in sys.argv:
    model.register_comm_hook(
        None, lambda state, bucket: torch.distributed.all_reduce(
            bucket.buffer() / 3, async_op=True).get_future().then(lambda done: done.value()[0]))
alone = copy.deepcopy(model.module)
torch.manual_seed(rank)
for number in range(3):
    ids = torch.randint(0, 20000, (2, 8))
    for each in (model, alone):
        each.zero_grad()
        each(ids).square().sum().backward()
for one in alone.parameters():
    torch.distributed.all_reduce(one.grad)
    one.grad /= 3
if rank == 0:
    norms = [[float(one.grad.double().norm()) for one in each.parameters()]
             for each in (model, alone)]
    rows = [int((each[0].weight.grad.count_nonzero(1) != 0).sum())
            for each in (model.module, alone)]
    parts = getattr(sys.modules.get("cputune_applied"), "parts", {})
    told = [part.report() for part in parts.values() if part.name == "gradients"]
    print(json.dumps([*norms, rows, told]))
torch.distributed.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.timeout(300)
class TestRealRanks:
    """Three ranks, so that a third is no power of two."""

    def trained(self, folder: Path, settings: dict[str, str], *arguments: str) -> Any:
        (folder / "train.py").write_text(TRAIN, encoding="utf-8")
        plan = json.dumps({"torch": settings})
        applying = Path(cputune.__file__).parent / "inside" / "applying"
        ranks = numbered_ranks(3, str(applying), plan, "train.py", *arguments, cwd=folder)
        assert not any(rank.status for rank in ranks), ranks
        return json.loads(ranks[0].out)

    def test_rows_that_are_left_out_change_no_gradient(self, tmp_path: Path) -> None:
        sparse, dense, (rows, all_rows), told = self.trained(tmp_path, {"gradients": "sparse"})
        assert sparse == pytest.approx(dense, rel=1e-6)
        assert rows == all_rows
        assert 16 < rows <= 48  # those of all three ranks
        assert told == [{"gradients": "sparse"}]

    @pytest.mark.matrix
    def test_bf16_rounds(self, tmp_path: Path) -> None:
        both = {"gradients": "sparse", "gradient_precision": "bf16"}
        rounded, dense, _, told = self.trained(tmp_path, both)
        assert rounded == pytest.approx(dense, rel=1e-2)
        assert rounded != dense
        assert told == [both]

    @pytest.mark.matrix
    def test_a_hook_of_the_script_stays(self, tmp_path: Path) -> None:
        *_, told = self.trained(tmp_path, {"gradients": "sparse"}, "--own-hook")
        assert told == [{"gradients": "the script has a communication hook of its own"}]
