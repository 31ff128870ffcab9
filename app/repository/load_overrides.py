"""The parameters of a load request: a configuration, and files that replace the
repository's.

Names and rules are those of the protocol's model repository extension. ``config`` is a
JSON document in a string, and ``file:<version>/<name>`` is a file in base64. Files are
allowed only with a ``config``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.errors import InvalidRequest

FILE_PREFIX = "file:"
MAX_FILES = 1000
MAX_DEPTH = 4  # folders and name of a file
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


@dataclass(frozen=True, slots=True)
class LoadOverrides:
    """Options and files of a load. `files` are contents by relative path."""

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def parse_load_overrides(name: str, parameters: Mapping[str, Any]) -> LoadOverrides:
    """Return the `LoadOverrides` of the parameters.

    Decodes files, so use a thread for large ones.

    Raises `InvalidRequest`.
    """
    config = parameters.get("config")
    if config is not None and not isinstance(config, str):
        kind = type(config).__name__
        msg = f"failed to load '{name}': 'config' must be JSON in a string, got {kind}"
        raise InvalidRequest(msg)
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key.startswith(FILE_PREFIX):
            files[_path(name, key)] = _content(name, key, value)
        elif key != "config":
            msg = (
                f"failed to load '{name}': unexpected parameter {key[:100]!r}; "
                f"known are 'config' and 'file:<version>/<file>'"
            )
            raise InvalidRequest(msg)
    if files and config is None:
        msg = (
            f"failed to load '{name}', failed to poll from model repository: files "
            "can only be given together with 'config' (an empty object is enough)"
        )
        raise InvalidRequest(msg)
    if len(files) > MAX_FILES:
        msg = (
            f"failed to load '{name}': the request has {len(files)} files, at most "
            f"{MAX_FILES} are allowed"
        )
        raise InvalidRequest(msg)
    return LoadOverrides(config, files)


def _path(name: str, key: str) -> str:
    path = key.removeprefix(FILE_PREFIX)
    segments = path.split("/")
    if len(segments) > MAX_DEPTH or not all(map(_SEGMENT.fullmatch, segments)):
        msg = (
            f"failed to load '{name}': {key[:100]!r} must be file:<version>/<name>, "
            f"with letters, digits and _ . + - in its parts"
        )
        raise InvalidRequest(msg)
    return path


def _content(name: str, key: str, value: Any) -> bytes:
    try:
        if not isinstance(value, str):
            raise binascii.Error(f"got {type(value).__name__}")
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as e:
        msg = f"failed to load '{name}': {key!r} must be base64 in a string: {e}"
        raise InvalidRequest(msg) from None
