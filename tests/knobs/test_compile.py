"""The knob ``compile``: where it lives, how it gets into a script, and what a rank shows of it."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from machines import TODAY, machine

import cputune
from cputune.carrier.command import carried
from cputune.documents import record_of
from cputune.errors import UsageError
from cputune.facts import HostFacts, Unknown
from cputune.knobs import knob_named
from cputune.knobs.kernels import COMPILE
from cputune.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.workload import Workload

JOB = Workload.from_recipe("bert-mini")
SCRIPT = Workload.script(["train.py"])
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
COMPILED = PLAN.with_setting("compile", True)
ACCELERATE = Path(__file__).parent.parent / "faults" / "accelerate_script.py"


def with_compiler(torch: str = "2.13.0") -> HostFacts:
    facts = machine(
        cores_per_socket=2,
        packages=tuple(replace(p, version=torch) if p.name == "torch" else p for p in TODAY),
    )
    return replace(facts, cxx="/usr/bin/g++")


def values_of(facts: HostFacts, job: Workload = JOB, *knobs: str) -> set[object]:
    space = cputune.search_space(facts, job, knobs=knobs or ("+compile",))
    return set(next(knob.values for knob in space.knobs if knob.name == "compile"))


def why(facts: HostFacts, job: Workload = JOB) -> str:
    left_out = cputune.search_space(facts, job, knobs=("+compile",)).left_out
    return next(out.why for out in left_out if out.what == "compile=yes")


class TestWhereItLives:
    def test_it_is_varied_where_it_is_asked_for(self) -> None:
        assert values_of(with_compiler()) == {False, True}
        assert values_of(with_compiler(), JOB, "+dropout") == {False}
        left_out = cputune.search_space(with_compiler(), JOB).left_out
        said = next(out.why for out in left_out if out.what == "compile")
        assert said.endswith("(--knobs +compile)")

    def test_without_a_compiler_it_says_what_is_missing(self) -> None:
        bare = replace(
            with_compiler(),
            cxx=None,
            unknown=(Unknown(fact="cxx", reason="there is no g++ on PATH"),),
        )
        assert values_of(bare) == {False}
        assert why(bare).startswith("there is no g++ on PATH, and torch.compile needs")
        with pytest.raises(UsageError, match="compile=yes") as caught:
            cputune.search_space(bare, JOB, fix={"compile": "yes"})
        assert "g++" in str(caught.value.hint)

    @pytest.mark.parametrize(
        ("facts", "job", "reason"),
        [
            (with_compiler("2.5.1"), JOB, "torch 2.5.1 compiles no model"),
            (
                with_compiler(),
                Workload.script(["train.py", "--torch_compile", "True"]),
                "asks for --torch_compile itself",
            ),
        ],
    )
    def test_it_is_left_out_with_the_reason(
        self, facts: HostFacts, job: Workload, reason: str
    ) -> None:
        assert reason in why(facts, job)

    def test_it_means_nothing_beside_ipex_and_masks_of_bytes(self) -> None:
        assert COMPILE.put is not None
        facts = with_compiler()
        assert COMPILE.put(replace(PLAN, ipex=True), True, facts) is None
        assert COMPILE.put(PLAN.with_setting("dropout", "bytes"), True, facts) is None
        assert COMPILE.put(PLAN.with_setting("dropout", "bytes"), False, facts) is not None


class TestTheWayIntoAScript:
    def test_a_trainer_compiles_by_its_own_argument(self) -> None:
        way = carried(JOB, COMPILED, {})
        assert "--torch_compile" in way.flags
        assert way.force is None
        flags = carried(replace(SCRIPT, framework="trainer", parses_arguments=True), COMPILED, {})
        assert flags.flags[flags.flags.index("--torch_compile") + 1] == "True"
        coded = carried(replace(SCRIPT, framework="trainer", parses_arguments=False), COMPILED, {})
        assert coded.force is not None
        assert coded.force.arguments["torch_compile"] is True
        assert not coded.force.torch

    @pytest.mark.parametrize("framework", ["accelerate", "pytorch"])
    def test_of_other_scripts_the_model_is_compiled_where_it_is_called(
        self, framework: str
    ) -> None:
        way = carried(replace(SCRIPT, framework=framework), COMPILED, {})  # type: ignore[arg-type]
        assert way.force is not None
        assert way.force.torch == {"compile": "yes"}

    def test_it_stands_in_the_plan_and_its_words(self) -> None:
        assert COMPILED.describe() == "1 × 1 threads, fp32, compiled"
        assert record_of(Plan, COMPILED.to_json()) == COMPILED
        (shown,) = knob_named("compile").shown
        assert shown.expected(COMPILED, 0) is True
        assert shown.expected(PLAN, 0) is None


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", [JOB, Workload.script([str(ACCELERATE), "--cpu"])])
def test_a_rank_shows_that_it_was_compiled_and_which_steps_were_spent_on_it(
    job: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = cputune.probe()
    if facts.cxx is None:
        pytest.skip("no C++ compiler")
    with ProcessRunner(job, facts) as runner:
        with closing(runner.steps(COMPILED)) as steps:
            taken = list(islice(steps, 4))
        (state,) = runner.observed()
    assert state["compiled"] is True
    assert taken[0].compiled
    assert taken[0].compile_seconds > 1
    assert not taken[-1].compiled
    assert state["dtype"] == "float32"
