"""Every knob is a whole record: what holds for one holds for all."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import pytest
from golden_texts import Golden
from machines import machine

import cputune.inside
import cputune.plans.knobs
from cputune import Plan, UsageError
from cputune.inside.messages import RankState
from cputune.plans.delivery.environment import is_cleared
from cputune.plans.knobs import KNOBS, NAMES, TODAY, keeps_mathematics, knob_named
from cputune.plans.knobs.record import KEPT, Ask, Knob
from cputune.plans.layout import guide_plan
from cputune.stack import Versions, takes
from cputune.text.documents import record_of

PLAN = guide_plan(machine(sockets=2, cores_per_socket=4))
FACTS = machine(libraries=("tcmalloc", "jemalloc", "libiomp5"))

RICH = replace(
    PLAN,
    backend="ccl",
    ccl_workers=1,
    ccl_cpus=((0,), (4,)),
    ipex=True,
    allocator="jemalloc",
    openmp="libiomp5",
)
"""A plan that sets what many knobs can."""

every_knob = pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)


@every_knob
class TestEveryKnob:
    def test_says_what_it_is_in_one_line(self, knob: Knob) -> None:
        assert 10 < len(knob.summary) < 90
        assert knob.effect.source
        assert 0 < knob.effect.own < 1
        assert all(0 < size < 0.5 for size in knob.effect.within.values())

    def test_is_expected_to_lose_nothing(self, knob: Knob) -> None:
        if knob.effect.expected is not None:
            plans = [knob.put(RICH, value, FACTS) for value in knob.values if knob.put]
            gains = [knob.effect.expected(FACTS, plan) for plan in (RICH, *filter(None, plans))]
            assert all(-1 < gain <= 0 for gain in gains)

    def test_reads_the_value_of_today_back_from_text(self, knob: Knob) -> None:
        text = "no" if knob.today is False else str(knob.today)
        assert knob.parse(text) == knob.today

    def test_refuses_a_value_that_is_none_in_words(self, knob: Knob) -> None:
        with pytest.raises(UsageError, match=f"^{knob.name} is ") as caught:
            knob.parse("perhaps?")
        assert caught.value.hint.startswith(f"--fix {knob.name}=")

    def test_offers_the_value_of_today_first(self, knob: Knob) -> None:
        if knob.offers is not None:
            assert knob.choices(FACTS, Ask()).values[0] == knob.today

    def test_is_carried_by_text_and_plain_json_values(self, knob: Knob) -> None:
        assert all(isinstance(value, str) for value in knob.variables(PLAN).values())
        assert json.loads(json.dumps(dict(knob.arguments(PLAN)))) == dict(knob.arguments(PLAN))

    def test_its_values_can_be_told_apart(self, knob: Knob) -> None:
        if knob.offers is None or knob.put is None:
            return
        plans = [knob.put(PLAN, value, FACTS) for value in knob.choices(FACTS, Ask()).values]
        assert len(set(plans)) == len(plans)
        carried = [
            (dict(knob.variables(p)), p.preload, dict(knob.arguments(p)), dict(knob.in_torch(p)))
            for p in plans
        ]
        assert all(one not in carried[:index] for index, one in enumerate(carried))

    def test_its_values_stand_in_words_and_in_a_file(self, knob: Knob) -> None:
        if knob.offers is None or knob.put is None:
            return
        plans = [knob.put(PLAN, value, FACTS) for value in knob.choices(FACTS, Ask()).values]
        for plan in filter(None, plans):
            assert record_of(Plan, json.loads(json.dumps(plan.to_json()))) == plan
            assert (plan.describe() == PLAN.describe()) == (plan == PLAN)

    def test_what_shows_it_is_in_the_state_of_a_rank(self, knob: Knob) -> None:
        assert {shown.key for shown in knob.shown} <= RankState.__annotations__.keys()
        assert all(shown.seen(PLAN, {}) is None for shown in knob.shown)

    def test_its_argument_has_a_row_in_the_stack(self, knob: Knob) -> None:
        if knob.argument is not None:
            takes(Versions.from_names({}), knob.argument)

    def test_its_variables_are_cleared_before_they_are_set(self, knob: Knob) -> None:
        plans = [PLAN, RICH]
        if knob.offers is not None and knob.put is not None:
            there = knob.choices(FACTS, Ask()).values
            plans += [p for value in there if (p := knob.put(PLAN, value, FACTS)) is not None]
        named = {name for plan in plans for name in knob.variables(plan)}
        assert all(is_cleared(name) for name in named)

    def test_says_what_it_keeps_of_the_training(self, knob: Knob) -> None:
        assert knob.keeps in KEPT

    def test_is_held_to_the_mathematics_where_it_says_so(self, knob: Knob) -> None:
        assert keeps_mathematics(PLAN, PLAN)
        if knob.put is None or knob.offers is None:
            return
        plans = (knob.put(PLAN, value, FACTS) for value in knob.choices(FACTS, Ask()).values)
        promised = knob.keeps in ("numbers", "mathematics")
        others = [plan for plan in plans if plan not in (None, PLAN)]
        assert {keeps_mathematics(PLAN, plan) for plan in others if plan} <= {promised}


def test_a_knob_that_no_rank_shows_says_why(golden: Golden) -> None:
    smt = knob_named("smt")
    with pytest.raises(ValueError) as raised:
        replace(smt, unseen=None)
    golden(raised.value)


def test_a_knob_that_is_put_into_plans_offers_its_values() -> None:
    with pytest.raises(ValueError, match="needs offers"):
        replace(knob_named("malloc"), offers=None)


def test_a_knob_that_no_plan_is_put_is_laid_out() -> None:
    laid_out = {"nodes", "ranks", "threads", "smt", "backend", "ccl_workers"}
    assert {knob.name for knob in KNOBS if knob.put is None} == laid_out


def test_every_knob_has_its_row() -> None:
    files = (
        one.name
        for one in pkgutil.iter_modules(cputune.plans.knobs.__path__, "cputune.plans.knobs.")
    )
    modules = (importlib.import_module(name) for name in files)
    defined = {v.name for m in modules for v in vars(m).values() if isinstance(v, Knob)}
    assert defined == set(NAMES)


def test_what_shows_a_knob_is_written_by_a_rank() -> None:
    """Where nothing writes a key, every trial of the knob is infeasible."""
    inside = Path(cputune.inside.__file__).parent
    texts = [path.read_text() for path in inside.rglob("*.py") if path.name != "messages.py"]
    keys = {shown.key for knob in KNOBS for shown in knob.shown}
    assert [key for key in sorted(keys) if not any(f'"{key}"' in text for text in texts)] == []


@pytest.mark.parametrize(("name", "least"), [("ranks", 1), ("threads", 1), ("ccl_workers", 0)])
def test_numbers_begin_where_they_mean_something(name: str, least: int, golden: Golden) -> None:
    assert knob_named(name).parse(str(least)) == least
    with pytest.raises(UsageError) as raised:
        knob_named(name).parse(str(least - 1))
    golden(raised.value)


def test_workers_are_named_where_there_are_some() -> None:
    words = knob_named("ccl_workers").words
    assert [words(plan) for plan in (RICH, replace(RICH, ccl_workers=2), PLAN)] == [
        "1 worker",
        "2 workers",
        None,
    ]
    assert words(replace(RICH, processes_per_node=1, cpus=((0,),), ccl_cpus=((1,),))) is None


def test_bf16_is_expected_to_gain_where_the_cpu_computes_in_it() -> None:
    plain = replace(FACTS, cpu=replace(FACTS.cpu, isa=("avx2",)))
    fast = replace(FACTS, cpu=replace(FACTS.cpu, isa=("avx512f", "avx512_bf16", "amx_bf16")))
    expected = knob_named("precision").effect.expected
    bf16, fp32 = (replace(PLAN, precision=name) for name in ("bf16", "fp32"))
    assert expected(plain, bf16) > 0 > expected(fast, bf16)
    assert expected(plain, fp32) == expected(fast, fp32) == 0


@pytest.mark.parametrize("name", ["gradients", "gradient_precision"])
def test_smaller_gradients_gain_on_a_network_alone(name: str) -> None:
    knob = knob_named(name)
    with_it = replace(PLAN, settings={name: knob.values[1]})
    gains = [
        knob.effect.expected(FACTS, replace(plan, nodes=nodes))
        for plan in (PLAN, with_it)
        for nodes in (1, 2)
    ]
    assert gains[:3] == [0, 0, 0]
    assert gains[3] < 0


def test_values_of_a_knob_may_be_numbers(golden: Golden) -> None:
    knob = replace(knob_named("malloc"), name="buckets", values=(25, 100))
    assert knob.parse("100") == 100
    with pytest.raises(UsageError) as raised:
        knob.parse("50")
    golden(raised.value)


def test_no_two_knobs_share_a_name_a_variable_or_an_argument() -> None:
    carried = [n for knob in KNOBS for n in (*knob.variables(RICH), *knob.arguments(RICH))]
    assert len(set(carried)) == len(carried)
    assert len(set(NAMES)) == len(NAMES) == len(TODAY)


def test_an_unknown_knob_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        knob_named("colour")
    assert "'colour'" in str(caught.value)
    assert set(NAMES) <= set(re.findall(r"\w+", caught.value.hint))


@pytest.mark.parametrize(
    ("name", "state", "expected", "seen"),
    [
        ("threads", {"threads": 4}, 4, 4),
        ("precision", {"dtype": "float32"}, "bfloat16", "float32"),
        ("backend", {"world_size": 2, "backend": "gloo"}, "gloo", "gloo"),
        ("backend", {"world_size": 1, "backend": None}, "gloo", None),
        ("allocator", {"allocator": "jemalloc"}, "default", "jemalloc"),
        ("openmp", {"openmp": "libgomp"}, None, "libgomp"),
        ("ipex", {"ipex": True}, "off", "on"),
        ("ipex", {"ipex": False}, "off", "off"),
    ],
)
def test_what_a_rank_shows_is_held_against_the_plan(
    name: str, state: dict[str, object], expected: object, seen: object
) -> None:
    shown = knob_named(name).shown[0]
    assert (shown.expected(PLAN, 0), shown.seen(PLAN, state)) == (expected, seen)


def test_the_cpus_of_a_rank_are_those_of_its_place_on_the_node() -> None:
    _, cpus = knob_named("threads").shown
    assert (cpus.expected(PLAN, 1), cpus.seen(PLAN, {"affinity": [4, 5, 6, 7]})) == ("4-7", "4-7")


def test_a_preloaded_library_that_is_not_mapped_is_seen() -> None:
    plan = Plan(
        processes_per_node=1, threads_per_process=1, cpus=((0,),), preload=("/a.so", "/b.so")
    )
    _, libraries, _ = knob_named("allocator").shown
    assert libraries.expected(plan, 0) == "/a.so:/b.so"
    assert libraries.seen(plan, {"mapped": ["/b.so"]}) == "/b.so"
