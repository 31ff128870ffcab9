"""Options of the form ``NAME=VALUE``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.cli.errors import EXIT_USAGE, CommandError


def parse_pairs(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return the mapping that repeated options give. Raises `CommandError`."""
    pairs: dict[str, str] = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not (key and equals):
            msg = f"{option} {item}: expected NAME=VALUE"
            raise CommandError(msg, EXIT_USAGE)
        if key in pairs:
            raise CommandError(f"{option} {key} is given twice", EXIT_USAGE)
        pairs[key] = value
    return pairs


def parse_shapes(items: Sequence[str] | None) -> dict[str, tuple[int | str, ...]]:
    """Parse pairs like ``image=-1,1,28,28``. An empty value is a scalar's shape."""
    return {
        name: tuple(map(_dimension, filter(None, value.split(","))))
        for name, value in parse_pairs(items, "--shape").items()
    }


def _dimension(text: str) -> int | str:
    text = text.strip()
    if re.fullmatch("-1|[0-9]{1,18}", text):
        return int(text)
    try:
        float(text)
    except ValueError:
        return text
    msg = f"--shape: {text} is not a size; expected a whole number, -1 or a name"
    raise CommandError(msg, EXIT_USAGE)
