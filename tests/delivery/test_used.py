"""What was seen to change nothing in a trial is left out of a launch; flags take its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cputune import Workload
from cputune.inside.applying.force import Force
from cputune.inside.applying.parts import needed
from cputune.inside.applying.ranks import PRETENDED
from cputune.plans.delivery.delivery import Delivery
from cputune.plans.delivery.needed_parts import AVERAGE, UNUSED, used
from cputune.stack import Versions

TODAY = Versions.from_names({"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"})
OLD = Versions.from_names({"torch": "2.2.0", "transformers": "4.40.0", "accelerate": "0.30.0"})
TRAINER = Workload(name="train.py", argv=("train.py",), framework="trainer", parses_arguments=True)
LOOP = replace(TRAINER, framework="accelerate", parses_arguments=None)
BY_FLAGS = Force(world_size=2, by_flags=True)


def left(
    did: dict[str, list[str]] | None,
    force: Force = BY_FLAGS,
    workload: Workload = TRAINER,
    versions: Versions = TODAY,
    **shown: Any,
) -> tuple[set[str], tuple[str, ...]]:
    """The modules that are still needed, and the flags that were added."""
    rank = {"pid": 1, **shown, **({} if did is None else {"applied": did})}
    way, reasons = used(
        Delivery(variables={}, force=force, world_size=2), [[rank, rank]], workload, versions
    )
    found = set() if way.force is None else {part.module for part in needed(way.force)}
    assert set(reasons) == {part.module for part in needed(force)} - found
    return found, way.flags


def test_without_a_trial_that_shows_it_all_parts_stay() -> None:
    assert left(None) == ({"trainer", "ranks", "dispatch", "apart"}, ())


def test_a_part_that_changed_something_stays() -> None:
    assert left({"trainer": ["the scale of its losses"], "ranks": [PRETENDED]})[0] == {"trainer"}


@pytest.mark.parametrize(
    ("did", "flags"),
    [
        ({"ranks": [PRETENDED]}, (f"--{AVERAGE}", "False")),
        ({"trainer": [AVERAGE]}, (f"--{AVERAGE}", "True")),
        ({"trainer": [AVERAGE], "ranks": [PRETENDED]}, (f"--{AVERAGE}", "False")),
    ],
)
def test_an_argument_says_what_parts_set(did: dict[str, list[str]], flags: tuple[str, ...]) -> None:
    assert left(did) == (set(), flags)
    assert left(did, versions=OLD)[1] == (), "this transformers does not have it"


def test_a_loop_on_one_rank_for_which_variables_say_it_all_needs_nothing() -> None:
    alone = Force(world_size=1, loop_alone=True, arguments={"use_cpu": True})
    assert left({}, alone, LOOP) == (set(), ())
    assert left({"loop": ["mixed_precision"]}, alone, LOOP) == ({"loop"}, ())


def test_padding_that_was_not_cut_is_not_cut() -> None:
    force = replace(BY_FLAGS, torch={"padding": "cut", "order": "length"})
    full = {"padding": "full, for it has no mask", "order": "length"}
    rank = {"applied": {"trainer": ["x"]}, **full}
    way, reasons = used(Delivery(variables={}, force=force), [[rank]], TRAINER, TODAY)
    assert way.force.torch == {"order": "length"}
    assert "padding" in reasons
    assert UNUSED not in way.flags
