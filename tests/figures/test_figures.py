"""The pictures: that they show what the record says, and nothing that it does not."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from golden_texts import Golden
from hosts.builder import machine as built
from matplotlib.figure import Figure
from report.result_cases import CASES, a_thousand, profiled, tuned
from rows import every_row

import cputune
from cputune import ConfirmRun, Result, UsageError
from cputune.cli import cli
from cputune.plans.cores import usable_cores
from cputune.plans.layout import make_plan
from cputune.records.claims import Speedup
from cputune.records.result import Turn, Worth
from cputune.report import figures
from cputune.report.figures.canvas import BEST, LOST, RANKS, WORK, ink_on, svg


def words(figure: Figure | None) -> list[str]:
    """All that is written in a picture."""
    assert figure is not None
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg(figure, "x"))


def heights(figure: Figure) -> list[float]:
    return [patch.get_width() for patch in figure.axes[0].patches]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_study_has_its_pictures(case: Callable[[], Result]) -> None:
    result = case()
    for draw in (result.figures.waterfall, result.figures.trials):
        for width in (3.6, 7.4):
            drawn = draw(width=width)
            assert drawn.get_figwidth() == width
            assert len(svg(drawn, "x")) < 150_000
    assert "matplotlib.pyplot" not in sys.modules


def test_the_waterfall_goes_from_today_over_each_change_to_the_best() -> None:
    worth = (
        Worth(knob="precision", value="bf16", speedup=Speedup(ratio=2.0, low=1.9, high=2.1)),
        Worth(knob="malloc", value="kept", speedup=Speedup(ratio=0.9, low=0.8, high=1.05)),
    )
    result = replace(tuned(), worth=worth)
    drawn = result.figures.waterfall()
    today, first, second, best = heights(drawn)
    speed = result.baseline.samples_per_second.centre
    assert today == pytest.approx(speed)
    assert first == pytest.approx(speed)  # twice as fast: as much again
    assert second == pytest.approx(-0.2 * speed)
    assert best == pytest.approx(result.best.samples_per_second.centre)
    said = words(drawn)
    assert "precision bf16" in said
    assert "×2.00 (1.90–2.10)" in said
    assert {"×0.90 (0.80–1.05)", "undecided"} <= {*said}


def test_a_change_that_loses_for_sure_has_the_colour_of_a_loss() -> None:
    lost = Worth(knob="smt", value="yes", speedup=Speedup(ratio=0.8, low=0.7, high=0.9))
    won = Worth(knob="smt", value="yes", speedup=Speedup(ratio=1.2, low=1.1, high=1.3))
    for worth, colour in ((lost, LOST), (won, BEST)):
        drawn = svg(replace(tuned(), worth=(worth,)).figures.waterfall(), "x")
        assert f"fill: var(--{'lost' if worth is lost else 'best'}, {colour}); opacity" in drawn


def test_a_step_is_as_long_as_it_was_measured_to_be() -> None:
    result = replace(profiled(), baseline_profile=None)
    drawn = result.figures.step()
    assert drawn is not None
    samples = result.workload.global_batch_size or 1
    assert sum(heights(drawn)) == pytest.approx(
        1000 * samples / result.best.samples_per_second.centre
    )
    said = words(drawn)
    assert "matrix products" in said
    assert "the rest" in said
    assert not any("limit" in text for text in said)  # the cores' limit was not measured
    assert replace(result, profile=None, baseline_profile=None).figures.step() is None


def test_a_step_of_today_stands_above_the_one_of_the_best_plan() -> None:
    result = profiled()
    assert result.profile is not None
    today = replace(result.profile, plan=result.baseline.plan)
    drawn = replace(result, baseline_profile=today).figures.step()
    assert drawn is not None
    labels = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert labels == ["baseline", "best"]
    slow, fast = result.baseline.samples_per_second.centre, result.best.samples_per_second.centre
    half = len(heights(drawn)) // 2
    assert sum(heights(drawn)[:half]) / sum(heights(drawn)[half:]) == pytest.approx(fast / slow)


def test_the_limit_of_the_products_is_drawn_if_it_is_known() -> None:
    profile = profiled().profile
    assert profile is not None
    limited = replace(profile, gflops=500.0, limit_gflops=1000.0)
    result = replace(profiled(), profile=limited, baseline_profile=None)
    drawn = result.figures.step()
    assert "the matmuls, at the limit of the cores" in words(drawn)
    (line,) = drawn.axes[0].lines
    assert line.get_xdata()[0] == pytest.approx(sum(heights(drawn)) / 2)


def test_of_many_trials_a_part_is_drawn_and_said() -> None:
    said = words(a_thousand().figures.trials())
    assert any(re.fullmatch(r"The trials, as they were run: 1[45]\d of 1000", one) for one in said)
    assert "stopped" not in said


def turns(*seconds: float) -> tuple[Turn, ...]:
    """Turns of three steps: one after the pause, one that others delayed, one that counts."""
    return tuple(
        Turn(place=place, step_seconds=(9.0, 7.0, each), delayed=(1,))
        for place, each in enumerate(seconds)
    )


def test_the_comparison_has_a_point_for_each_round_of_each_block() -> None:
    result = tuned()
    plans = {"baseline": result.baseline.plan, "candidate": result.best.plan}
    seconds = {"baseline": [(4.0, 6.0), (5.0,)], "candidate": [(2.0, 2.0), (2.0,)]}
    runs = []
    for block in (0, 1):
        for role, plan in plans.items():
            run = ConfirmRun(round=block, role=role, plan=plan, samples_per_second=None)
            runs.append(replace(run, taken=turns(*seconds[role][block])))
    alone = {"speedup": None, "not_compared": "it was interrupted"}
    drawn = replace(result, confirmation=tuple(runs), **alone).figures.comparison()
    points = [line.get_ydata() for line in drawn.axes[0].lines if line.get_marker() == "o"]
    assert [list(block) for block in points] == [[2.0, 3.0], [2.5]]
    assert {"block 1", "block 2"} <= set(words(drawn))
    assert replace(result, confirmation=(), **alone).figures.comparison() is None


def test_the_steps_of_a_trial_say_which_do_not_count(golden: Golden) -> None:
    result = tuned()
    taken = Turn(place=0, step_seconds=(2.0, 1.0, 5.0, 1.1), delayed=(2,))
    trial = replace(result.trials[0], number=3, warmup_steps=1, taken=taken)
    result = replace(result, trials=(trial,))
    drawn = result.figures.steps(3)
    assert {"counts", "warm-up", "delayed by others"} <= set(words(drawn))
    crosses = [list(line.get_ydata()) for line in drawn.axes[0].lines if line.get_marker() == "x"]
    assert [5.0] in crosses
    with golden.raises(UsageError):
        result.figures.steps(4)
    assert replace(result, trials=(replace(trial, taken=None),)).figures.steps(3) is None


def test_a_trial_of_a_study_keeps_the_seconds_of_its_steps() -> None:
    trial = tuned().trials[0]
    assert len(trial.taken.step_seconds) == trial.steps
    assert Result.from_json(tuned().to_json()).trials[0].taken == trial.taken


def test_the_cpus_of_each_rank_have_a_colour_and_those_not_allowed_a_hatch() -> None:
    facts = cputune.probe(built(None, sockets=2, cores=4, smt=2, status_allowed="0-5,8-13"))
    plan = make_plan(usable_cores(facts), 2)
    drawn = figures.machine(facts.topology, plan)
    boxes = [patch for patch in drawn.axes[0].patches if patch.get_width() < 1]
    assert len(boxes) == 16
    filled = [box.get_facecolor() for box in boxes]
    ranks = [len([one for one in filled if _hex(one) == RANKS[rank]]) for rank in (0, 1)]
    assert ranks == [len(plan.cpus[0]), len(plan.cpus[1])]
    assert sum(box.get_hatch() is not None for box in boxes) == 4
    said = words(drawn)
    assert {"rank 0", "rank 1", "may not be used here", "socket 1, NUMA node 1"} <= set(said)
    assert {"0", "15"} <= set(said)


def test_256_cpus_can_be_read() -> None:
    facts = cputune.probe(built(None, sockets=2, cores=64, smt=2, nodes=8))
    drawn = figures.machine(facts.topology)
    boxes = [patch for patch in drawn.axes[0].patches if patch.get_width() < 1]
    assert len(boxes) == 256
    assert drawn.get_figheight() <= 14
    assert {"0", "15", "128", "255"} <= set(words(drawn))


def test_the_doctor_draws_a_recorded_machine_of_256_cpus(tmp_path: Path) -> None:
    built(tmp_path, sockets=2, cores=64, smt=2, nodes=8)
    done = CliRunner().invoke(cli, ["doctor", "--picture", "--root", str(tmp_path)])
    assert done.exit_code == 0
    drawn = ElementTree.fromstring(done.stdout)
    said = [element.text for element in drawn.iter() if element.tag.endswith("}text")]
    assert {"socket 1, NUMA node 7", "0", "100", "255"} <= set(said)
    assert "var(--" not in done.stdout  # as a file it has no page around it


def test_ranks_that_share_a_colour_are_named_together() -> None:
    facts = cputune.probe(built(None, sockets=2, cores=10))
    drawn = figures.machine(facts.topology, make_plan(usable_cores(facts), 10), width=3.6)
    assert {"rank 0, 8", "rank 1, 9", "rank 2"} <= set(words(drawn))


def _hex(colour: tuple[float, ...]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour[:3])


@every_row("colour", [*RANKS, *WORK.values()])
def test_what_is_written_on_a_colour_can_be_read(colour: str) -> None:
    def light(text: str) -> float:
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(f * p for f, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    both = sorted((light(colour), light(ink_on(colour))))
    assert (both[1] + 0.05) / (both[0] + 0.05) >= 4.5


def test_several_pictures_are_in_one_page() -> None:
    first, second = (svg(tuned().figures.waterfall(), name) for name in ("a", "b"))
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (first, second)]
    assert not ids[0] & ids[1]
    for text, known in zip((first, second), ids, strict=True):
        assert set(re.findall(r"(?:href=\"|url\()#([^\")]+)", text)) <= known
    assert first == svg(tuned().figures.waterfall(), "a")


def test_a_plan_has_a_short_name() -> None:
    plan = tuned().best.plan
    names = [replace(plan, settings={"malloc": "kept"}).short(), tuned().baseline.plan.short()]
    assert re.fullmatch(r"\d+×\d+ (fp32|bf16) .*malloc=kept", names[0])
    assert names[1].endswith("(baseline)")
