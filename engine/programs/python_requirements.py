"""Check that the packages of a Python model are installed. Installs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.errors import InvalidModel

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?P<versions>[<>=!,.\s0-9]*)"
)
_VERSION = re.compile(r"(?P<sign>>=|<=|==|!=|<|>)\s*(?P<number>\d+(\.\d+)*)")


def is_requirement(text: str) -> bool:
    """Return whether a requirement is written as ``numpy`` or ``numpy>=2,<3``."""
    return _parsed(text) is not None


def check_installed(requirements: Iterable[str]) -> None:
    """Raise InvalidModel if packages are missing or have other versions. The message
    names all of them.
    """
    problems = []
    for requirement in requirements:
        parsed = _parsed(requirement)
        if parsed is None:
            raise InvalidModel(
                f"requirement {requirement!r} must be a name and versions, as in "
                "numpy or numpy>=2,<3"
            )
        name, wanted = parsed
        # Most models have no requirements and need not wait for this import.
        from importlib import metadata

        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            problems.append(f"{requirement} is required, but {name} is not installed")
            continue
        if not all(_holds(found, sign, number) for sign, number in wanted):
            problems.append(
                f"{requirement} is required, but {name} {found} is installed"
            )
    if problems:
        raise InvalidModel("; ".join(problems))


def _parsed(requirement: str) -> tuple[str, list[tuple[str, str]]] | None:
    match = _REQUIREMENT.fullmatch(requirement.strip())
    texts = match["versions"].split(",") if match and match["versions"].strip() else []
    found = [_VERSION.fullmatch(text.strip()) for text in texts]
    if match is None or not all(found):
        return None
    return match["name"], [(each["sign"], each["number"]) for each in found if each]


def _holds(found: str, sign: str, wanted: str) -> bool:
    """Compare the leading numbers of versions: 2.1.0rc1 counts as 2.1.0."""
    mine, theirs = _numbers(found), _numbers(wanted)
    length = max(len(mine), len(theirs))
    mine += [0] * (length - len(mine))
    theirs += [0] * (length - len(theirs))
    return {
        ">=": mine >= theirs,
        "<=": mine <= theirs,
        "==": mine == theirs,
        "!=": mine != theirs,
        "<": mine < theirs,
        ">": mine > theirs,
    }[sign]


def _numbers(version: str) -> list[int]:
    match = re.match(r"(\d+!)?(\d+(?:\.\d+)*)", version)
    return [int(part) for part in match[2].split(".")] if match else []
