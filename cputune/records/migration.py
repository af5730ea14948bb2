"""Migrates result documents of older schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def from_second(values: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 named the centre of a throughput ``median``, and stored the throughput of a
    compared plan with each of its runs, of which the last one counts.
    """
    migrated: dict[str, Any] = with_centres(values)
    migrated.pop("to_compare", None)
    runs = migrated.get("confirmation")
    if not isinstance(runs, list) or migrated.get("speedup") is None:
        return migrated
    compared: dict[str, Any] = {}
    for run in runs:
        if isinstance(run, Mapping) and run.get("samples_per_second") is not None:
            measured = {name: run.get(name) for name in ("plan", "samples_per_second")}
            compared[str(run.get("plan"))] = measured
    return {**migrated, "compared": list(compared.values())}


def with_centres(document: Any) -> Any:
    """Rename the key ``median`` of each throughput in the document to ``centre``."""
    if isinstance(document, list):
        return [with_centres(value) for value in document]
    if not isinstance(document, dict):
        return document
    if document.keys() == {"median", "low", "high"}:
        return {"centre": document["median"], "low": document["low"], "high": document["high"]}
    return {name: with_centres(value) for name, value in document.items()}
