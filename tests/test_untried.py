"""What was not tried and would pay: named with its factor and its command, the most first."""

from __future__ import annotations

from dataclasses import replace

from golden_texts import Golden
from machines import machine
from rows import every_row

import cputune
from cputune import Workload
from cputune.plans.knobs.record import LeftOut
from cputune.plans.untried import untried
from cputune.plans.workload import Padding

CURE = "apt-get install libtcmalloc-minimal4"
SEEN = Padding(share=0.59, left=0.5, kept="the loss counts it: 3.1, and 2.9 without")


def test_what_would_bring_the_most_comes_first_with_its_command(golden: Golden) -> None:
    first, second = untried((), replace(SEEN, mend="--pad_to_max_length False"), CURE)
    golden(first.text)
    golden(second.text)


@every_row(
    ("padding", "do"),
    [
        (SEEN, "DataCollatorWithPadding"),
        (replace(SEEN, left=1.0), "batches of similar lengths"),
    ],
)
def test_padding_that_may_not_be_cut_is_for_the_script(padding: Padding | None, do: str) -> None:
    left_out = [LeftOut(what="order=length", why="the script creates its data loader itself")]
    found = untried(left_out, padding)
    assert len(found) == (do is not None)
    assert all(do in one.do for one in found)


def test_what_keep_leaves_out_is_named_if_it_is_installed() -> None:
    job = Workload.script(["train.py"])
    native, old = (machine(isa=isa) for isa in (("avx512f", "avx512_bf16"), ("avx2",)))
    for facts, there in ((native, True), (old, False)):
        space = cputune.search_space(facts, job, keep="mathematics")
        named = [one.what for one in untried(space.left_out, None)]
        assert any(what.startswith("bf16") for what in named) is there
    assert untried([LeftOut(what="dropout", why="no dropout was seen in the model")], None) == ()


def test_padding_that_keep_leaves_out_comes_back_without_it() -> None:
    left_out = [LeftOut(what="padding", why="", option="without --keep")]
    (found,) = untried(left_out, replace(SEEN, kept=None))
    assert (found.high, found.do) == (2.0, "tune without --keep")
    (found,) = untried(left_out, replace(SEEN, kept=None, left=0.3))
    assert found.high == 3.33


def test_a_loop_is_not_told_to_use_options_of_a_trainer() -> None:
    left_out = [LeftOut(what="order=length", why="the script creates its data loader itself")]
    uncut = replace(SEEN, left=1.0)
    (of_trainer,), (of_loop,) = (
        untried(left_out, uncut, framework=framework) for framework in ("trainer", "accelerate")
    )
    assert "group_by_length" in of_trainer.do
    assert "batch sampler" in of_loop.do


def test_of_like_length_only_what_it_brings_beyond_cut_columns_is_named() -> None:
    order = LeftOut(what="order=length", why="", option="--keep distribution")
    (found,) = untried([order], replace(SEEN, kept=None, share=0.75, left=0.5))
    assert (found.high, found.do) == (2.0, "tune --keep distribution"), "4.0 were with the cut"
    assert "at most, calculated" in found.gain
    assert untried([order], replace(SEEN, kept=None, share=0.47, left=0.54)) == (), "1.02"
    cut = LeftOut(what="padding", why="", option="--keep distribution")
    (found,) = untried([cut, order], replace(SEEN, kept=None, share=0.75, left=0.5))
    assert found.high == 4.0


def test_samples_of_like_length_that_were_tried_are_not_named() -> None:
    assert untried((), replace(SEEN, left=1.0)) == ()
