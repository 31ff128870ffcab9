"""Priority levels of a model's requests, as its ``config.toml`` sets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from app.config.config_keys import between, key, section
from engine import MAX_PRIORITY_LEVELS, ModelRunnerConfig

Timeouts: TypeAlias = Mapping[int, float | None]


@section
@dataclass(frozen=True, slots=True)
class PriorityLevel:
    """Options of one priority level; None uses the model's option."""

    level: Annotated[int, between(1, MAX_PRIORITY_LEVELS)] = key(
        0, "the level, 1 is the highest"
    )
    max_queue_size: Annotated[int, between(1, 65536)] | None = key(
        None, "most requests of this level that one instance holds"
    )
    timeout: Annotated[float, between(0.001, 86400)] | None = key(
        None, "longest time that requests of this level may take"
    )

    def __post_init__(self) -> None:
        if not self.level:
            raise ValueError("the key level is missing: name the level")


def check_levels(
    levels: Iterable[PriorityLevel], count: int, longest: float | None
) -> None:
    """Raise ValueError if the options name levels beyond `count`, or timeouts beyond
    `longest`.
    """
    seen: set[int] = set()
    for item in levels:
        if item.level > count:
            msg = f"priority names level {item.level}, but priority_levels is {count}"
            raise ValueError(msg)
        if item.level in seen:
            raise ValueError(f"priority names level {item.level} twice")
        seen.add(item.level)
        if item.timeout and longest and item.timeout > longest:
            msg = f"timeout of level {item.level} is {item.timeout:g} s, which exceeds"
            raise ValueError(f"{msg} max_timeout ({longest:g} s)")


def queue_sizes(levels: Iterable[PriorityLevel]) -> Mapping[int, int]:
    """Return the bounds that single levels have, by level."""
    return {
        item.level: item.max_queue_size
        for item in levels
        if item.max_queue_size is not None
    }


def timeouts(config: ModelRunnerConfig, levels: Iterable[PriorityLevel]) -> Timeouts:
    """Return the timeout of each level of a model.

    Level 0 stands for the default level, and None for the model's own timeout. The
    result is empty if no level has a timeout.
    """
    own = {item.level: item.timeout for item in levels if item.timeout is not None}
    if not own:
        return {}
    found = {n: own.get(n) for n in range(1, config.priority_levels + 1)}
    return {0: own.get(config.default_level), **found}
