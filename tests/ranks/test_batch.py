"""What no plan can make of a batch is said at the first look."""

from __future__ import annotations

import pytest
from golden_texts import Golden

from cputune import Workload
from cputune.inside.messages import RankState
from cputune.ranks.compare import refuse_impossible
from cputune.records.steps import Infeasible


def ranks(framework: str, *, batch: int = 8, number: int = 1) -> list[RankState]:
    state: RankState = {"batch": batch, "accumulation": 2, "dataset_samples": 64}
    state["framework"] = framework  # type: ignore[typeddict-item]
    return [state] * number


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"batch_per_rank": 4}, "a step takes 16 samples: --batch-per-rank 4 cannot be set"),
        ({"global_batch_size": 8}, "a step takes 32 samples: --global-batch-size 8 cannot be set"),
    ],
)
def test_a_loop_over_torch_alone_keeps_its_batch(asked: dict[str, int], said: str) -> None:
    workload = Workload.script(["train.py"], **asked)
    with pytest.raises(Infeasible, match=said) as caught:
        refuse_impossible(workload, ranks("pytorch", number=2))
    assert caught.value.hopeless
    refuse_impossible(workload, ranks("accelerate", number=2))


def test_too_little_data_is_reported_whatever_trains(golden: Golden) -> None:
    with golden.raises(Infeasible) as no:
        refuse_impossible(Workload.script(["train.py"]), ranks("accelerate", batch=40))
    assert no.value.hopeless
    refuse_impossible(Workload.script(["train.py"]), ranks("accelerate", batch=32))


def test_the_first_rank_speaks_for_all() -> None:
    ours, other = ranks("pytorch")[0], ranks("accelerate")[0]
    workload = Workload.script(["train.py"], batch_per_rank=4)
    refuse_impossible(workload, [other, ours])
    with pytest.raises(Infeasible):
        refuse_impossible(workload, [ours, other])
    few: RankState = {**ours, "dataset_samples": 8}
    refuse_impossible(Workload.script(["train.py"]), [ours, few])
