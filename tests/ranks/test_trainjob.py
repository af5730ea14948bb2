"""A trial that is a TrainJob, against a stub of the API (FakeApi): no cluster is to be had."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from consumers.launches import result_of, two_ranks
from in_process import Run
from ranks.fake_api import FakeApi

import cputune
from cputune import emit
from cputune.emitters.format import Emission, EmittedFile
from cputune.errors import CannotError
from cputune.facts import HostFacts
from cputune.inside import SOCKET_VARIABLE
from cputune.options import Cluster
from cputune.plan import Plan
from cputune.ranks import engines, trainjob
from cputune.ranks.runner import OneByOne, ProcessRunner
from cputune.remote.named import Node
from cputune.result import Result
from cputune.steps import LivingRunner
from cputune.workload import Workload

pytest.importorskip("kubernetes")

WORKSPACE = Path("/workspace")
CPUS = sorted(os.sched_getaffinity(0))
TWO = Plan(nodes=2, processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
CLUSTER = Cluster(image="r.example.com/bert:1", namespace="team")
REACH = trainjob.Pods(cluster=CLUSTER)
REPORTS = {SOCKET_VARIABLE: "tcp:TOKEN:4711:10.0.0.9", "CPUTUNE_TRIAL_SCRATCH": "{folder}/s"}


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return cputune.probe()


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    with closing(FakeApi(tmp_path)) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.config))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield made


def launch(folder: Path, words: tuple[str, ...], facts: HostFacts) -> engines.Launch:
    """The launch of an emitted TrainJob whose pods run these words."""
    job = Workload.script(["train.py"]).observed(
        framework="trainer", global_batch_size=8, parses_arguments=False
    )
    (emitted, *_) = engines.render_for(trainjob.ByTrainJob(REACH), TWO, job, facts)
    document = yaml.safe_load(emitted.text)
    if words:
        document["spec"]["trainer"].update(command=list(words), args=[])
    return engines.Launch(
        plan=TWO,
        nodes=(Node(name="pod-0"), Node(name="pod-1")),
        files=(EmittedFile(name="trainjob.yaml", text=yaml.safe_dump(document)),),
        variables=REPORTS,
        environment=dict(os.environ),
        folder=folder / "cputune-x_1" / "launch-1",
    )


def test_a_trial_is_the_emitted_trainjob_but_for_its_name_and_who_hears_it(
    facts: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAME", "run-tune-abc")
    monkeypatch.setenv("POD_UID", "1-2-3")
    given = launch(tmp_path, (), facts)
    document = trainjob.manifest(given)
    emitted = yaml.safe_load(given.files[0].text)
    meta, env = document["metadata"], document["spec"]["trainer"]["env"]
    assert meta.pop("ownerReferences")[0]["uid"] == "1-2-3"
    assert meta.pop("name").endswith("launch-1")
    emitted["metadata"].pop("name")
    more = {one["name"]: one["value"] for one in env[len(emitted["spec"]["trainer"]["env"]) :]}
    del env[len(emitted["spec"]["trainer"]["env"]) :]
    assert document == emitted
    assert set(more) == {*REPORTS, "PYTHONPATH"}
    assert more["PYTHONPATH"].endswith("cputune/inside/site")
    assert more["CPUTUNE_TRIAL_SCRATCH"] == "/tmp/cputune/s"


@pytest.fixture(scope="module")
def emitted() -> dict[str, Any]:
    """What the emitted tunejob of two nodes is made of, by kind."""
    of = result_of(two_ranks(), Workload.from_recipe("bert-mini"))
    (file,) = cputune.emit(of, "tunejob", nodes=2, cluster=CLUSTER)
    return {item["kind"]: item for item in yaml.safe_load(file.text)["items"]}


def allowed(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Group, resource and verb of all that a Role allows."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_pods_of_a_pytorchjob_are_those_of_a_trial(facts: HostFacts) -> None:
    """No engine creates PyTorchJobs: what its pods run is what those of a trial's TrainJob do."""
    job = Workload(name="train.py", argv=("train.py", "a b", "$HOME")).observed(
        framework="trainer", global_batch_size=8, parses_arguments=False
    )
    (tried, *_) = engines.render_for(trainjob.ByTrainJob(REACH), TWO, job, facts)
    (emitted, *_) = cputune.emitters.render(
        TWO, job, "pytorchjob", Emission(facts=facts, cluster=CLUSTER)
    )
    trainer = yaml.safe_load(tried.text)["spec"]["trainer"]
    replicas = yaml.safe_load(emitted.text)["spec"]["pytorchReplicaSpecs"]
    assert sum(one["replicas"] for one in replicas.values()) == trainer["numNodes"]
    for one in replicas.values():
        (container,) = one["template"]["spec"]["containers"]
        for what in ("command", "args", "env", "image"):
            assert container[what] == trainer[what]
        assert container["resources"] == trainer["resourcesPerNode"]


