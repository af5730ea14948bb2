"""What is no batch for this workload, as its ranks have shown it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cputune.inside.messages import RankState
from cputune.ranks.shown import global_batch
from cputune.steps import Infeasible
from cputune.workload import Workload


def refuse_impossible(workload: Workload, states: Sequence[RankState]) -> None:
    """Raise Infeasible where no plan can have the batch: there is too little data, or another
    one was asked for of a loop over torch alone, in which nothing of ours sets it.
    """
    there, wanted = states[0].get("dataset_samples"), global_batch(states)
    if there is not None and there < wanted:
        raise Infeasible(
            f"{workload.name} has {there} samples to train on, and a step takes {wanted}: "
            "give it more data, or a smaller batch",
            hopeless=True,
        )
    if states[0].get("framework") != "pytorch":
        return
    for option, asked, own in (
        ("--batch-per-rank", workload.batch_per_rank, wanted // len(states)),
        ("--global-batch-size", workload.global_batch_size, wanted),
    ):
        if asked not in (None, own):
            raise Infeasible(
                f"{workload.name} trains by a loop of its own, and a step takes {own} samples: "
                f"{option} {asked} cannot be set in it, so change the script's own batch",
                hopeless=True,
            )
