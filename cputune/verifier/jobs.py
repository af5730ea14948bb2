"""What the jobs of Kubeflow's operators mean: their Pods, and the plan they carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cputune.plan import Plan
from cputune.verifier.records import FAILED, NOT_CHECKED, PASSED, Evidence, Outcome
from cputune.verifier.rules import Document, at


def pytorchjob_pods(job: Document) -> list[tuple[str, dict[str, Any]]]:
    """The Pods that the operator makes of a PyTorchJob, one for each replica, the master first."""
    pods = []
    replicas = at(job, "spec", "pytorchReplicaSpecs")
    for role in sorted(replicas if isinstance(replicas, Mapping) else ()):
        count = at(replicas, role, "replicas")
        for index in range(count if isinstance(count, int) and 0 < count <= 1024 else 1):
            template = at(replicas, role, "template") or {}
            name = f"{at(job, 'metadata', 'name')}-{str(role).lower()}-{index}"
            pods.append((str(role), _pod(name, template)))
    return pods


def _pod(name: str, template: Document) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**(at(template, "metadata") or {}), "name": name},
        **{key: value for key, value in template.items() if key != "metadata"},
    }


def trainjob_pod(job: Document) -> dict[str, Any]:
    """The Pod of one node, as far as the TrainJob itself says what is in it."""
    trainer = at(job, "spec", "trainer") or {}
    container = {
        key: trainer[key] for key in ("image", "command", "args", "env") if trainer.get(key)
    }
    resources = trainer.get("resourcesPerNode")
    if resources:
        container["resources"] = resources
    name = f"{at(job, 'metadata', 'name')}-node-0-0"
    return _pod(name, {"spec": {"containers": [{"name": "node", **container}]}})


def layout_of_job(job: Document) -> dict[str, Any]:
    """Nodes, ranks per node, CPUs and variables that a job of either kind asks for."""
    if job.get("kind") == "TrainJob":
        trainer = at(job, "spec", "trainer") or {}
        nodes, ranks = trainer.get("numNodes"), trainer.get("numProcPerNode")
        env, cpus = trainer.get("env"), at(trainer, "resourcesPerNode", "limits", "cpu")
    else:
        pods = pytorchjob_pods(job)
        nodes, ranks = len(pods), at(job, "spec", "nprocPerNode")
        container = at(pods[0][1], "spec", "containers", 0) if pods else None
        env, cpus = at(container, "env"), at(container, "resources", "limits", "cpu")
    return {
        "nodes": nodes,
        "ranks": str(ranks),
        "cpus": cpus,
        "environment": {at(e, "name"): at(e, "value") for e in env or () if at(e, "value")},
    }


def plan_of_job(job: Document, plan: Plan | None) -> Outcome:
    """Whether the numbers of the document are those of the plan."""
    if plan is None:
        return Outcome(
            name="plan",
            state=NOT_CHECKED,
            summary="there is no result file to compare with",
            remedy="give it with --result cputune.json",
        )
    layout = layout_of_job(job)
    needed = plan.processes_per_node * (plan.threads_per_process + plan.ccl_workers)
    rows: list[tuple[str, object, object]] = [
        ("nodes", plan.nodes, layout["nodes"]),
        ("ranks per node", plan.processes_per_node, layout["ranks"]),
    ]
    carried = plan.environment()
    for variable in ("OMP_NUM_THREADS", "CCL_WORKER_COUNT", "ACCELERATE_MIXED_PRECISION"):
        if variable in carried:
            rows.append((variable, carried[variable], layout["environment"].get(variable)))
    evidence = [Evidence(what=w, expected=str(e), seen=str(s)) for w, e, s in rows]
    wrong = [row.what for row in evidence if row.expected != row.seen]
    cpus = str(layout["cpus"])
    evidence.append(Evidence(what="CPUs", expected=f"at least {needed}", seen=cpus))
    if not cpus.isdigit() or int(cpus) < needed:
        wrong.append("CPUs")
    return Outcome(
        name="plan",
        state=FAILED if wrong else PASSED,
        summary=f"not the plan's: {', '.join(wrong)}" if wrong else "the numbers are the plan's",
        evidence=tuple(evidence),
    )