class Charge:
    """The process in charge of a trial's TrainJob."""

    def __init__(self, words: tuple[str, ...], facts: HostFacts, folder: Path) -> None:
        self.engine = trainjob.ByTrainJob(REACH)
        self.launch = launch(folder, words, facts)
        (command,) = self.engine.start(self.launch)
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process: subprocess.Popen[str] = subprocess.Popen(command["argv"], **pipes)  # type: ignore[call-overload]
        assert self.process.stdin is not None
        self.process.stdin.write(command["input"])
        self.process.stdin.flush()

    def ended(self) -> tuple[int, str]:
        """Its status and what it wrote, once it has ended by itself."""
        status = self.process.wait(30)
        assert self.process.stderr is not None
        with self.process:
            return status, self.process.stderr.read()

    def why(self) -> str:
        status, tail = self.ended()
        told = self.engine.why(
            self.launch, [{"event": "exit", "rank": 0, "status": status, "tail": tail}]
        )
        return str(told)


def test_how_its_pods_end_is_how_it_ends_and_no_right_of_the_role_is_left_over(
    api: FakeApi, facts: HostFacts, tmp_path: Path, emitted: dict[str, Any]
) -> None:
    api.rules = emitted["Role"]["rules"]
    assert Charge(("true",), facts, tmp_path).ended()[0] == 0
    status, said = Charge(("sh", "-c", "echo on $PET_NODE_RANK; exit 3"), facts, tmp_path).ended()
    assert status == 1
    assert "on 0" in said
    assert "on 1" in said
    assert not api.names
    assert api.calls == allowed(emitted["Role"])


@pytest.mark.parametrize("verb", ["create", "get"])
def test_what_the_role_does_not_allow_is_said_and_nothing_stays(
    verb: str, api: FakeApi, facts: HostFacts, tmp_path: Path, emitted: dict[str, Any]
) -> None:
    rules = emitted["Role"]["rules"]
    api.rules = [{**rule, "verbs": [v for v in rule["verbs"] if v != verb]} for rule in rules]
    status, said = Charge(("true",), facts, tmp_path).ended()
    assert status != 0
    assert f"cannot {verb} resource" in said
    assert not api.names


def test_it_is_deleted_with_who_is_in_charge_and_says_what_it_waits_for(
    api: FakeApi, facts: HostFacts, tmp_path: Path
) -> None:
    api.pending = "0/3 nodes are available: 3 Insufficient cpu."
    charge = Charge(("sleep", "60"), facts, tmp_path)
    until = time.monotonic() + 20
    while not api.names and time.monotonic() < until:
        time.sleep(0.05)
    assert "Insufficient cpu" in str(charge.engine.watch(charge.launch))
    charge.process.communicate(timeout=20)  # its standard input ends
    assert not api.names
    charge.engine.end(charge.launch)  # it is gone already


