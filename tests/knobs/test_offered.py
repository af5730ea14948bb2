"""What a search space offers of each knob, what it leaves out with which reason, and what ``--fix``
takes. A new knob adds rows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden_texts import Golden
from machines import TODAY, machine
from rows import every_row

import cputune
from cputune import HostFacts, UsageError, Workload
from cputune.host.facts import Package
from cputune.plans.equivalence import Deviation, ModelAnswers, Training
from cputune.plans.knobs import KNOBS
from cputune.plans.workload import Masks, Padding

FACTS = machine(cores_per_socket=4, packages=TODAY)
RECIPE = Workload.from_recipe("bert-mini")
SCRIPT = Workload.script(["t.py"])
TRAINER = SCRIPT.observed(
    framework="trainer", global_batch_size=32, parses_arguments=True, accumulation=4
)
WAITS = replace(TRAINER, loading_share=0.2)
PADDED = replace(SCRIPT, padding=Padding(share=0.89, left=0.23))
NO_MASK = Padding(share=0.0, left=1.0, kept="the batches have no mask")
COUNTED = Padding(share=0.89, left=0.23, kept="the loss counts it")
SPARSE = replace(RECIPE, gradient_bytes=44_000_000, touched_bytes=16_000_000)
MAPS = replace(RECIPE, mapped_blocks=40)
LOOP = replace(SCRIPT, parses_arguments=False, optimizer="AdamW as a loop")
ANY_ORDER = {"keep": "distribution"}
ROUNDED = {"allow_bf16_gradients": True}


def typed(*words: str) -> Workload:
    return Workload.script(["t.py", *words])


def answered(question: str, why: str) -> ModelAnswers:
    """What a script has answered to one question: it does not train the same."""
    return ModelAnswers(answers=(Deviation(question=question, point="at the first step", why=why),))


def stack(torch: str | None = "2.7.1", transformers: str | None = "4.53.3") -> HostFacts:
    versions = {"torch": torch, "transformers": transformers, "accelerate": "1.8.0"}
    packages = (
        Package(name=name, version=version, location=None)
        for name, version in versions.items()
        if version is not None
    )
    return machine(cores_per_socket=2, packages=tuple(packages))


def amd(torch: str = "2.13.0", vendor: str | None = "AuthenticAMD") -> HostFacts:
    packages = tuple(replace(p, version=torch) if p.name == "torch" else p for p in TODAY)
    facts = machine(cores_per_socket=2, packages=packages)
    return replace(facts, cpu=replace(facts.cpu, vendor=vendor, isa=("avx512_bf16", "avx512f")))


MASKS = Masks(elements=8_900_000, seconds=0.048, step_seconds=0.6)
OLD = replace(amd(), cpu=replace(amd().cpu, isa=("avx2",)))
"""A processor whose flags name no instructions for bf16."""


def pages(enabled: str | None) -> HostFacts:
    facts = machine(cores_per_socket=2, libraries=("tcmalloc",))
    return replace(facts, settings=replace(facts.settings, transparent_huge_pages=enabled))


def values_of(
    name: str, facts: HostFacts, job: Workload, options: dict[str, object]
) -> set[object]:
    space = cputune.search_space(facts, job, **options)  # type: ignore[arg-type]
    return set(next(knob.values for knob in space.knobs if knob.name == name))


OFFERED: tuple[tuple[str, HostFacts, Workload, dict[str, object], set[object]], ...] = (
    ("precision", FACTS, RECIPE, {}, {"fp32", "bf16"}),
    ("allocator", pages("madvise"), RECIPE, {}, {"default", "tcmalloc"}),
    ("malloc", pages("madvise"), MAPS, {}, {"default", "kept", "huge_pages"}),
    ("malloc", pages("always"), MAPS, {}, {"default", "kept", "huge_pages"}),
    ("accumulation", FACTS, TRAINER, {}, {"default", 1}),
    ("accumulation", FACTS, typed("--gradient_accumulation_steps", "8"), {}, {"default", 1}),
    ("workers", FACTS, WAITS, {}, {"default", 1, 2}),
    ("optimizer", stack(), typed("--optim", "adamw_torch"), {}, {"default", "adamw_torch_fused"}),
    *(
        (
            *("optimizer", stack("2.13.0", "5.23.0"), replace(LOOP, framework=framework)),
            *({}, {"default", "adamw_torch_fused"}),
        )
        for framework in ("trainer", "accelerate")
    ),
    ("padding", FACTS, PADDED, {}, {"full", "cut"}),
    ("order", FACTS, PADDED, {}, {"random"}),
    ("order", FACTS, PADDED, ANY_ORDER, {"random", "length"}),
    # A collator pads each batch to its longest sample.
    (
        *("order", FACTS, replace(SCRIPT, padding=Padding(share=0.3, left=1.0, kept="no tail"))),
        *(ANY_ORDER, {"random", "length"}),
    ),
    ("gradients", FACTS, SPARSE, {}, {"dense", "sparse"}),
    ("gradient_precision", FACTS, RECIPE, ROUNDED, {"fp32", "bf16"}),
    ("dropout", amd(), RECIPE, {}, {"torch", "bytes"}),
    ("dropout", amd(), replace(RECIPE, training=Training(dropout=True)), {}, {"torch", "bytes"}),
    *(
        ("dropout", amd(vendor=vendor), replace(RECIPE, masks=masks), {}, {"torch", "bytes"})
        for vendor in ("GenuineIntel", "AuthenticAMD", None)
        # Attention with dropout is faster whatever its masks cost.
        for masks in (MASKS, replace(MASKS, step_seconds=10.0, attention=True))
    ),
    ("precision", amd(), replace(RECIPE, bf16_time=0.5), {}, {"fp32", "bf16"}),
    # It may have been delayed: a trial says so.
    ("precision", amd(), replace(RECIPE, bf16_time=9.0), {}, {"fp32", "bf16"}),
    ("precision", OLD, replace(RECIPE, bf16_time=0.5), {}, {"fp32", "bf16"}),
    ("precision", OLD, RECIPE, {}, {"fp32"}),
    ("dropout", amd(), RECIPE, {"knobs": ["dropout"]}, {"torch", "bytes"}),
    ("dropout", amd(), RECIPE, {"knobs": ["ranks"]}, {"torch"}),
    ("precision", amd(), RECIPE, {"knobs": ["dropout"]}, {"fp32"}),
)


@every_row(("name", "facts", "job", "options", "values"), OFFERED)
def test_these_values_are_tried(
    name: str, facts: HostFacts, job: Workload, options: dict[str, object], values: set[object]
) -> None:
    assert values_of(name, facts, job, options) == values


LEFT_OUT: tuple[tuple[str, HostFacts, Workload, dict[str, object], str], ...] = (
    ("accumulation", FACTS, RECIPE, {}, "does not accumulate"),
    ("accumulation", FACTS, replace(TRAINER, accumulation=1), {}, "does not accumulate"),
    ("accumulation", FACTS, SCRIPT, {}, "not known before it has run"),
    ("accumulation", FACTS, replace(TRAINER, framework="accelerate"), {}, "own loop decides"),
    ("accumulation", FACTS, replace(TRAINER, batch_per_rank=4), {}, "--batch-per-rank fixes"),
    ("workers", FACTS, TRAINER, {}, "not known before it has run"),
    ("workers", FACTS, replace(TRAINER, loading_share=0.012), {}, "its data 1.2 % of its time"),
    (
        *("workers", FACTS),
        *(replace(WAITS, argv=("t.py", "--dataloader_num_workers", "4")), {}, "script sets"),
    ),
    ("workers", FACTS, replace(WAITS, framework="accelerate"), {}, "creates its data loader"),
    (
        *("workers", FACTS),
        *(
            replace(WAITS, model_answers=answered("workers", "it asks the model")),
            {},
            "asks the mod",
        ),
    ),
    (
        "workers",
        FACTS,
        replace(WAITS, model_answers=answered("samples", "it counts")),
        {},
        "it counts",
    ),
    (
        *("optimizer=adamw_torch_fused", stack("2.13.0", "5.23.0"), RECIPE, {}),
        "the default of transformers 5.23.0 with torch 2.13.0 already",
    ),
    ("optimizer=adamw_torch_fused", stack("2.8.0", "4.55.4"), RECIPE, {}, "already"),
    (
        *("optimizer=adamw_torch_fused", stack("2.3.1", "4.53.3"), RECIPE, {}),
        "has no --optim adamw_torch_fused that steps on a CPU",
    ),
    (
        *("optimizer=adamw_torch_fused", stack("2.7.1", "4.26.1"), RECIPE, {}),
        "has no --optim adamw_torch_fused",
    ),
    ("optimizer=adamw_torch_fused", stack("2.7.1", None), RECIPE, {}, "not known"),
    ("optimizer=adamw_torch_fused", stack(None, "4.53.3"), RECIPE, {}, "not known"),
    *(
        ("optimizer=adamw_torch_fused", stack(), job, {}, reason)
        for job, reason in (
            (typed("--optim", "adafactor"), "sets --optim adafactor itself"),
            (typed("--optim=adamw_torch_fused"), "itself"),
            (replace(SCRIPT, framework="accelerate"), "not known before it has run"),
            (replace(SCRIPT, optimizer="SGD, foreach"), "steps with SGD, foreach"),
            (replace(SCRIPT, optimizer="AdamW, fused"), "steps with AdamW, fused"),
        )
    ),
    ("padding=cut", FACTS, SCRIPT, {}, "not known before it has run"),
    (
        *("padding=cut", FACTS, replace(SCRIPT, padding=COUNTED), {}),
        "89% of the tokens are padding, but the loss",
    ),
    (
        *("padding=cut", FACTS, replace(SCRIPT, padding=Padding(share=0.89, left=0.99)), {}),
        "1.0% of the columns",
    ),
    ("padding=cut", FACTS, replace(SCRIPT, padding=NO_MASK), {}, "the batches have no mask"),
    *(
        ("order=length", FACTS, replace(job, padding=padding), ANY_ORDER, reason)
        for job, padding, reason in (
            (SCRIPT, COUNTED, "cannot be cut: the loss counts it"),
            (SCRIPT, Padding(share=0.5, left=0.5), "already have similar lengths"),
            (SCRIPT, None, "not known before it has run"),
            (SCRIPT, NO_MASK, "the batches have no mask"),
            (
                replace(SCRIPT, framework="accelerate"),
                PADDED.padding,
                "creates its data loader itself",
            ),
        )
    ),
    ("gradients=sparse", FACTS, RECIPE, {}, "before it has run"),
    (
        *("gradients=sparse", FACTS, replace(SPARSE, touched_bytes=43_000_000), {}),
        "a step touches 98% of the gradients",
    ),
    ("gradient_precision=bf16", FACTS, RECIPE, {}, "--allow-bf16-gradients"),
    ("malloc=huge_pages", pages("never"), MAPS, {"knobs": ["malloc"]}, "enabled says never"),
    ("malloc=huge_pages", pages(None), MAPS, {"knobs": ["malloc"]}, "enabled says nothing"),
    (
        *("dropout=bytes", amd(), replace(RECIPE, masks=replace(MASKS, step_seconds=10.0)), {}),
        "torch draws the masks of a step in 48 ms, and a step takes 10000 ms",
    ),
    (
        *("precision=bf16", OLD, replace(RECIPE, bf16_time=2.6), {}),
        "2.6 times slower than fp32 in a product of matrices (--allow-slow-precision tries it)",
    ),
    ("dropout=bytes", amd("1.13.1"), RECIPE, {}, "cannot be replaced from Python"),
    (
        *("dropout=bytes", amd(), replace(RECIPE, training=Training(dropout=False)), {}),
        "no dropout was seen in the model",
    ),
)


@every_row(("what", "facts", "job", "options", "reason"), LEFT_OUT)
def test_what_is_left_out_has_its_reason(
    what: str, facts: HostFacts, job: Workload, options: dict[str, object], reason: str
) -> None:
    name, _, value = what.partition("=")
    assert value not in values_of(name, facts, job, options)
    if not value:
        assert values_of(name, facts, job, options) == {"default"}
    left_out = cputune.search_space(facts, job, **options).left_out  # type: ignore[arg-type]
    assert reason in next(out.why for out in left_out if out.what == what)


def test_each_knob_of_settings_has_a_row_of_what_is_left_out() -> None:
    put = {knob.name for knob in KNOBS if knob.put is not None}
    elsewhere = {"backend", "allocator", "openmp", "ipex"}  # tests/tuner
    assert put - elsewhere == {row[0].partition("=")[0] for row in LEFT_OUT}


FIXED: tuple[tuple[str, object, HostFacts, Workload], ...] = (
    ("accumulation", 2, FACTS, RECIPE),
    ("workers", 3, FACTS, TRAINER),
    ("optimizer", "adamw_torch", stack("2.13.0", "5.23.0"), RECIPE),
    ("optimizer", "adamw_torch_fused", stack("2.13.0", "5.23.0"), RECIPE),
    ("gradients", "sparse", FACTS, replace(SPARSE, touched_bytes=43_000_000)),
)


@every_row(("name", "value", "facts", "job"), FIXED)
def test_a_value_that_is_fixed_is_the_only_one(
    name: str, value: object, facts: HostFacts, job: Workload
) -> None:
    assert values_of(name, facts, job, {"fix": {name: value}}) == {value}


IMPOSSIBLE: tuple[tuple[str, object, HostFacts, Workload], ...] = (
    ("accumulation", 3, FACTS, TRAINER),
    ("workers", 3, FACTS, replace(TRAINER, model_answers=answered("weights", "it asks"))),
    ("optimizer", "adamw_torch_fused", stack("2.3.1"), RECIPE),
)


@pytest.mark.parametrize(("name", "value", "facts", "job"), IMPOSSIBLE)
def test_a_value_that_cannot_be_fixed_is_refused(
    name: str, value: object, facts: HostFacts, job: Workload, golden: Golden
) -> None:
    with pytest.raises(UsageError, match=f"{name}={value}") as refused:
        cputune.search_space(facts, job, fix={name: value})  # type: ignore[dict-item]
    golden(str(refused.value.hint))
