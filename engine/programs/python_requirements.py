"""Requirements of Python models on packages, as their authors write them."""

from __future__ import annotations

import re

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?P<versions>[<>=!,.\s0-9]*)"
)
_VERSION = re.compile(r"(?P<sign>>=|<=|==|!=|<|>)\s*(?P<number>\d+(\.\d+)*)")


def is_requirement(text: str) -> bool:
    """Return whether a requirement is written as ``numpy`` or ``numpy>=2,<3``."""
    return parse_requirement(text) is not None


def parse_requirement(requirement: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Return the package, and the signs and numbers of its versions; None if the
    requirement is written in another form.
    """
    match = _REQUIREMENT.fullmatch(requirement.strip())
    texts = match["versions"].split(",") if match and match["versions"].strip() else []
    found = [_VERSION.fullmatch(text.strip()) for text in texts]
    if match is None or not all(found):
        return None
    return match["name"], [(each["sign"], each["number"]) for each in found if each]
