"""Reading Triton's model configuration, as text (``config.pbtxt``) and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.config.config_formats import MAX_CONFIG_BYTES
from app.config.config_keys import ModelConfigError
from app.config.model_files import read_text, shown

MAX_JSON_DEPTH = 32
MAX_MESSAGE = 1000  # characters of protobuf's message, which quotes lines
# Python's exceptions for strings and numbers that protobuf's grammar allows.
_NOT_PARSED = (ValueError, ArithmeticError, RecursionError, MemoryError)

_UNKNOWN = re.compile(r'Message type "triton\.(\w+)" has no field named "([^"]*)"')


def read_pbtxt(path: Path) -> Any:
    """Return the message of a ``config.pbtxt``. Raises `ModelConfigError`."""
    from google.protobuf import text_format

    from popgate_triton.schema import config_class

    try:
        text = read_text(path, MAX_CONFIG_BYTES)
    except ValueError as e:
        raise ModelConfigError(f"{path.name} {e}") from None
    try:
        message = text_format.Parse(text, config_class()())
        _check_enumerators(message)
    except (text_format.ParseError, *_NOT_PARSED) as e:
        raise ModelConfigError(f"{path.name}: {_explain(str(e))}") from None
    return message


def parse_document(document: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the message of a configuration in JSON, and the keys that Triton does not
    know.

    Raises `ModelConfigError`.
    """
    from google.protobuf import json_format

    from popgate_triton.schema import config_class

    message = config_class()()
    theirs = {field.name for field in message.DESCRIPTOR.fields}
    theirs |= {field.json_name for field in message.DESCRIPTOR.fields}
    ours = {k: v for k, v in document.items() if k not in theirs}
    mine = {k: v for k, v in document.items() if k in theirs}
    try:
        json_format.ParseDict(mine, message, max_recursion_depth=MAX_JSON_DEPTH)
        _check_enumerators(message)
    except (json_format.ParseError, *_NOT_PARSED) as e:
        raise ModelConfigError(f"the config: {_explain(str(e))}") from None
    return message, ours


def document_of(message: Any) -> dict[str, Any]:
    """Return a message in Triton's JSON form: the fields that are set, with numbers as
    numbers.
    """
    return {field.name: _value_of(field, v) for field, v in message.ListFields()}


def _value_of(field: Any, value: Any) -> Any:
    def one(item: Any) -> Any:
        if field.enum_type is not None:
            return field.enum_type.values_by_number[item].name
        return document_of(item) if hasattr(item, "ListFields") else item

    if isinstance(value, Mapping):
        return {
            str(key): document_of(item) if hasattr(item, "ListFields") else item
            for key, item in value.items()
        }
    if isinstance(value, str) or hasattr(value, "ListFields"):
        return one(value)
    return [one(item) for item in value] if isinstance(value, Sequence) else one(value)


def _check_enumerators(message: Any) -> None:
    """Raise ValueError for a number without a meaning, which protobuf would keep."""
    for field, value in message.ListFields():
        if field.enum_type is not None:
            for number in value if isinstance(value, Sequence) else (value,):
                if number not in field.enum_type.values_by_number:
                    kind = field.enum_type.name
                    raise ValueError(
                        f"{field.name} is {number}, which does not fit {kind}"
                    )
        elif isinstance(value, Mapping):
            for item in value.values():
                if hasattr(item, "ListFields"):
                    _check_enumerators(item)
        elif field.message_type is not None:
            for item in (value,) if hasattr(value, "ListFields") else value:
                _check_enumerators(item)


def _explain(text: str) -> str:
    """Return protobuf's message, shortened and without our internal names."""
    match = _UNKNOWN.search(text)
    if match is None:
        text = text.replace('"triton.', '"')
        return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."
    place = text[: match.start()].strip(" :")
    where = f" (line {place.replace(':', ', column ')})" if place[:1].isdigit() else ""
    return f"unknown field {shown(match[2])} in {match[1]}{where}"
