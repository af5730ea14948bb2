"""Ranks that are apart are stopped while they train; what is no fault is left alone."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from numbered_ranks import Ended, numbered_ranks
from rows import every_row

from cputune.inside import applying_script
from cputune.inside.applying.figures import Figures, described, how_apart
from cputune.inside.applying.force import Force
from cputune.inside.applying.guard import EXIT_STATUS
from cputune.ranks.compare import drift
from cputune.ranks.saved import keys_of

SCRIPTS = Path(__file__).parent.parent / "scripts" / "apart"

EQUAL: Figures = {
    "step": 8,
    "rates": [0.1],
    "shapes": 1,
    "weights": [[2.0, 1.0, -1.0, 1.0, 1.0], [3.0, 0.0, 2.0, 1.0, -1.0]],
    "names": ["encoder.weight", "encoder.bias"],
    "samples": 8,
}


def changed(weight: list[float] | None = None, **more: object) -> Figures:
    weights = EQUAL["weights"] if weight is None else [EQUAL["weights"][0], weight]
    return {**EQUAL, "weights": weights, **more}


@every_row(
    ("other", "apart"),
    [
        (changed([3.0, 0.001, 2.0, 1.0, -1.0]), False),
        (changed([math.nan] * 5), True),
        (changed([9.0] * 5, shapes=2), False),
        (changed(samples=7), True),
    ],
)
def test_ranks_are_apart_by_more_than_rounding(other: Figures, *, apart: bool) -> None:
    assert (how_apart(other, EQUAL) is not None) == apart
    assert bool(drift([EQUAL, EQUAL, other], 3)) == apart


def test_two_ranks_whose_weights_are_no_numbers_are_alike() -> None:
    broken = changed([math.nan] * 5)
    assert how_apart(broken, broken) is None


def test_what_differs_is_named() -> None:
    found = how_apart(changed([3.0, 0.3, 2.3, 1.3, -1.3]), EQUAL)
    assert found is not None
    text = described(found, EQUAL["names"], "rank 0 and rank 1")
    assert "encoder.bias, by 0.1 of its norm" in text
    assert "after step 8" in drift([EQUAL, changed(rates=[0.2])], 2)


def test_ranks_are_compared_once_all_have_reported_the_same_step() -> None:
    other = changed(rates=[0.2])
    assert not drift([EQUAL, None], 2)
    assert not drift([EQUAL, {**other, "step": 4}], 2)
    assert not drift([other], 2)


PLAN = Force(world_size=2, samples_per_rank=4, accumulation=1, loop_alone=True)
"""Of one fault: the guard is beside other parts."""


def run(folder: Path, script: str, *words: str) -> list[Ended]:
    """How two ranks ended."""
    plan = PLAN.changed() if script == "unfreezing.py" else {}
    plan_text = json.dumps({**plan, "guard": True})
    argv = (str(applying_script()), plan_text, str(SCRIPTS / script), *words)
    return numbered_ranks(2, *argv, cwd=folder, seconds=200)


WAYS = ("two_models", "zero", "probe", "folds", "uneven", "local_sgd", "evaluates", "accumulates")
needs_ranks = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]
FAULTS = [
    pytest.param("unfreezing.py", r"after step 32 the weights .*most of all 0\.", id="unfreezing"),
    pytest.param("plateau.py", "the learning rates", id="plateau", marks=pytest.mark.matrix),
    pytest.param("noise.py", "the weights", id="noise", marks=pytest.mark.matrix),
]


class TestRanks:
    pytestmark = needs_ranks

    @pytest.mark.parametrize(("script", "says"), FAULTS)
    def test_each_fault_is_stopped(self, tmp_path: Path, script: str, says: str) -> None:
        guarded = run(tmp_path, script)
        assert [status for status, _, _ in guarded] == [EXIT_STATUS] * 2, guarded
        said = [err for _, _, err in guarded if "error: the ranks are apart" in err]
        assert len(said) == 1
        assert re.search(says, said[0])
        assert "--no-guard" in said[0]
        assert not any("weights" in out for _, out, _ in guarded), "none came to its end"
        if script == "unfreezing.py":
            assert keys_of(tmp_path / "checkpoint.pt"), "the checkpoint of step 16 is as it was"

    @pytest.mark.matrix
    @pytest.mark.parametrize("words", [(), pytest.param(("gather",), marks=pytest.mark.matrix)])
    def test_ranks_that_wait_for_each_other_in_unlike_places_are_stopped(
        self, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        guarded = run(tmp_path, "local_break.py", *words)
        assert [status for status, _, _ in guarded] == [EXIT_STATUS] * 2, guarded
        said = "".join(err for _, _, err in guarded)
        assert "rank 0 is in the backward pass of step 3" in said
        where = "in all_gather" if words else "at the end of its script"
        assert f"rank 1 is {where} after step 2" in said

    def test_ranks_that_take_unlike_numbers_of_samples_are_stopped(self, tmp_path: Path) -> None:
        guarded = run(tmp_path, "filtered.py")
        assert [status for status, _, _ in guarded] == [EXIT_STATUS] * 2, guarded
        said = "".join(err for _, _, err in guarded)
        assert "after step 2 the numbers of samples of rank 0 and rank 1 differ: 16 and 12" in said

    @pytest.mark.matrix
    def test_a_second_model_that_is_not_kept_equal_is_stopped(self, tmp_path: Path) -> None:
        guarded = run(tmp_path, "others.py", "own")
        assert [status for status, _, _ in guarded] == [EXIT_STATUS] * 2, guarded
        assert "the weights of rank 0 and rank 1 differ" in "".join(err for _, _, err in guarded)

    @pytest.mark.matrix
    @pytest.mark.parametrize("way", WAYS)
    def test_other_ways_to_train_on_several_ranks_are_left_alone(
        self, tmp_path: Path, way: str
    ) -> None:
        ended = run(tmp_path, "others.py", way)
        assert [(status, out) for status, out, _ in ended] == [(0, "trained\n")] * 2, ended
        assert not any("error" in err or "note:" in err for _, _, err in ended), ended

    @pytest.mark.parametrize(
        ("when", "says"),
        [
            ("weights", "weights"),
            pytest.param("rate", "learning rates", marks=pytest.mark.matrix),
            pytest.param("after", "", marks=pytest.mark.matrix),
        ],
    )
    def test_the_ranks_are_compared_at_the_end(self, tmp_path: Path, when: str, says: str) -> None:
        """15 steps, and they are compared after the first, the second, the fourth, the eighth."""
        ended = run(tmp_path, "late.py", when)
        status = EXIT_STATUS if says else 0
        assert [status for status, _, _ in ended] == [status] * 2, ended
        error = "".join(err for _, _, err in ended)
        assert ("after step 15" in error) == bool(says)
        assert says in error

    def test_what_differs_without_a_fault_is_left_alone(self, tmp_path: Path) -> None:
        """Batch statistics, dropout, an average of the weights that rank 0 keeps and saves."""
        ended = run(tmp_path, "sound.py")
        assert [(status, out) for status, out, _ in ended] == [(0, "trained\n")] * 2, ended
        assert (tmp_path / "model.pt").exists()
        assert not any("error" in err or "note" in err for _, _, err in ended), ended
