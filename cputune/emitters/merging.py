"""``emit --patch FILE``: fields of the user's own in a job, before it is judged.

A mapping is merged key by key, and null takes a key out. A list whose items have names is merged by
them, as ``kubectl patch`` does it with containers, variables and volumes; any other is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cputune.emitters.words import Manifest, YamlScalar
from cputune.errors import UsageError


def merged(document: Manifest, patch: Mapping[str, Any] | None) -> Manifest:
    """The document with these fields. Raises UsageError where the patch is of another kind."""
    if patch is None:
        return document
    kind = patch.get("kind", document["kind"])
    if kind != document["kind"]:
        raise UsageError(
            f"the patch is of a {kind}, and this is a {document['kind']}",
            hint="leave kind and apiVersion out, or write a patch for each",
        )
    found = _merged(document, dict(patch))
    assert isinstance(found, dict)
    return found


def _merged(ours: Any, theirs: Any) -> Any:
    if isinstance(theirs, dict):
        found = dict(ours) if isinstance(ours, dict) else {}
        for key, value in theirs.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = _merged(found.get(key), value)
        return found
    if isinstance(theirs, list):
        named = all(isinstance(one, dict) and "name" in one for one in theirs)
        return _by_name(ours, theirs) if named and isinstance(ours, list) else _scalars(theirs)
    return YamlScalar(theirs) if isinstance(theirs, str) else theirs


def _by_name(ours: list[Any], theirs: list[Any]) -> list[Any]:
    found = {str(one["name"]): one for one in ours if isinstance(one, dict) and "name" in one}
    for one in theirs:
        name = str(one["name"])
        found[name] = _merged(found.get(name), one)
    return list(found.values())


def _scalars(items: list[Any]) -> list[Any]:
    return [_merged(None, item) for item in items]
