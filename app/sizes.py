"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import math
import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(value: object) -> int:
    """Return bytes of ``67108864``, ``64MiB``, ``64MB`` or ``1.5g`` (with i: powers of
    1024).

    A letter without ``i`` or ``b`` (``64m``) counts as a power of 1024, as in most
    tools. Raises ValueError on anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value))
    if match is None:
        msg = (
            f"{value!r} is not a size; write a number of bytes, or a number with KiB, "
            "MiB or GiB"
        )
        raise ValueError(msg)
    number, unit, binary = match.groups()
    decimal = bool(unit) and not binary and str(value).strip().lower().endswith("b")
    size = float(number) * (1000 if decimal else 1024) ** _POWER[unit.lower()]
    if not math.isfinite(size):
        raise ValueError("a size may not have hundreds of digits")
    return int(size)


def decimal(text: bytes) -> float:
    """Return the number that ASCII digits write; NaN for anything else, also 1_0."""
    try:
        return math.nan if b"_" in text else float(text)
    except ValueError:
        return math.nan


def parse_ratio(text: str) -> float | None:
    """Return the share of answered requests that are logged: ``errors`` is 0, ``all``
    is 1.

    ``off`` is None: then failed requests are not logged either. Raises `ValueError`.
    """
    words = {"off": None, "errors": 0.0, "all": 1.0}
    word = text.strip().lower()
    if word in words:
        return words[word]
    ratio = decimal(word.encode())
    if not 0 <= ratio <= 1:
        msg = f"{text!r} must be off, errors, all or a share between 0 and 1"
        raise ValueError(msg)
    return ratio


def size_text(size: int) -> str:
    """Return bytes for a person: ``1.5 GiB``."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}" if value < 1000 else f"{value:.0f} {units[0]}"


def counted(number: int, noun: str) -> str:
    """Return ``1 row``, ``2 rows``."""
    return f"{number} {noun}" + "s" * (number != 1)
