"""Check that the packages of a Python model are installed. Installs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.errors import InvalidModel
from engine.programs.python_requirements import parse_requirement


def check_installed(requirements: Iterable[str]) -> None:
    """Raise InvalidModel if packages are missing or have other versions. The message
    names all of them.
    """
    problems = []
    for requirement in requirements:
        parsed = parse_requirement(requirement)
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
