"""The JSON Schema of a scenario file, for editors."""

from __future__ import annotations

from functools import cache
from typing import Any

from dmabuf_mp.scenario.shape import models

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_INDEX = r"\.(0|[1-9][0-9]*)"


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema of one document of a scenario file."""
    made = _bare(models()["document"].model_json_schema())
    definitions: dict[str, Any] = made["$defs"]
    fields: dict[str, Any] = made["properties"]
    for role in ("Producer", "Relay", "Consumer"):
        none = {"properties": {"params": {"maxProperties": 0}}}
        definitions[role]["dependentSchemas"] = {"params": {"anyOf": [{"required": ["role"]}, none]}}
    fields["matrix"] = {
        "description": "Expands this document: fields, by dotted names, and the values they take in turn.",
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "patternProperties": {
            pattern: {"type": "array", "items": values, "minItems": 1}
            for pattern, values in _matrix_fields(definitions, fields).items()
        },
    }
    return {
        "$schema": _DIALECT,
        "title": "dmabuf-mp scenario",
        **made,
        "allOf": [
            _given("size"),
            _given("producer"),
            {"oneOf": [_given("consumer"), _given("consumers")]},
        ],
    }


def _matrix_fields(definitions: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return each field that a matrix can set, as a pattern of dotted names, with its schema."""
    found = {f"^{name}$": value for name, value in fields.items()}
    for where, model in (
        ("producer", "Producer"),
        ("consumer", "Consumer"),
        (f"consumers{_INDEX}", "Consumer"),
        (f"relays{_INDEX}", "Relay"),
        ("pattern", "Pattern"),
    ):
        properties = definitions[model]["properties"]
        found |= {rf"^{where}\.{name}$": value for name, value in properties.items()}
        if "params" in properties:
            found[rf"^{where}\.params\..+$"] = {}
    for name in ("consumers", "relays"):
        found[f"^{name}{_INDEX}$"] = fields[name]["items"]
    return found


def _given(name: str) -> dict[str, Any]:
    """Return a schema that holds where a document has a key, or a matrix that sets it or something in it."""
    in_matrix = {"type": "object", "not": {"propertyNames": {"not": {"pattern": rf"^{name}(\.|$)"}}}}
    return {"anyOf": [{"required": [name]}, {"required": ["matrix"], "properties": {"matrix": in_matrix}}]}


def _bare(value: Any) -> Any:
    """Leave out what pydantic adds that says nothing: a title for every key, a default of null."""
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    noise = {"title"} if isinstance(value.get("title"), str) else set()
    if value.get("default", ...) is None:
        noise.add("default")
    return {key: _bare(item) for key, item in value.items() if key not in noise}
