"""Trials whose ranks are apart give no number, unless the launch as typed is like that."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune import Plan, Workload
from cputune.plans.layout import baseline_plan
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import Infeasible

SCRIPTS = Path(__file__).parent.parent / "scripts" / "apart"

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]


def two_ranks(facts: cputune.HostFacts) -> Plan:
    cpus = facts.topology.allowed
    shares = (cpus[:1], cpus[1:2] or cpus[:1])
    return Plan(processes_per_node=2, threads_per_process=1, cpus=shares)


@pytest.mark.parametrize(
    ("script", "steps", "says"),
    [
        ("noise.py", 2, "its ranks differ: after step 1 the weights of rank 0 and rank 1"),
        pytest.param("unfreezing.py", 34, "after step 32 the weights", marks=pytest.mark.matrix),
    ],
)
def test_a_plan_whose_ranks_are_apart_is_refused(
    workdir: Path, script: str, steps: int, says: str
) -> None:
    facts = cputune.probe()
    job = Workload.script([str(SCRIPTS / script)])
    with ProcessRunner(job, facts, offline=True) as runner:
        with closing(runner.steps(baseline_plan(facts))) as typed:
            assert len(list(islice(typed, 2))) == 2
        taken = runner.steps(two_ranks(facts))
        with closing(taken), pytest.raises(Infeasible, match=says):
            list(islice(taken, steps))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("script", "says"), [("noise.py", "after step 1 the weights of rank 0"), ("sound.py", "")]
)
def test_a_launch_of_several_ranks_is_tuned_also_if_they_are_apart_as_typed(
    workdir: Path, script: str, says: str
) -> None:
    facts = cputune.probe()
    words = ["torchrun", "--nproc-per-node", "2", str(SCRIPTS / script)]
    with ProcessRunner(Workload.script(words), facts, offline=True) as runner:
        with closing(runner.steps(baseline_plan(facts, ranks=2))) as typed:
            assert len(list(islice(typed, 9))) == 9
        training = runner.workload.training
        assert training.drift.startswith(says)
        assert bool(training.drift) == bool(says)
