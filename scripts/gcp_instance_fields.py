"""Writes the fields of Compute Engine's instances, from the discovery document that
google-api-python-client brings, to the file that preflight checks `node_config` with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "src/shoal/providers/gcp/preflight/instance_fields.json"
_OUTPUT_ONLY = ("Output only", "Output Only")


def instance_fields() -> dict[str, dict[str, Any]]:
    """The fields of an instance and of all objects in it, by the name of the object. A type is a
    name; one in a list is a list's element type; one in a mapping with `*` is that of its values.
    Google ignores fields that only it sets: their type is `any`."""
    import googleapiclient

    package = Path(googleapiclient.__file__).parent
    document = package / "discovery_cache" / "documents" / "compute.v1.json"
    schemas = json.loads(document.read_text())["schemas"]
    fields: dict[str, dict[str, Any]] = {}
    open_names = ["Instance"]
    while open_names:
        name = open_names.pop()
        if name in fields:
            continue
        fields[name] = {
            key: _type(schema, open_names)
            for key, schema in sorted(schemas[name].get("properties", {}).items())
        }
    return dict(sorted(fields.items()))


def _type(schema: dict[str, Any], open_names: list[str]) -> Any:
    if any(mark in schema.get("description", "") for mark in _OUTPUT_ONLY):
        return "any"
    if reference := schema.get("$ref"):
        open_names.append(reference)
        return reference
    if schema["type"] == "array":
        return [_type(schema["items"], open_names)]
    if values := schema.get("additionalProperties"):
        return {"*": _type(values, open_names)}
    return "number" if schema.get("format") in ("int32", "int64") else schema["type"]


if __name__ == "__main__":
    FILE.write_text(json.dumps(instance_fields(), indent=1) + "\n")