def test_what_the_api_refuses_is_said_in_its_words(
    api: FakeApi, facts: HostFacts, tmp_path: Path
) -> None:
    api.refuse = "trainjobs is forbidden: exceeded quota: compute, requested: cpu=64"
    assert (
        "takes no TrainJob: trainjobs is forbidden: exceeded quota"
        in Charge(("true",), facts, tmp_path).why()
    )


def test_plans_of_pods_take_no_turns_and_without_a_cluster_that_is_said(
    api: FakeApi, facts: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = trainjob.pods(2, CLUSTER, facts)
    with OneByOne(Workload.script([__file__]), facts, hosts=there, offline=True) as runner:
        assert not isinstance(runner, LivingRunner)
    assert there.neighbours() == ()
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(CannotError, match="no way to Kubernetes"):
        trainjob.pods(2, CLUSTER, facts)


@pytest.mark.torch
@pytest.mark.matrix
def test_two_pods_train_as_one_job(
    api: FakeApi, facts: HostFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = Path(__file__).parent.parent / "faults" / "light.py"
    monkeypatch.setattr(engines, "own_address", lambda hosts: "127.0.0.1")
    monkeypatch.setattr(trainjob.Path, "exists", lambda path: True)
    job = Workload.script([str(light), "0.002"]).observed(
        framework="trainer", global_batch_size=8, parses_arguments=False
    )
    files = engines.render_for(trainjob.ByTrainJob(REACH), TWO, job, facts)
    for one in files:
        (tmp_path / one.name).write_text(one.text)
    there = trainjob.pods(2, CLUSTER, facts)
    with ProcessRunner(job, facts, hosts=there, offline=True) as runner:
        with closing(runner.steps(TWO)) as steps:
            assert len(list(islice(steps, 3))) == 3
        told: Any = runner.observed()
        assert [one["world_size"] for one in told] == [2, 2]
    assert not api.names


@pytest.mark.torch
@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_tunejob_tunes_from_its_start_to_its_result_with_the_rights_of_its_role(
    api: FakeApi,
    emitted: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cputune: Run,
) -> None:
    """The command of its pod, here; the pods of its TrainJobs are processes (FakeApi)."""
    api.rules = emitted["Role"]["rules"]
    job = Workload.from_recipe("bert-mini")
    for one in emit(result_of(two_ranks(), job), "trainjob", nodes=2, cluster=CLUSTER):
        (tmp_path / one.name).write_text(one.text)  # what `build` puts into the image
    real = Path.exists
    monkeypatch.setattr(
        Path,
        "exists",
        lambda path: real(tmp_path / path.name if path.parent == WORKSPACE else path),
    )
    monkeypatch.setenv("POD_NAME", "bert-mini-tune-abc")
    monkeypatch.setenv("POD_UID", "1-2-3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "data").mkdir()
    pod = emitted["Job"]["spec"]["template"]["spec"]["containers"][0]
    assert pod["command"] == ["cputune", "tune"]
    words = [word.replace("/data/", f"{tmp_path}/data/") for word in pod["args"]]
    fixed = ("--fix", "nodes=2", "--fix", "ranks=1", "--fix", "threads=1")  # two pods, one machine
    more = ("--budget", "2", "--share-machine", "--max-time", "4m")
    ended = cputune("tune", *words, *fixed, *more)
    assert ended.code == 0, ended.err
    result = Result.load(tmp_path / "data" / "cputune.json")
    measured = [one for one in result.trials if one.plan.nodes == 2 and one.observed]
    assert measured, [trial.reason for trial in result.trials]
    assert {rank["world_size"] for one in measured for rank in one.observed} == {2}
    assert {one["metadata"]["ownerReferences"][0]["uid"] for one in api.seen} == {"1-2-3"}
    assert {one["metadata"]["namespace"] for one in api.seen} == {"team"}
    assert api.calls <= allowed(emitted["Role"])
    assert not api.names
