"""What the pages say of defaults is what the code does without options."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from machines import machine
from rows import every_row
from tuner.fakes import SMALL, FakeRunner, steady

import cputune
from cputune import Cluster, EmitOptions, TuneOptions, Workload
from cputune.cli import cli
from cputune.plans.knobs import KNOBS
from cputune.plans.workload import Padding
from cputune.records.options import KEEP, options_in

DOCS = Path(__file__).resolve().parent.parent / "docs"
TUNE, KNOBS_PAGE = ((DOCS / name).read_text(encoding="utf-8") for name in ("tune.md", "knobs.md"))
PADDED = replace(
    Workload.script(["train.py"]),
    framework="trainer",
    drawn="at random",
    padding=Padding(share=0.89, left=0.23),
)
NATIVE = machine(isa=("avx512f", "avx512_bf16"))
EMULATED = machine(isa=("avx2",))


def test_samples_of_like_length_are_tried_only_if_they_are_asked_for() -> None:
    def tried(**options: object) -> bool:
        space = cputune.search_space(NATIVE, PADDED, **options)  # type: ignore[arg-type]
        return any(plan.setting("order") == "length" for plan in space.plans())

    assert not tried()
    assert tried(keep="distribution")
    assert tried(fix={"order": "length"})
    assert "`order=length` is tried only if you ask for it" in " ".join(TUNE.split())
    assert "`order=length`: `--fix order=length`" in KNOBS_PAGE


def test_the_page_tells_of_each_knob_what_it_keeps() -> None:
    for knob in KNOBS:
        (row,) = re.findall(rf"(?m)^\| `{knob.name}` \|.*$", KNOBS_PAGE)
        kept = {"none": "other numbers"}.get(knob.keeps, f"the same {knob.keeps}")
        assert f"| {kept} |" in row or "other numbers" in row
    for keep in KEEP:
        assert f"`--keep {keep}`" in TUNE


def test_bf16_is_tried_by_default_only_if_the_cpu_multiplies_it() -> None:
    for facts, there in ((NATIVE, True), (EMULATED, False)):
        precisions = {plan.precision for plan in cputune.search_space(facts, PADDED).plans()}
        assert ("bf16" in precisions) is there
    precisions = {
        plan.precision
        for plan in cputune.search_space(EMULATED, PADDED, allow_slow_precision=True).plans()
    }
    assert "bf16" in precisions


def test_the_baseline_is_the_launch_as_it_is_typed() -> None:
    """The pages said that it was one process, whatever was typed."""
    typed = Workload.script(["torchrun", "--nproc-per-node", "2", "train.py"])
    result = cputune.tune(
        replace(typed, framework="trainer", global_batch_size=8),
        facts=SMALL.facts,
        runner=FakeRunner(lambda plan, before: steady(1.0)),
        budget=2,
    )
    assert result.baseline.plan.as_found
    assert result.baseline.plan.processes_per_node == 2
    assert result.baseline.plan.environment() == {}
    for name in ("tune.md", "getting-started.md"):
        page = " ".join((DOCS / name).read_text(encoding="utf-8").split())
        assert "the command as you typed it, with its launcher and its ranks" in page


@every_row("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_an_option_that_a_page_names_is_one_of_some_command(page: Path) -> None:
    known = {
        text.flag for kind in (TuneOptions, EmitOptions, Cluster) for *_, text in options_in(kind)
    }
    context = cli.make_context("cputune", ["--help"], resilient_parsing=True)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        known |= {flag for parameter in command.params for flag in parameter.opts}
    known |= {flag for parameter in cli.params for flag in parameter.opts} | {"--help"}
    text = page.read_text(encoding="utf-8")
    ours = re.findall(r"`cputune [a-z]+(?: [^`-][^`\s]*)* (--[a-z-]+)", text)
    assert [flag for flag in ours if flag not in known] == []
