"""The file of keys (``--keys``): its keys, and what each allows.

`popgate key NAME` makes a key and its entry. docs/how-to/secure.md shows a file.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from app.config.config_keys import (
    DISTINCT,
    KeyProblem,
    between,
    checked,
    entries,
    key,
    read_bounded,
    read_document,
    section,
    text,
)
from engine import MAX_WEIGHT

#: The groups that a key may allow. `infer` runs models, and `metadata` reads
#: descriptions. `manage` loads and unloads models and changes settings. `metrics` is
#: ``/metrics``, and `pages` are the pages for people.
Group: TypeAlias = Literal["infer", "metadata", "manage", "metrics", "pages"]
KEY_GROUPS: tuple[Group, ...] = get_args(Group)

MOST_KEYS = 1000
#: Every weight is a separate queue at every model.
MOST_WEIGHTS = 8
_LARGEST_FILE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
#: The output of `sha256sum` for an empty variable, by `printf` and by `echo`.
_OF_NOTHING = frozenset(hashlib.sha256(text).digest() for text in (b"", b"\n"))


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("1 to 100 letters, digits, '.', '_' and '-'")
    return value


def _digest(value: Any) -> bytes:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        msg = "the SHA-256 of a key, 64 hexadecimal digits (`popgate key` writes it)"
        raise ValueError(msg)
    digest = bytes.fromhex(value)
    if digest in _OF_NOTHING:
        msg = (
            "the SHA-256 of a key; this is the SHA-256 of the empty string: the key "
            "was not set"
        )
        raise ValueError(msg)
    return digest


@section
@dataclass(frozen=True, slots=True)
class KeyConfig:
    """One key. A limit that is None does not apply."""

    name: Annotated[str, checked(_name)] = key(
        "", "the name of the key, for logs and messages"
    )
    sha256: Annotated[bytes, checked(_digest, hidden=True)] = key(
        b"", "the SHA-256 of the key"
    )
    groups: Annotated[tuple[Group, ...], DISTINCT] = key(
        ("infer", "metadata"), "the groups of calls that the key allows"
    )
    models: Annotated[
        tuple[Annotated[str, text(200, 1)], ...], entries(1000), DISTINCT
    ] = key(
        ("*",), "the models that the key allows, [] for none; * and ? match any letters"
    )
    requests_per_second: Annotated[float, between(0.001, 1e6)] | None = key(
        None, "requests per second; more fail with 429"
    )
    concurrent: Annotated[int, between(1, 1 << 20)] | None = key(
        None, "inferences in flight at the same time; more fail with 429"
    )
    weight: Annotated[int, between(1, MAX_WEIGHT)] | None = key(
        None, "share of a busy device compared to other keys; the default is 1"
    )
    certificate: Annotated[str, text(1000)] = key(
        "", "subject or other name of a client certificate, as in CN=shop,O=Example"
    )

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("the key name is missing")
        if not (self.sha256 or self.certificate):
            raise ValueError("sha256 or certificate is missing; set one of them")


@section
@dataclass(frozen=True, slots=True)
class KeysConfig:
    """All keys of a server, and the calls that need none."""

    anonymous: Annotated[tuple[Group, ...], DISTINCT] = key(
        (), "the groups of calls allowed without a key"
    )
    key: Annotated[tuple[KeyConfig, ...], entries(MOST_KEYS)] = key(
        (), "the keys", hidden=True
    )

    def __post_init__(self) -> None:
        weights = {item.weight for item in self.key} - {None}
        if len(weights) > MOST_WEIGHTS:
            msg = (
                f"the file has {len(weights)} different weights; at most "
                f"{MOST_WEIGHTS} are allowed"
            )
            raise ValueError(msg)
        for what in ("name", "sha256", "certificate"):
            seen: set[Any] = set()
            for item in self.key:
                value = getattr(item, what)
                if value and value in seen:
                    msg = f"two entries have the same {what}, as {item.name!r} has"
                    raise ValueError(msg)
                seen.add(value)


def read_keys(path: Path) -> KeysConfig:
    """Return the keys of a file. Raises `KeyProblem` for bad content, and OSError."""
    data = read_bounded(path, _LARGEST_FILE)
    if not data.strip():
        # An empty file may just be being rewritten. That must not lock clients out.
        msg = "the file is empty; to configure no keys, write anonymous = []"
        raise KeyProblem(msg)
    return read_document(KeysConfig, data)


def digest_of(secret: bytes) -> bytes:
    """Return the stored digest of a key. Keys are random, so one round of a hash is
    enough.
    """
    return hashlib.sha256(secret).digest()
