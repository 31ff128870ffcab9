"""Reading Triton's model configuration, as text (``config.pbtxt``) and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PBTXT_NAME = "config.pbtxt"
MAX_CONFIG_BYTES = 1 << 20  # a page of options; bounds what a stray file can cost
MAX_JSON_DEPTH = 32

_UNKNOWN = re.compile(r'Message type "triton\.(\w+)" has no field named "([^"]*)"')


class TritonConfigError(Exception):
    """A configuration that cannot be used; the message names file and field."""


def read_pbtxt(path: Path) -> Any:
    """The message of a ``config.pbtxt``. Raises `TritonConfigError`."""
    from google.protobuf import text_format

    from app.triton.schema import config_class

    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            msg = f"{path.name} is larger than {MAX_CONFIG_BYTES} bytes"
            raise TritonConfigError(msg)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise TritonConfigError(f"{path.name} cannot be read: {e}") from e
    try:
        return text_format.Parse(text, config_class()())
    except (text_format.ParseError, RecursionError) as e:
        raise TritonConfigError(f"{path.name}: {_explain(str(e))}") from None


def read_json_config(text: str) -> tuple[Any, Mapping[str, Any]]:
    """The message of a configuration in JSON, and the keys that are not Triton's.

    Raises `TritonConfigError`.
    """
    from google.protobuf import json_format

    from app.triton.schema import config_class

    if len(text) > MAX_CONFIG_BYTES:
        msg = f"the config is larger than {MAX_CONFIG_BYTES} characters"
        raise TritonConfigError(msg)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise TritonConfigError(f"the config is not JSON: {e}") from None
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise TritonConfigError(f"the config must be a JSON object, got {kind}")
    message = config_class()()
    theirs = {field.name for field in message.DESCRIPTOR.fields}
    theirs |= {field.json_name for field in message.DESCRIPTOR.fields}
    ours = {k: v for k, v in document.items() if k not in theirs}
    mine = {k: v for k, v in document.items() if k in theirs}
    try:
        json_format.ParseDict(mine, message, max_recursion_depth=MAX_JSON_DEPTH)
    except (json_format.ParseError, RecursionError) as e:
        raise TritonConfigError(f"the config: {_explain(str(e))}") from None
    return message, ours


def _explain(text: str) -> str:
    """protobuf's message without the names that only we know."""
    match = _UNKNOWN.search(text)
    if match is None:
        return text.replace('"triton.', '"')
    place = text[: match.start()].strip(" :")
    where = f" (line {place.replace(':', ', column ')})" if place[:1].isdigit() else ""
    return f"unknown field {match[2]!r} in {match[1]}{where}"
