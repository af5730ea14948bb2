"""The Kubernetes documents before the SDK models and the rules of their operators."""

import pytest
import yaml
from launches import two_ranks

from cputune import Cluster, Plan, SecretKey, UsageError, verify

pytest.importorskip("kubeflow.training")
pytestmark = [pytest.mark.consumer]

LARGE = Plan(
    nodes=4,
    processes_per_node=2,
    threads_per_process=24,
    precision="bf16",
    cpus=(tuple(range(24)), tuple(range(28, 52))),
)
FULL = Cluster(
    node_selector=(("pool", "spr"),),
    pull_secrets=("regcred",),
    secret_variables=(SecretKey(variable="WANDB_API_KEY", secret="wandb", key="key"),),
    user_id=2000,
)
NAMES = {"pytorchjob": "PyTorchJob", "trainjob": "TrainJob"}


@pytest.mark.parametrize("format", NAMES)
@pytest.mark.parametrize("plan", [two_ranks(), LARGE], ids=["small", "large"])
@pytest.mark.parametrize("cluster", [Cluster(), FULL], ids=["bare", "full"])
def test_every_consumer_takes_the_document(format, plan, cluster, write, tiny):
    directory = write(format, plan, tiny, nodes=plan.nodes, cluster=cluster)
    verdicts = verify([directory], run=False)
    checks = [check for verdict in verdicts for check in verdict.checks]
    assert {check.state for check in checks if check.name != "launch"} == {"passed"}, checks
    assert {"SDK models", "admission rules"} <= {check.name for check in checks}


DAMAGE = [
    # what is changed, the check that must see it
    (lambda job: job["spec"].__setitem__("nprocPerNode", 2), "SDK models"),
    (lambda job: job["spec"].__setitem__("nprocsPerNode", "2"), "SDK models"),
    (lambda job: job["spec"].pop("nprocPerNode"), "admission rules"),
    (lambda job: pod(job)["spec"].__setitem__("container", []), "SDK models"),
    (lambda job: container(job).__setitem__("image", ["a"]), "SDK models"),
    (lambda job: limits(job).__setitem__("cpu", "1.5"), "admission rules"),
]


def pod(job):
    return job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]


def container(job):
    return pod(job)["spec"]["containers"][0]


def limits(job):
    return container(job)["resources"]["limits"]


@pytest.mark.parametrize("number", range(len(DAMAGE)))
def test_a_damaged_job_is_seen(number, write, tiny):
    damage, seen_by = DAMAGE[number]
    path = write("pytorchjob", two_ranks(), tiny) / "pytorchjob.yaml"
    text = path.read_text()
    comments = "".join(line for line in text.splitlines(True) if line.startswith("#"))
    job = yaml.safe_load(text)
    damage(job)
    path.write_text(comments + yaml.safe_dump(job, sort_keys=False))
    (verdict,) = verify([path], run=False)
    assert verdict.state == "failed"
    assert seen_by in {check.name for check in verdict.checks if check.state == "failed"}


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2\n", "", "apiVersion: v1\nkind: Pod\nspec: 3\n"])
def test_comments_alone_are_no_launch(text, write, tiny):
    path = write("pytorchjob", two_ranks(), tiny) / "pytorchjob.yaml"
    comments = [line for line in path.read_text().splitlines(True) if line.startswith("#")]
    path.write_text("".join(comments) + text)
    with pytest.raises(UsageError, match="was not written by `cputune emit`"):
        verify([path], run=False)
