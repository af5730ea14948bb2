"""What a reviewer of a Kubernetes job asks for: who it runs as, whose it is, where its secrets lie.

The contexts are those of the ``restricted`` Pod Security Standard
(https://kubernetes.io/docs/concepts/security/pod-security-standards/).
"""

from __future__ import annotations

import re
from typing import Any

from cputune.emitters.interface import Job, SecretKey
from cputune.emitters.job import job_name
from cputune.emitters.yamltext import Quoted
from cputune.errors import UsageError

USER = 1000
"""Of the image, too: torch asks for the name of its user, so the image has to know the number."""

TTL_SECONDS = 7 * 24 * 3600
HUB_TOKEN = "HF_TOKEN"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SECRET_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def user_id(job: Job) -> int:
    """The number of the user that trains. Raises UsageError for root."""
    given = job.cluster.user_id
    if given is not None and not 0 < given < 1 << 31:
        raise UsageError(
            f"no pod runs as the user {given}", hint="--user-id 1000, or another but 0"
        )
    return given or USER


def of_pod(job: Job) -> dict[str, Any]:
    """Not root; the volume belongs to the group of the user."""
    user = user_id(job)
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def of_container() -> dict[str, Any]:
    """Nothing that a training needs."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def labels(job: Job) -> dict[str, str]:
    """Whose a thing is: the recommended labels, then those that were given."""
    found = {
        "app.kubernetes.io/name": Quoted(job_name(job)),
        "app.kubernetes.io/component": Quoted("training"),
        "app.kubernetes.io/managed-by": Quoted("cputune"),
    }
    return found | pairs(job.cluster.labels, "a label", "--label team=nlp")


def pairs(given: tuple[tuple[str, str], ...], what: str, example: str) -> dict[str, str]:
    """Labels of any kind. Raises UsageError for what Kubernetes would refuse."""
    found: dict[str, str] = {}
    for key, value in given:
        matching(_LABEL_KEY, key, what, example)
        if value:
            matching(_LABEL, value, f"the value of {what}", example)
        found[key] = Quoted(value)
    return found


def scheduling(job: Job) -> dict[str, Any]:
    """Tolerations, pull secrets and node labels of a pod: only those that were given."""
    cluster = job.cluster
    found: dict[str, Any] = {}
    if cluster.pull_secrets:
        found["imagePullSecrets"] = [
            {"name": Quoted(matching(_DNS_NAME, name, "a Secret", "--image-pull-secret regcred"))}
            for name in cluster.pull_secrets
        ]
    if cluster.tolerations:
        found["tolerations"] = _tolerations(job)
    selector = pairs(cluster.node_selector, "a node label", "--node-selector name=value")
    if selector:
        found["nodeSelector"] = selector
    return found


def _tolerations(job: Job) -> list[dict[str, Any]]:
    example = "--toleration dedicated=training:NoSchedule"
    found = []
    for one in job.cluster.tolerations:
        key = Quoted(matching(_LABEL_KEY, one.key, "the key of a taint", example))
        entry: dict[str, Any] = {"key": key, "operator": "Exists"}
        if one.value is not None:
            value = matching(_LABEL, one.value, "the value of a taint", example)
            entry |= {"operator": "Equal", "value": Quoted(value)}
        if one.effect is not None:
            if one.effect not in EFFECTS:
                raise UsageError(
                    f"{one.effect!r} is no effect of a taint", hint=f"as in: {example}"
                )
            entry["effect"] = one.effect
        found.append(entry)
    return found


def secret(job: Job) -> str:
    """The Secret that holds what was left out of the training command, and the hub's token."""
    return f"{job_name(job)}-secrets"


def secret_variables(job: Job) -> list[dict[str, Any]]:
    """Variables from Secrets: those of the command, those that were named, the hub's token.

    The pod starts without the token where the Secret has none: public models need it not.
    """
    named = {one.variable: one for one in job.cluster.secret_variables}
    for name in job.workload.secrets:
        named.setdefault(name, SecretKey(variable=name, secret=secret(job), key=name))
    token = SecretKey(variable=HUB_TOKEN, secret=secret(job), key=HUB_TOKEN)
    found = [_from_secret(one) for one in named.values()]
    return found if HUB_TOKEN in named else [*found, _from_secret(token, optional=True)]


def _from_secret(one: SecretKey, *, optional: bool = False) -> dict[str, Any]:
    example = "--secret-env HF_TOKEN=my-secret/token"
    reference: dict[str, Any] = {
        "name": Quoted(matching(_DNS_NAME, one.secret, "a Secret", example)),
        "key": Quoted(matching(_SECRET_KEY, one.key, "a key of a Secret", example)),
    }
    if optional:
        reference["optional"] = True
    name = matching(_VARIABLE, one.variable, "a variable", example)
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def ttl_seconds(job: Job) -> int:
    """After how long a job that is done is deleted. Raises UsageError."""
    given = job.cluster.ttl_seconds
    if given is not None and not 0 <= given < 1 << 31:
        raise UsageError(f"a job cannot stay {given} seconds", hint="--ttl 86400, for a day")
    return TTL_SECONDS if given is None else given


def matching(pattern: re.Pattern[str], text: str, what: str, example: str) -> str:
    """The text where it is one. Raises UsageError."""
    if not pattern.fullmatch(text):
        raise UsageError(f"{text!r} is not {what}", hint=f"as in: {example}")
    return text
