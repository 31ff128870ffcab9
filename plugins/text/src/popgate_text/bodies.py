"""Schemas of request bodies, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

OPENAI_TAG, TEI_TAG = "text: openai", "text: tei"
STRINGS: Final = {"type": "array", "items": {"type": "string"}}
IDS: Final = {"type": "array", "items": {"type": "integer"}}
MANY_IDS: Final = {"type": "array", "items": IDS}
TEXTS: Final = {"oneOf": [{"type": "string"}, STRINGS, IDS, MANY_IDS]}


def body_of(fields: dict[str, Any], needed: str) -> dict[str, Any]:
    """Return the body of an operation with these fields; `needed` are required."""
    schema = {"type": "object", "properties": fields, "required": needed.split()}
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    }
