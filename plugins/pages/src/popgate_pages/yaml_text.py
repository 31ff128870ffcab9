"""JSON documents as YAML."""

from __future__ import annotations

import re
from typing import Any

import orjson

_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_PLAIN_KEY = re.compile(r"[$A-Za-z_][A-Za-z0-9_./-]*")
_YAML_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def to_yaml(value: Any, indent: int = 0) -> str:
    """Return a JSON document as YAML in block style; scalars stay JSON, which is valid
    YAML.
    """
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return "".join(
            f"{pad}{_yaml_key(key)}:{_yaml_value(item, indent)}"
            for key, item in value.items()
        )
    if isinstance(value, list) and value:
        return "".join(_yaml_item(item, indent) for item in value)
    return f"{pad}{_scalar(value)}\n"


def _yaml_value(item: Any, indent: int) -> str:
    if isinstance(item, dict | list) and item:
        return "\n" + to_yaml(item, indent + 1)
    return f" {_scalar(item)}\n"


def _yaml_item(item: Any, indent: int) -> str:
    pad = "  " * indent
    if isinstance(item, dict | list) and item:
        inner = to_yaml(item, indent + 1)
        return f"{pad}- {inner[len(pad) + 2 :]}"
    return f"{pad}- {_scalar(item)}\n"


def _yaml_key(key: str) -> str:
    # Quoted unless it is a plain word that YAML reads as a string.
    if _PLAIN_KEY.fullmatch(key) and key.lower() not in _YAML_WORDS:
        return key
    return _scalar(key)


def _scalar(value: Any) -> str:
    """Return a value as JSON, without the characters that YAML takes for line breaks or
    not at all.
    """
    return _NOT_IN_YAML.sub(
        lambda match: f"\\u{ord(match[0]):04x}", orjson.dumps(value).decode()
    )
