"""Every knob is a whole record: what holds for one holds for all."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from golden_texts import Golden
from in_process import ran
from machines import machine
from rows import every_row

import cputune.inside
import cputune.plans.knobs
from cputune import Plan, UsageError, Workload
from cputune.emitters import Emission, render
from cputune.inside import applying_script
from cputune.inside.messages import RankState
from cputune.plans.delivery.delivery import delivery_of, launch_command
from cputune.plans.delivery.environment import is_cleared
from cputune.plans.knobs import BASELINE, KNOBS, NAMES, keeps_mathematics, knob_named
from cputune.plans.knobs.record import KEPT, Ask, Knob
from cputune.plans.layout import guide_plan
from cputune.stack import Versions, takes
from cputune.text.documents import record_of

PLAN = guide_plan(machine(sockets=2, cores_per_socket=4))
FACTS = machine(libraries=("tcmalloc", "jemalloc", "libiomp5", "libgomp"))

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

ADAMW = {"class": "AdamW", "fused": True, "foreach": False}
SGD = {"class": "SGD", "fused": False, "foreach": True}

SCRIPT = replace(Workload.script(["train.py"]), global_batch_size=16)
ERA = {"torch": "2.7.1", "transformers": "4.53.3", "accelerate": "1.8.0"}
"""These take every argument of a knob, ``use_ipex`` too."""
JOBS = {
    "recipe": replace(Workload.from_recipe("bert-mini"), global_batch_size=16),
    "never run": SCRIPT,
    "trainer with flags": SCRIPT.observed(
        framework="trainer", global_batch_size=16, parses_arguments=True, accumulation=4
    ),
    "trainer in code": replace(SCRIPT, framework="trainer", parses_arguments=False),
    "accelerate": replace(SCRIPT, framework="accelerate"),
    "loop over torch": replace(SCRIPT, framework="pytorch"),
}

every_knob = every_row("knob", KNOBS, ids=lambda knob: knob.name)


def plans_of(knob: Knob) -> list[Plan]:
    """A plan for each value with a name, and for 1 of a number; of a layout knob the usual plan."""
    if knob.put is None:
        return [PLAN]
    values = [*knob.values]
    if knob.least is not None:
        values.append(1)
    return [plan for value in values if (plan := knob.put(PLAN, value, FACTS)) is not None]


def typed_fields(flags: tuple[str, ...]) -> dict[str, str]:
    """The value of each flag; of one without a value it is True."""
    typed = {}
    for word, after in pairwise([*flags, "--"]):
        if word.startswith("--"):
            typed[word.removeprefix("--")] = "True" if after.startswith("--") else after
    return typed


class TestEveryKnob:
    @every_knob
    def test_says_what_it_is_in_one_line(self, knob: Knob) -> None:
        assert 10 < len(knob.summary) < 90
        assert knob.effect.source
        assert 0 < knob.effect.size < 1
        assert all(0 < size < 0.5 for size in knob.effect.within.values())

    @every_knob
    def test_is_expected_to_lose_nothing(self, knob: Knob) -> None:
        if knob.effect.expected is not None:
            plans = [knob.put(RICH, value, FACTS) for value in knob.values if knob.put]
            gains = [knob.effect.expected(FACTS, plan) for plan in (RICH, *filter(None, plans))]
            assert all(-1 < gain <= 0 for gain in gains)

    @every_knob
    def test_reads_the_value_of_today_back_from_text(self, knob: Knob) -> None:
        text = "no" if knob.baseline is False else str(knob.baseline)
        assert knob.parse(text) == knob.baseline

    @every_knob
    def test_refuses_an_impossible_value_in_words(self, knob: Knob) -> None:
        with pytest.raises(UsageError, match=f"^{knob.name} is ") as caught:
            knob.parse("perhaps?")
        assert caught.value.hint.startswith(f"--fix {knob.name}=")

    @every_knob
    def test_offers_the_value_of_today_first(self, knob: Knob) -> None:
        if knob.offers is not None:
            assert knob.choices(FACTS, Ask()).values[0] == knob.baseline

    @every_knob
    def test_is_carried_by_text_and_plain_json_values(self, knob: Knob) -> None:
        assert all(isinstance(value, str) for value in knob.variables(PLAN).values())
        assert json.loads(json.dumps(dict(knob.arguments(PLAN)))) == dict(knob.arguments(PLAN))

    @every_knob
    def test_its_values_can_be_told_apart(self, knob: Knob) -> None:
        plans = plans_of(knob)
        assert len(set(plans)) == len(plans)
        applied = []
        for plan in plans:
            way = delivery_of(JOBS["trainer with flags"], plan, ERA)
            applied.append((way.variables, plan.preload, way.flags, way.force))
        assert all(one not in applied[:index] for index, one in enumerate(applied))

    @every_knob
    def test_its_values_are_in_words_and_in_a_file(self, knob: Knob) -> None:
        for plan in plans_of(knob):
            assert record_of(Plan, json.loads(json.dumps(plan.to_json()))) == plan
            assert (plan.describe() == PLAN.describe()) == (plan == PLAN)

    @every_knob
    @every_row("job", JOBS.values(), ids=JOBS)
    def test_its_values_get_into_every_kind_of_script(self, knob: Knob, job: Workload) -> None:
        for plan in plans_of(knob):
            way = delivery_of(job, plan, ERA)
            assert knob.variables(plan).items() <= way.variables.items()
            fields, in_torch = knob.arguments(plan), knob.in_torch(plan)
            if job.framework != "trainer" or not fields:
                assert not in_torch or in_torch.items() <= way.force.torch.items()
            if job.takes_flags:
                typed = typed_fields(way.flags)
                for name, value in fields.items():
                    assert typed.get(name, "False") == str(value or False)
            elif job.framework != "pytorch":
                assert fields.items() <= way.force.arguments.items()
            script, *_ = launch_command(job, way)
            ends_together = job.recipe is None and plan.world_size > 1
            needs_file = way.force is not None or ends_together
            assert (script == str(applying_script())) == needs_file
            if in_torch:
                files = render(plan, job, "torchrun", Emission(facts=FACTS, versions=ERA))
                assert "apply_plan.py" in {file.name for file in files}

    @every_knob
    def test_what_shows_it_is_in_the_state_of_a_rank(self, knob: Knob) -> None:
        assert {shown.key for shown in knob.shown} <= RankState.__annotations__.keys()
        assert all(shown.reported(PLAN, {}) is None for shown in knob.shown)

    @every_knob
    def test_its_argument_has_a_row_in_the_stack(self, knob: Knob) -> None:
        if knob.argument is not None:
            takes(Versions.from_names({}), knob.argument)

    @every_knob
    def test_its_variables_are_cleared_before_they_are_set(self, knob: Knob) -> None:
        plans = [PLAN, RICH, *plans_of(knob)]
        named = {name for plan in plans for name in knob.variables(plan)}
        assert all(is_cleared(name) for name in named)

    def test_its_values_are_read_in_words(self, golden: Golden) -> None:
        put = [knob for knob in KNOBS if knob.put is not None]
        golden([f"{knob.name}: {plan.describe()}" for knob in put for plan in plans_of(knob)])

    @every_knob
    def test_its_value_of_before_gives_the_plan_of_before(self, knob: Knob) -> None:
        if knob.put is not None:
            plans = [knob.put(plan, knob.value_in(PLAN), FACTS) for plan in plans_of(knob)]
            assert set(plans) == {PLAN}

    @every_knob
    def test_says_what_it_keeps_of_the_training(self, knob: Knob) -> None:
        assert knob.keeps in KEPT

    @every_knob
    def test_is_held_to_the_mathematics_where_it_says_so(self, knob: Knob) -> None:
        assert keeps_mathematics(PLAN, PLAN)
        promised = knob.keeps in ("numbers", "mathematics")
        others = [plan for plan in plans_of(knob) if plan != PLAN]
        assert {keeps_mathematics(PLAN, plan) for plan in others} <= {promised}


def test_a_knob_that_no_rank_shows_says_why(golden: Golden) -> None:
    smt = knob_named("smt")
    with golden.raises(ValueError):
        replace(smt, unseen=None)


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


IMPORTS = """
import importlib, pkgutil, sys
import cputune.plans.knobs
for found in [*pkgutil.walk_packages(cputune.plans.__path__, "cputune.plans.")]:
    for name in [name for name in sys.modules if name.startswith("cputune.plans")]:
        del sys.modules[name]
    importlib.import_module(found.name)
