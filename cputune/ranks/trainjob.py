"""Trials that are TrainJobs: the engine of a Kubernetes cluster, and the process of one trial.

The tuner runs in a pod of the shape that trains (``--format tunejob --nodes N``). A trial is the
TrainJob that ``emit`` writes for its plan, with the image of this pod. Three things are added: a
name, an owner (this pod, so that nothing outlives it) and the variables by which ranks report. A
process below the supervisor (``main``) is in charge of it. This process creates the TrainJob,
reports how it ended, and deletes it when its standard input ends.

The service account has to be allowed to create, get and delete TrainJobs, to list pods, and to read
their logs.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cputune.errors import CannotError
from cputune.facts import HostFacts
from cputune.inside import root_directory
from cputune.options import Cluster
from cputune.ranks.engines import HERE, SITE, Engine, Launch
from cputune.ranks.hosts import RankHosts
from cputune.ranks.messages import Exit, RankCommand, command
from cputune.ranks.supervisor import bootstrap
from cputune.remote.named import Node
from cputune.remote.probed import Probed
from cputune.remote.reach import PODS, Explained
from cputune.steps import Infeasible, TrialError

GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
OF_JOB = "jobset.sigs.k8s.io/jobset-name"
"""The label of the pods of a TrainJob (kubeflow/trainer ``docs/proposals/2170``)."""

POD_NAME, POD_UID = "POD_NAME", "POD_UID"
"""Variables with the name and uid of this pod, from the downward API: it owns the TrainJobs."""

SCRATCH = "/tmp/cputune"
"""In the pods of a trial: the folder for files that the script would have written."""

LOOK_SECONDS = 1.0
TAIL_LINES = 60
REFUSED = 75
"""Exit status of the process in charge where the API refuses such a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of TrainJobs: nothing is started on them but by a TrainJob."""

    cluster: Cluster
    name: str = PODS
    variables: Mapping[str, str] = field(default_factory=dict)

    def argv(self, node: Node, program: Sequence[str]) -> tuple[str, ...]:
        raise CannotError(f"nothing is asked of {node.name}, which is a pod to come")

    def explain(self, node: Node, code: int | None, said: str) -> Explained:
        return said, None


def pods(nodes: int, cluster: Cluster, facts: HostFacts) -> RankHosts:
    """So many pods like this one, whose ``facts`` hold for each. Raises CannotError."""
    _api()
    there = [Probed(node=Node(name=f"pod-{n}"), facts=facts) for n in range(nodes)]
    return RankHosts(hosts=there, reach=Pods(cluster=cluster))


@dataclass(frozen=True, slots=True)
class ByTrainJob(Engine):
    """A TrainJob of Kubeflow Trainer 2 for each trial."""

    reach: Pods
    format: str = "trainjob"

    def start(self, launch: Launch) -> list[RankCommand]:
        """As every verb: see ``Engine``. Raises Infeasible where the image lacks a file."""
        document = manifest(launch)
        said = json.dumps(document["spec"]["trainer"])
        for one in launch.files:
            place = f"/workspace/{one.name}"
            if place in said and not Path(place).exists():
                raise Infeasible(f"the image has no {place}: build it from `emit -f trainjob`")
        code = bootstrap("cputune.ranks.trainjob", "main()")
        given = json.dumps(document) + "\n"
        return [command([sys.executable, "-c", code], launch.environment, input=given)]

    def watch(self, launch: Launch) -> str | None:
        """What Kubernetes says of a pod that does not run yet, or of the TrainJob."""
        name, namespace = _named(launch)
        try:
            jobs, core = _api()
            job = jobs.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)
            found = core.list_namespaced_pod(namespace, label_selector=f"{OF_JOB}={name}").items
        except Exception as error:  # whatever the client raises is the reason for waiting
            return f"Kubernetes: {_reason(error)}"
        for pod in found:
            waits = [c.message for c in pod.status.conditions or () if c.status == "False"]
            if pod.status.phase == "Pending":
                return f"pod {pod.metadata.name}: {(*filter(None, waits), 'Pending')[0]}"
        told = [one.get("message") for one in job.get("status", {}).get("conditions", ())]
        return None if found else f"its pods: {(*filter(None, told), 'none is created')[-1]}"

    def end(self, launch: Launch) -> None:
        """Delete the TrainJob once more: the process in charge may have been killed."""
        name, namespace = _named(launch)
        _delete(name, namespace)

    def why(self, launch: Launch, exits: Sequence[Exit]) -> TrialError | None:
        """What the API says where it refuses such a job; it would refuse that of any plan."""
        for one in exits:
            if one["status"] == REFUSED:
                said = one["tail"].strip().splitlines()[-1:] or ["it does not say why"]
                return Infeasible(f"Kubernetes takes no TrainJob: {said[0]}", hopeless=True)
        return None


def manifest(launch: Launch) -> dict[str, Any]:
    """The emitted TrainJob of a launch with a name, an owner, and the variables that report."""
    document: dict[str, Any] = yaml.safe_load(launch.files[0].text)
    meta = document["metadata"]
    meta["name"], meta["namespace"] = _named(launch)
    owner = {n: os.environ[n] for n in (POD_NAME, POD_UID) if n in os.environ}
    if len(owner) == 2:
        of = {"apiVersion": "v1", "kind": "Pod", "name": owner[POD_NAME], "uid": owner[POD_UID]}
        meta["ownerReferences"] = [of]
    told = {n: v.replace(HERE, SCRATCH) for n, v in launch.variables.items()}
    told["PYTHONPATH"] = f"{root_directory()}/{SITE.partition('/')[2]}"
    env = document["spec"]["trainer"]["env"]
    env += [{"name": n, "value": v.replace("$", "$$")} for n, v in told.items()]
    return document


def _named(launch: Launch) -> tuple[str, str]:
    """Name and namespace of the TrainJob; the folder of a launch is of no other one."""
    meta = yaml.safe_load(launch.files[0].text)["metadata"]
    own = f"{launch.folder.parent.name}-{launch.folder.name}".lower().replace("_", "-")
    return f"{meta['name'][:20]}-{own[-28:]}".replace(".", "-"), meta.get("namespace", "default")


def _api() -> tuple[Any, Any]:
    """The two APIs that are asked. Raises CannotError where there is none."""
    try:
        from kubernetes import client, config
    except ImportError:
        hint = "pip install kubernetes, into the image"
        raise CannotError("TrainJobs need the kubernetes package", hint=hint) from None
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config()
        else:
            config.load_kube_config(os.environ.get("KUBECONFIG"))
    except config.ConfigException as error:
        hint = "this is for a pod of a tunejob: cputune emit --format tunejob --nodes N"
        raise CannotError(f"there is no way to Kubernetes: {error}", hint=hint) from None
    return client.CustomObjectsApi(), client.CoreV1Api()


def _reason(error: Exception) -> str:
    """What the API says in its own words."""
    try:
        return str(json.loads(getattr(error, "body", ""))["message"])
    except (ValueError, TypeError, KeyError):
        return str(getattr(error, "reason", None) or error)


def _delete(name: str, namespace: str) -> None:
    from kubernetes.client import ApiException

    try:
        _api()[0].delete_namespaced_custom_object(
            GROUP, VERSION, namespace, PLURAL, name, propagation_policy="Background"
        )
    except (ApiException, OSError) as error:
        if getattr(error, "status", None) != 404:
            sys.stderr.write(f"{name} was not deleted: {_reason(error)}\n")


def main() -> None:
    """Be in charge of the TrainJob that standard input tells, until that ends."""
    with open(0, "rb", 0, closefd=False) as given:  # unbuffered
        document = json.loads(given.readline())
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    jobs, core = _api()
    try:
        jobs.create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, document)
    except Exception as error:
        sys.stderr.write(f"{_reason(error)}\n")
        os._exit(REFUSED)
    status = 0
    try:
        while not select.select([0], [], [], LOOK_SECONDS)[0]:
            job = jobs.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)
            told = {c["type"]: c for c in job.get("status", {}).get("conditions", ())}
            done = {kind for kind, one in told.items() if one["status"] == "True"}
            if "Failed" in done:
                status = 1
                _print_logs(core, name, namespace)
                sys.stderr.write(f"the TrainJob failed: {told['Failed'].get('message', '')}\n")
            if done & {"Failed", "Complete"}:
                break
    finally:
        _delete(name, namespace)
    sys.stderr.flush()
    os._exit(status)


def _print_logs(core: Any, name: str, namespace: str) -> None:
    for pod in core.list_namespaced_pod(namespace, label_selector=f"{OF_JOB}={name}").items:
        log = core.read_namespaced_pod_log(pod.metadata.name, namespace, tail_lines=TAIL_LINES)
        sys.stderr.write(f"{pod.metadata.name}:\n{log}\n")
