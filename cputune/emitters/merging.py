"""``emit --patch FILE``: the user's fields in a job, before it is judged.

A mapping is merged key by key, and null removes an existing key. A list whose items have names is
merged by them, as ``kubectl patch`` does it with containers, variables and volumes; any other is
replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cputune.emitters.checked_words import Manifest, YamlScalar
from cputune.errors import UsageError

REPLICAS = ".spec.pytorchReplicaSpecs"
"""The Master of a PyTorchJob and, on several nodes, its Worker."""


def merged(document: Manifest, patch: Mapping[str, Any] | None) -> Manifest:
    """The document with these fields; unchanged if the patch is of another kind.

    Raises UsageError if the document does not have the field or replica; kustomize fails, too.
    """
    if patch is None or patch.get("kind", document["kind"]) != document["kind"]:
        return document
    result = _merged(document, dict(patch), "")
    assert isinstance(result, dict)
    return result


def _merged(ours: Any, theirs: Any, where: str) -> Any:
    if isinstance(theirs, dict):
        fields = dict(ours) if isinstance(ours, dict) else {}
        for key, value in theirs.items():
            there = f"{where}.{key}"
            if key not in fields and (value is None or where == REPLICAS):
                names = ", ".join(map(str, fields)) or "nothing"
                raise UsageError(
                    f"the job has no {there.lstrip('.')}, which the patch changes",
                    hint=f"{where.lstrip('.') or 'the job'} has: {names}",
                )
            if value is None:
                del fields[key]
            else:
                fields[key] = _merged(fields.get(key), value, there)
        return fields
    if isinstance(theirs, list):
        named = all(isinstance(item, dict) and "name" in item for item in theirs)
        if named and isinstance(ours, list):
            return _by_name(ours, theirs, where)
        return [_merged(None, item, where) for item in theirs]
    return YamlScalar(theirs) if isinstance(theirs, str) else theirs


def _by_name(ours: list[Any], theirs: list[Any], where: str) -> list[Any]:
    items = {str(item["name"]): item for item in ours if isinstance(item, dict) and "name" in item}
    for item in theirs:
        name = str(item["name"])
        items[name] = _merged(items.get(name), item, f"{where}[{name}]")
    return list(items.values())
