"""Checks an object against a schema as `kubectl apply --validate=strict` has the API server do: an unknown field, a
wrong type, a word that is not one of those allowed and a missing required field are faults.

A schema is `type`, `enum`, `required`, `properties`, `items`, `values` (of a map) and `ref`; without any, all goes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def published() -> dict[str, Schema]:
    """The schemas in this folder, by name; those of kinds under the kind's name."""
    folder = Path(__file__).parent
    return {
        name: schema
        for file in ("schemas.json", "environment.json")
        for name, schema in json.loads((folder / file).read_text()).items()
        if isinstance(schema, dict)
    }


def faults(value: Any, schema: Schema, definitions: dict[str, Schema], path: str = "") -> Iterator[str]:
    while "ref" in schema:
        schema = definitions[schema["ref"]]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{path}: {value!r} is no {' or '.join(kinds)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, dict):
        yield from (f"{path}.{name}: missing" for name in schema.get("required", []) if name not in value)
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name, schema.get("values"))
            if known is None and ("properties" in schema or "values" in schema):
                yield f"{path}.{name}: unknown field"
            elif known is not None:
                yield from faults(inner, known, definitions, f"{path}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, inner in enumerate(value):
            yield from faults(inner, schema["items"], definitions, f"{path}[{number}]")


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
