"""torchrun runs the emitted script, and the command of the Kubernetes jobs in a pod's place."""

import os
import sys

import pytest
import yaml
from launches import THOROUGH, two_ranks
from local_pods import pods_of

from cputune import Plan, verify
from cputune.host import Command
from cputune.ranks.job import observe
from cputune.verifier import expectation, find
from cputune.verifier.checks import outcomes

pytestmark = [pytest.mark.consumer, pytest.mark.torch, pytest.mark.slow]


@pytest.mark.thorough  # in the suite test_typed_lines verifies a line of torchrun
def test_the_recipe_trains_as_planned(write, tiny):
    directory = write("torchrun", two_ranks(), tiny)
    (verdict,) = verify([directory / "torchrun.sh"], steps=4)
    assert verdict.state == "passed", verdict


@pytest.mark.thorough
def test_a_recipe_that_was_cut_fails_and_so_does_a_variable_beside_the_plan(write, tiny):
    script = write("torchrun", two_ranks(), tiny) / "torchrun.sh"
    recipe = script.with_name("recipe.json")
    recipe.write_text(recipe.read_text().replace('"sequence_length": 32', '"sequence_length": 4'))
    script.write_text(
        script.read_text().replace("\nexec ", "\nexport OMP_WAIT_POLICY=active\nexec ", 1)
    )
    (verdict,) = verify([script], steps=4)
    failed = {check.name: check for check in verdict.checks if check.state == "failed"}
    assert set(failed) == {"workload", "environment", "variables", "files"}, verdict
    seen = {row.seen for row in failed["workload"].evidence}
    assert seen == {"4 tokens"}
    assert "OMP_WAIT_POLICY=active" in failed["environment"].summary


def test_an_interpreter_that_is_gone_does_not_pass(write, tiny, monkeypatch):
    monkeypatch.delenv("PYTHON", raising=False)
    directory = write("torchrun", two_ranks(), tiny, python="/gone/bin/python")
    (verdict,) = verify([directory / "torchrun.sh"], steps=4)
    assert verdict.state == "failed", verdict
    assert any(
        check.remedy == "set PYTHON to the interpreter that trains" for check in verdict.checks
    )


@THOROUGH
@pytest.mark.parametrize("format", ["pytorchjob", "trainjob"])
def test_two_pods_of_one_rank_train_as_planned(format, write, tiny, environment, tmp_path):
    single = Plan(
        processes_per_node=1, threads_per_process=1, precision="bf16", cpus=two_ranks().cpus[:1]
    )
    file = write(format, single, tiny, nodes=2) / f"{format}.yaml"
    (verdict,) = verify([file])
    states = {check.name: check.state for check in verdict.checks}
    assert states.pop("launch") == "not checked"
    assert set(states.values()) == {"passed"}, verdict
    job = yaml.safe_load(file.read_text())
    allowed = sorted(os.sched_getaffinity(0))
    environment = {"PYTHON": sys.executable, **environment}
    pods = pods_of(job, file, allowed, tmp_path / "volumes", environment)
    (found,) = find([file])
    expected = expectation(found, None, steps=4)
    seen = observe(
        [Command(argv=pod.argv, environment=pod.environment) for pod in pods],
        ranks=2,
        steps=4,
        timeout_seconds=200,
        show=expected.environment or (),
    )
    told = list(outcomes(seen, expected, "pods", dealt_out=True))
    # No kubelet gives these pods CPUs of their own, or mounts the volume that the command names.
    apart = ("affinity", "hosts", "what is trained")
    failed = [check for check in told if check.state != "passed" and check.name not in apart]
    assert failed == []
    assert told[0].summary.startswith("2 ranks")
