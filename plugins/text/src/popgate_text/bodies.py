"""Schemas of request bodies and errors, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.api.delegation import ERROR_RESPONSES

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


def error_responses(
    schema: Mapping[str, Any], texts: dict[int | str, str]
) -> dict[int | str, dict[str, Any]]:
    """Return the errors of an operation, all with this schema.

    texts: descriptions by status, beside those of every operation.
    """
    content = {"application/json": {"schema": schema}}
    described: dict[int | str, str] = {
        status: known["description"] for status, known in ERROR_RESPONSES.items()
    }
    described.update(texts)
    return {
        status: {"description": text, "content": content}
        for status, text in described.items()
    }
