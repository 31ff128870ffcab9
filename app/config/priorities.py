"""Priority levels of a model's requests, as its ``config.toml`` gives them."""

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
    """Options of one priority level; None: as for the others."""

    level: Annotated[int, between(1, MAX_PRIORITY_LEVELS)] = key(
        0, "which one, 1 is the highest"
    )
    max_queue_size: Annotated[int, between(1, 65536)] | None = key(
        None, "its requests that may be in one instance"
    )
    timeout: Annotated[float, between(0.001, 86400)] | None = key(
        None, "how long its requests may take"
    )

    def __post_init__(self) -> None:
        if not self.level:
            raise ValueError("level is missing: which one is it about?")


def check_levels(levels: Iterable[PriorityLevel], count: int) -> None:
    """Raises ValueError where `count` levels do not have what is said of them."""
    seen: set[int] = set()
    for item in levels:
        if item.level > count:
            msg = (
                f"priority speaks of level {item.level}, priority_levels says that "
                f"there are {count}"
            )
            raise ValueError(msg)
        if item.level in seen:
            msg = f"priority speaks of level {item.level} twice"
            raise ValueError(msg)
        seen.add(item.level)


def queue_sizes(levels: Iterable[PriorityLevel]) -> Mapping[int, int]:
    """Return the bounds that single levels have, by level."""
    return {
        item.level: item.max_queue_size
        for item in levels
        if item.max_queue_size is not None
    }


def timeouts(config: ModelRunnerConfig, levels: Iterable[PriorityLevel]) -> Timeouts:
    """Return the timeout of each level of a model, 0 standing for the default level and
    None for the model's own; empty where no level has one.
    """
    own = {item.level: item.timeout for item in levels if item.timeout is not None}
    if not own:
        return {}
    found = {n: own.get(n) for n in range(1, config.priority_levels + 1)}
    return {0: own.get(config.default_level), **found}