"""


def test_plans_and_knobs_are_imported_in_any_order() -> None:
    done = ran([sys.executable, "-c", IMPORTS])
    assert done.returncode == 0, done.stderr


def test_what_shows_a_knob_is_written_by_a_rank() -> None:
    """Where nothing writes a key, every trial of the knob is infeasible."""
    inside = Path(cputune.inside.__file__).parent
    texts = [path.read_text() for path in inside.rglob("*.py") if path.name != "messages.py"]
    keys = {shown.key for knob in KNOBS for shown in knob.shown}
    assert [key for key in sorted(keys) if not any(f'"{key}"' in text for text in texts)] == []


@pytest.mark.parametrize(("name", "least"), [("ranks", 1), ("threads", 1), ("ccl_workers", 0)])
def test_numbers_begin_where_they_mean_something(name: str, least: int, golden: Golden) -> None:
    assert knob_named(name).parse(str(least)) == least
    with golden.raises(UsageError):
        knob_named(name).parse(str(least - 1))


def test_bf16_is_expected_to_gain_if_the_cpu_computes_in_it() -> None:
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


def test_no_two_knobs_share_a_name_a_variable_or_an_argument() -> None:
    carried = [n for knob in KNOBS for n in (*knob.variables(RICH), *knob.arguments(RICH))]
    assert len(set(carried)) == len(carried)
    assert len(set(NAMES)) == len(NAMES) == len(BASELINE)


def test_an_unknown_knob_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        knob_named("colour")
    assert "'colour'" in str(caught.value)
    assert set(NAMES) <= set(re.findall(r"\w+", caught.value.hint))


SHOWN: tuple[tuple[str, str, object, dict[str, object], object, object], ...] = (
    ("ranks", "world size", None, {"world_size": 1}, 2, 1),
    ("threads", "threads", None, {"threads": 4}, 4, 4),
    ("threads", "affinity", None, {"affinity": [4, 5, 6, 7]}, "0-3", "4-7"),
    ("precision", "precision", None, {"dtype": "float32"}, "bfloat16", "float32"),
    ("backend", "backend", None, {"world_size": 2, "backend": "gloo"}, "gloo", "gloo"),
    ("backend", "backend", None, {"world_size": 1, "backend": None}, "gloo", None),
    ("ccl_workers", "oneCCL workers", None, {"ccl_workers": [0, 1]}, None, 2),
    ("ccl_workers", "CPUs of oneCCL workers", None, {"ccl_workers": [0, 1]}, None, "0-1"),
    ("gradients", "gradients sent", "sparse", {"gradients": "dense"}, "sparse", "dense"),
    (
        "gradient_precision",
        "gradients in transit",
        "bf16",
        {"gradient_precision": "bf16"},
        "bf16",
        "bf16",
    ),
    ("allocator", "allocator", None, {"allocator": "jemalloc"}, "default", "jemalloc"),
    ("allocator", "preload", None, {"mapped": []}, None, ""),
    ("malloc", "memory of tensors", "kept", {"mapped_blocks": 0}, "kept", "kept"),
    (
        "malloc",
        "memory of tensors",
        "huge_pages",
        {"mapped_blocks": 12},
        "kept",
        "12 mapped blocks",
    ),
    ("malloc", "memory of tensors", None, {"mapped_blocks": None}, None, None),
    ("malloc", "huge pages", "huge_pages", {"huge_pages_bytes": 8 << 20}, "in use", "in use"),
    ("malloc", "huge pages", "huge_pages", {"huge_pages_bytes": 2 << 20}, "in use", "2 MiB"),
    ("malloc", "huge pages", "kept", {"huge_pages_bytes": None}, None, None),
    ("openmp", "OpenMP runtime", None, {"openmp": "libgomp"}, None, "libgomp"),
    ("ipex", "IPEX", None, {"ipex": True}, "off", "on"),
    ("ipex", "IPEX", None, {"ipex": False}, "off", "off"),
    (
        "optimizer",
        "optimizer",
        "adamw_torch_fused",
        {"optimizer": ADAMW},
        "AdamW, fused",
        "AdamW, fused",
    ),
    (
        "optimizer",
        "optimizer",
        None,
        {"optimizer": {**ADAMW, "fused": False}},
        None,
        "AdamW as a loop",
    ),
    ("optimizer", "optimizer", None, {"optimizer": SGD}, None, "SGD, foreach"),
    ("accumulation", "accumulation", 1, {"accumulation": 4}, 1, 4),
    ("accumulation", "accumulation", 4, {"accumulation": 4}, 4, 4),
    ("accumulation", "accumulation", None, {"accumulation": 4}, None, 4),
    ("workers", "loader workers", 1, {"loader_workers": 0}, 1, 0),
    ("padding", "padding", "cut", {"padding": "may be cut"}, "cut", "may be cut"),
    ("order", "order of samples", "length", {"order": "random"}, "length", "random"),
    ("dropout", "dropout masks", "bytes", {"dropout": "torch"}, "bytes", "torch"),
)
"""How a rank shows each knob: by what, the value in the plan (None: that of ``PLAN``), the state of
a rank, what the plan expects, and what the state shows.
"""


@every_row(("name", "what", "value", "state", "expected", "seen"), SHOWN)
def test_what_a_rank_shows_is_compared_with_the_plan(
    name: str, what: str, value: Any, state: dict[str, object], expected: object, seen: object
) -> None:
    knob = knob_named(name)
    plan: Plan | None = PLAN
    if value is not None and knob.put is not None:
        plan = knob.put(PLAN, value, FACTS)
    assert plan is not None
    (shown,) = (shown for shown in knob.shown if shown.what == what)
    assert (shown.expected(plan, 0), shown.reported(plan, state)) == (expected, seen)


def test_workers_are_named_if_there_are_some() -> None:
    words = knob_named("ccl_workers").description
    one_rank = replace(RICH, processes_per_node=1, cpus=((0,),), ccl_cpus=((1,),))
    assert [words(plan) for plan in (RICH, PLAN, one_rank)] == ["1 worker", None, None]


def test_each_knob_has_a_row_of_what_ranks_show() -> None:
    rows = {row[:2] for row in SHOWN}
    by_variable, otherwise = set(), set()
    for knob in KNOBS:
        for one in knob.shown:
            kind = by_variable if one.key == "environment" else otherwise
            kind.add((knob.name, one.what))
    # Each variable is shown in the same way, so it may have a row and needs none.
    assert otherwise <= rows <= otherwise | by_variable
