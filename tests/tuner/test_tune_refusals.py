"""What one trial has shown not to work is tried no second time, and only that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from machines import machine
from tuner.fakes import FakeRunner, Heard, steady

import cputune
from cputune import Plan, Result, Step, Trial, Workload
from cputune.plans.knobs import NAMES
from cputune.plans.layout import baseline_plan
from cputune.plans.workload import Padding
from cputune.records.result import FAILED
from cputune.records.steps import Crashed, Infeasible
from cputune.text import cpulist
from cputune.tuner.refusals import refusals

FACTS = machine(cores_per_socket=4)
PADDED = Padding(share=0.5, left=0.6)
JOB = replace(
    Workload.from_recipe("bert-mini"), padding=PADDED, drawn="at random", loading_share=0.2
)
SPACE = cputune.search_space(FACTS, JOB, knobs=NAMES)
TODAY = baseline_plan(FACTS)


def plan(**wanted: object) -> Plan:
    """The plan of the space with these values, and today's for all others."""
    meant = {"ranks": 1, "threads": 4, "precision": "fp32", "padding": "full", "order": "random"}
    meant |= {"workers": "default", "malloc": "default", **wanted}
    return next(p for p, of in SPACE.values.items() if meant.items() <= of.items())


def shown(of: Plan, **otherwise: object) -> tuple[Mapping[str, object], ...]:
    """What ranks show that run as the plan says, but for these keys."""
    return tuple(
        {
            "world_size": of.world_size,
            "threads": of.threads_per_process,
            "affinity": cpulist.render(of.cpus[rank]),
            "order": "length" if of.value("order") == "length" else None,
            **otherwise,
        }
        for rank in range(of.world_size)
    )


def failed(of: Plan, reason: str, *, kind: Any = Infeasible.kind, **otherwise: object) -> Trial:
    told = shown(of, **otherwise)
    return Trial(number=3, plan=of, state=FAILED, kind=kind, reason=reason, observed=told)


def ran(of: Plan) -> Trial:
    return Trial(number=1, plan=of, state="completed", samples_per_second=None)


def names(*trials: Trial) -> list[str]:
    return [refusal.what for refusal in refusals(trials, SPACE)]


def test_what_other_ranks_than_the_first_refuse_is_out_for_several_ranks_alone() -> None:
    of = plan(ranks=2, threads=2, workers=1)
    told = shown(of, loader_workers=1)
    told = (told[0], {**told[1], "loader_workers": None})
    reason = "loader workers of rank 1: not shown, the plan says 1"
    trial = replace(failed(of, reason), observed=told)
    (refusal,) = refusals([trial], SPACE)
    assert refusal.what == "workers=1 of several ranks"
    assert refusal.meets(plan(ranks=4, threads=1, workers=1))
    assert not refusal.meets(plan(workers=1))
    assert not refusal.meets(plan(ranks=2, threads=2, workers=2))


def test_a_script_that_sets_its_threads_is_asked_for_no_other_number() -> None:
    of = plan(threads=2, precision="bf16")
    trial = failed(of, "threads: 4, the plan says 2", threads=4)
    (refusal,) = refusals([trial], SPACE)
    assert refusal.what == "threads"
    assert {p.threads_per_process for p in SPACE.plans() if not refusal.meets(p)} == {4}


def test_nothing_is_blamed_that_a_plan_had_which_ran() -> None:
    crash = failed(plan(precision="bf16"), "rank 0 died", kind=Crashed.kind)
    assert names(ran(TODAY), crash, ran(plan(precision="bf16", padding="cut"))) == []
    of_two = failed(plan(precision="bf16", padding="cut"), "rank 0 died", kind=Crashed.kind)
    assert names(ran(TODAY), of_two) == []
    assert names(ran(TODAY), of_two, ran(plan(padding="cut"))) == ["precision=bf16"]


def test_a_batch_that_cannot_be_divided_ends_all_plans_of_several_ranks() -> None:
    trial = failed(plan(ranks=2, threads=2), "the batch cannot be seen, nor divided")
    (refusal,) = refusals([ran(TODAY), trial], SPACE)
    assert {p.world_size for p in SPACE.plans() if not refusal.meets(p)} == {1}


class FakeRefusing(FakeRunner):
    """Ranks that stay in one precision, whatever they are told; they say so."""

    last: Plan

    def steps(self, plan: Plan) -> Iterator[Step]:
        self.last = plan
        return super().steps(plan)

    def observed(self) -> tuple[Mapping[str, object], ...]:
        return shown(self.last, dtype="float32")


def refusing(plan: Plan, before: int) -> Iterator[Step]:
    if plan.precision == "bf16":
        raise Infeasible("precision: float32, the plan says bfloat16")
    yield from steady(1.0 / plan.processes_per_node)


def tuned(**more: Any) -> tuple[Result, FakeRefusing, list[str]]:
    runner, said = FakeRefusing(refusing), Heard()
    options = {"facts": FACTS, "runner": runner, "budget": 8, "on_event": said, **more}
    return cputune.tune(Workload.from_recipe("bert-mini"), **options), runner, said


def test_a_study_loses_one_trial_to_one_reason_and_says_so_once() -> None:
    result, _, said = tuned()
    assert sum(trial.state == FAILED for trial in result.trials) == 1
    assert [out.why for out in result.left_out if out.what == "precision=bf16"] == [
        next(f"trial {t.number}: {t.reason}" for t in result.trials if t.state == FAILED)
    ]
    assert sum("precision=bf16 is left out from now on" in text for text in said) == 1


def test_a_study_that_is_resumed_knows_it_already(tmp_path: Any) -> None:
    first, _, _ = tuned(study=tmp_path / "s.db", budget=3)
    assert any(trial.state == FAILED for trial in first.trials)
    _, runner, _ = tuned(study=tmp_path / "s.db", budget=8, resume=True)
    assert all(plan.precision == "fp32" for plan in runner.started)


def test_what_todays_launch_shows_of_its_samples_keeps_values_out() -> None:
    for drawn, words in (
        ("a stream", "a stream, which has one order"),
        ("SequentialSampler", "by its own SequentialSampler"),
    ):
        space = cputune.search_space(FACTS, replace(JOB, drawn=drawn))
        why = {out.what: out.why for out in space.left_out}
        assert words in why["order=length"]
        assert {of["order"] for of in space.values.values()} == {"random"}
        assert ("each worker would read all" in why.get("workers", "")) == (drawn == "a stream")
