"""Choice of the versions that are served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """The `latest` n versions, the `specific` ones, or (if neither is set) all of them.

    The words are Triton's (``version_policy``).
    """

    latest: int = 0
    specific: tuple[int, ...] = ()

    def select(self, versions: Iterable[int]) -> list[int]:
        """Return the versions to serve, ascending."""
        there = sorted(versions)
        if self.specific:
            return [v for v in there if v in self.specific]
        return there[-self.latest :] if self.latest else there

    def __str__(self) -> str:
        if self.specific:
            return ", ".join(map(str, self.specific))
        if self.latest:
            return "latest" if self.latest == 1 else f"latest {self.latest}"
        return "all"


ALL_VERSIONS = VersionPolicy()


def check_versions(value: Any) -> VersionPolicy:
    """Check ``"all"``, ``"latest"``, ``{latest = n}`` or a list. Raises ValueError."""
    if value == "all":
        return ALL_VERSIONS
    if value == "latest":
        return VersionPolicy(latest=1)
    if isinstance(value, dict) and set(value) == {"latest"}:
        latest = value["latest"]
        if type(latest) is int and 1 <= latest <= 1_000_000:
            return VersionPolicy(latest=latest)
    if isinstance(value, list) and 0 < len(value) <= 1000:
        numbers = [n for n in value if type(n) is int and n > 0]
        if len(set(numbers)) == len(value):
            return VersionPolicy(specific=tuple(numbers))
    wanted = '"all", "latest", {latest = N} or a list of version numbers'
    raise ValueError(wanted)
