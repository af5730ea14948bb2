"""The contract of the document: what is null has a reason, or is a limit that does not exist."""

from __future__ import annotations

from collections.abc import Iterator

from cputune import probe
from cputune.host import Host
from cputune.report.machine_text import host_document


def nulls(value: object, path: str) -> Iterator[str]:
    """Dotted names of all nulls below a value; members of lists by their id, name or place."""
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from nulls(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            name = place
            if isinstance(inner, dict):
                name = inner.get("id", inner.get("name", place))
            yield from nulls(inner, f"{path}.{name}")


def without_reason(host: Host) -> list[str]:
    document = host_document(probe(host))
    reasons = {unknown["fact"] for unknown in document["unknown"]}
    reasons |= {f"limits.{name}" for name in document["limits"]["unlimited"]}
    return [name for name in nulls(document, "") if name not in reasons]
