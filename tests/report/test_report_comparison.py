"""Two results beside each other: what may be compared, and what the ratio is."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from confirmed import BUSY, UNCOMPARED
from rich.console import Console

from cputune.errors import ResultError
from cputune.report.compare import (
    NO_DIFFERENCE,
    Compared,
    blocks,
    compare,
    document,
    in_a_word,
    verdict,
)
from cputune.report.writing import print_blocks
from cputune.result import Result, Speedup, Throughput
from cputune.workload import Workload


def at(result: Result, median: float, share: float = 0.02) -> Result:
    """The result, both of its sides at this speed, plus or minus a share."""
    rate = Throughput(median=median, low=median * (1 - share), high=median * (1 + share))
    return replace(
        result,
        baseline=replace(result.baseline, samples_per_second=rate),
        best=replace(result.best, samples_per_second=rate),
    )


def best(a: Result, b: Result) -> Speedup:
    found = compare(a, b, name="b").best
    assert found is not None
    return found


def again(result: Result) -> Result:
    """The same study once more, with the same outcome."""
    return replace(result, created="2026-11-22T08:00:00+00:00")


def refused(a: Result, b: Result) -> str:
    with pytest.raises(ResultError) as caught:
        compare(a, b, name="b")
    return str(caught.value).removeprefix("b cannot be compared: ")


def test_a_result_beside_itself_is_refused_and_beside_its_like_is_no_different(
    result: Result,
) -> None:
    assert refused(result, result) == "it is one and the same result"
    found = compare(result, again(result), name="again")
    assert (found.warnings, found.notes) == ((), ())
    for side in (found.best, found.today):
        assert side is not None
        assert side.ratio == 1
        assert in_a_word(side) == NO_DIFFERENCE


def test_the_interval_of_a_ratio_holds_both_intervals(result: Result) -> None:
    found = best(at(result, 10, 0.03), at(result, 12, 0.04))
    assert found.ratio == pytest.approx(1.2)
    assert found.low == pytest.approx(1.2 * (1 - 0.05), rel=0.005)
    assert found.high == pytest.approx(1.2 * (1 + 0.05), rel=0.005)
    assert in_a_word(found) == "faster"


@pytest.mark.parametrize(
    ("speed", "verdict"), [(10.2, NO_DIFFERENCE), (12, "faster"), (8, "slower")]
)
def test_what_is_said_hangs_on_whether_the_interval_holds_1(
    result: Result, speed: float, verdict: str
) -> None:
    assert in_a_word(best(at(result, 10), at(result, speed))) == verdict


def test_single_trials_have_a_wider_interval_than_they_say(result: Result) -> None:
    a, b = at(result, 10), at(result, 10.4)
    assert in_a_word(best(a, b)) == "faster"
    alone = replace(b, confirmation=(), **UNCOMPARED)
    assert in_a_word(best(a, alone)) == NO_DIFFERENCE
    half = math.hypot(math.log(1 / 0.98), math.log(1.02), 1.96 * 0.02)
    assert math.log(1.04 / best(a, alone).low) == pytest.approx(half)
    assert "not confirmed side by side" in " ".join(compare(a, alone, name="b").warnings)


def test_other_work_is_refused(result: Result) -> None:
    recipe = Workload.from_recipe("gpt2-clm")
    assert refused(result, replace(result, workload=recipe)) == (
        f"they trained different things: the recipe {result.workload.name}, and the recipe gpt2-clm"
    )
    script = Workload(name="train.py", argv=("train.py",))
    assert "the script train.py" in refused(result, replace(result, workload=script))


def test_a_recipe_that_was_changed_is_other_work_and_one_that_was_renamed_is_not(
    result: Result,
) -> None:
    job = Workload.from_recipe("gpt2-clm")
    assert job.recipe is not None
    first = replace(result, workload=job)
    longer = replace(job, recipe=replace(job.recipe, sequence_length=7))
    named = replace(job, recipe=replace(job.recipe, name="mine", description="mine"))
    changed = refused(first, replace(result, workload=longer))
    assert changed == "both trained the recipe gpt2-clm, but it was changed in between"
    assert compare(first, replace(result, workload=named), name="b").best is not None


def test_a_machine_that_was_not_quiet_is_refused(result: Result) -> None:
    loud = replace(result, **BUSY)
    assert "this one was measured while others" in refused(result, loud)
    assert "the first was measured while others" in refused(loud, result)


def test_a_machine_that_does_not_name_itself_is_not_taken_for_the_same(result: Result) -> None:
    silent = replace(result, host={"topology": result.host["topology"]})
    for a, b in ((result, silent), (silent, result)):
        found = compare(a, b, name="b")
        assert found.other_machine is None
        assert found.warnings == (
            "nobody knows whether it is the same machine: processor of one is not told",
        )


def test_fewer_cpus_of_the_same_machine_are_a_warning(result: Result) -> None:
    host = {
        **result.host,
        "topology": {**result.host["topology"], "allowed": "0"},
        "limits": {"cpu_quota": 1.5, "memory_bytes": None},
    }
    found = compare(result, replace(result, host=host), name="b")
    assert found.warnings == (
        "other allowed CPUs: 0-1, and 0",
        "other CPU quota: not told, and 1.5",
    )


def script(result: Result, *words: str, **fields: Any) -> Result:
    return replace(result, workload=Workload(name="t.py", argv=("t.py", *words), **fields))


def test_what_the_ratio_hangs_on_is_a_warning(result: Result) -> None:
    host = {**result.host, "topology": {**result.host["topology"], "physical_cores": 64}}
    a = script(result, "--epochs", "3", global_batch_size=8)
    b = replace(script(result, "--epochs", "4", global_batch_size=16), host=host, data="squad")
    assert compare(a, b, name="b").warnings == (
        "other machine, so this compares machines: cores 2 of the first, 64 of this one",
        "other batch: 8 samples per step, and 16 samples per step",
        "other script: t.py --epochs 3, and t.py --epochs 4",
        "other data: not told, and squad",
    )
    assert compare(a, b, name="b").other_machine


def test_what_else_differs_is_a_note(result: Result) -> None:
    newer = replace(result, versions={**result.versions, "torch": "9.9"}, best=result.baseline)
    plan, versions = compare(result, newer, name="b").notes
    assert versions == "other torch: not told, and 9.9"
    assert plan.startswith("other best plan: ")


def shown(result: Result, other: Compared, width: int = 100) -> str:
    out = io.StringIO()
    told = blocks("a.json", result, other)
    print_blocks(told, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_the_terminal_says_in_words_what_is_alike_and_what_is_faster(result: Result) -> None:
    a, b = at(result, 10), at(result, 12)
    text = shown(a, compare(a, b, name="b.json"))
    assert text.startswith("b.json is 1.20 times as fast as a.json: ")
    assert re.search(r"best .* 1$|best .*the reference", text, re.M)
    assert re.search(r"b.json +12 .* 1.20  1.17–1.23, faster", text)
    assert "the reference" in text
    assert "at different times" in text


@pytest.mark.parametrize(
    ("speed", "means", "do"),
    [
        (12, "b is 1.20 times as fast as a: an hour of training takes 50 min.", "cputune run b"),
        (8, "b is 0.80 times as fast as a: an hour of training takes 75 min.", "tune again, as"),
        (10, "The best plans of b and a are as fast: no difference can be told.", "nothing: keep"),
    ],
)
def test_what_it_means_and_what_to_do_stand_first(
    result: Result, speed: float, means: str, do: str
) -> None:
    a, b = at(result, 10), again(at(result, speed))
    said = verdict("a", a, compare(a, b, name="b"))
    assert said.means == means
    assert said.do.startswith(do)
    assert said.sure.endswith(", measured at different times")


def test_the_document_has_both_and_their_ratio(result: Result) -> None:
    one = compare(result, again(result), name="b")
    told = json.loads(json.dumps(document("a", result, one), allow_nan=False))["results"]
    assert [each["name"] for each in told] == ["a", "b"]
    assert told[0]["best"]["ratio"] is None
    assert told[1]["best"]["ratio"]["verdict"] == NO_DIFFERENCE
