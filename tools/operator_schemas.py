"""Write ``cputune/verifier/operators.json``: what the API server accepts of a job, in 30 kB.

    python tools/operator_schemas.py pytorchjobs.yaml mpijobs.yaml mpijobs_v1.yaml trainjobs.yaml \\
        swagger.json

All but the last are custom resource definitions, as their operators publish them (kubeflow/trainer
v1.9.3, manifests/base/crds/kubeflow.org_pytorchjobs.yaml and kubeflow.org_mpijobs.yaml, the older
version of an MPIJob; kubeflow/mpi-operator v0.6.0,
manifests/base/kubeflow.org_mpijobs.yaml; kubeflow/trainer v2.3.0,
manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml). The last is the OpenAPI document of
Trainer v2.3.0 (api/openapi-spec/swagger.json), which holds batch/v1 JobSpec and its pods.

Only keys, types, enumerations and limits are kept. Equal parts (a pod template stands in each
definition several times) are stored once and referred to by their number.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

KEPT = frozenset(
    [
        "type",
        "enum",
        "minimum",
        "maximum",
        "required",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
    ]
)
FREE = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")
TARGET = Path(__file__).parent.parent / "cputune" / "verifier" / "operators.json"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


class Table:
    """Definitions, each once."""

    def __init__(self, components: dict[str, Any] | None = None) -> None:
        self.numbers: dict[str, int] = {}
        self.components = components or {}

    def add(self, schema: dict[str, Any], within: tuple[str, ...] = ()) -> int:
        """The number of a definition. One that refers to itself is free there."""
        schema, within = self._followed(schema, within)
        kept = {key: value for key, value in schema.items() if key in KEPT}
        if schema.get("x-kubernetes-int-or-string"):
            kept = {"type": "quantity"} if "pattern" in schema else {"type": "int-or-string"}
        if schema.get("format") == "int-or-string":
            kept = {"type": "int-or-string"}
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return self._number({"type": "object"})
        if "properties" in schema:
            kept["properties"] = {
                name: self.add(part, within) for name, part in schema["properties"].items()
            }
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                kept[key] = self.add(schema[key], within)
        return self._number(kept)

    def _followed(
        self, schema: dict[str, Any], within: tuple[str, ...]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The definition that a reference leads to, and the names on the way."""
        while "$ref" in schema or len(schema.get("allOf", ())) == 1:
            if "allOf" in schema:
                schema = schema["allOf"][0]
                continue
            name = schema["$ref"].rpartition("/")[2]
            if name in within:
                return {}, within
            if name == QUANTITY:
                return {"type": "quantity"}, within
            within = (*within, name)
            schema = self.components[name]
        return schema, within

    def _number(self, kept: dict[str, Any]) -> int:
        return self.numbers.setdefault(json.dumps(kept, sort_keys=True), len(self.numbers))


def main(*files: str) -> None:
    """Read the definitions and write the table."""
    *definitions, openapi = files
    table = Table(json.loads(Path(openapi).read_text())["components"]["schemas"])
    kinds: dict[str, dict[str, int]] = {}
    for file in definitions:
        for found in yaml.safe_load_all(Path(file).read_text()):
            if not found:
                continue
            spec = found["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                kind = kinds.setdefault(spec["names"]["kind"], {})
                kind[f"{spec['group']}/{version['name']}"] = table.add(schema)
    of_job = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"$ref": "io.k8s.api.batch.v1.JobSpec"},
            "status": {"type": "object"},
        },
    }
    kinds["Job"] = {"batch/v1": table.add(of_job)}
    document = {"kinds": kinds, "definitions": [json.loads(text) for text in table.numbers]}
    TARGET.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{TARGET}: {TARGET.stat().st_size} bytes, {len(table.numbers)} definitions")


if __name__ == "__main__":
    main(*sys.argv[1:])
