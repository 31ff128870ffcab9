"""Patterns. They are accepted and have no effect, because graphs run unchanged."""

# ruff: noqa: N802 - the names are the original's
from __future__ import annotations

from enum import Enum
from typing import Any

#: Levels of patterns.
PatternsLevel = Enum("PatternsLevel", "NoPatterns Minimal Default All", start=0)


class Patterns:
    """Enabled patterns. They are stored and have no effect."""

    def __init__(self, level: Any = PatternsLevel.Default) -> None:
        self.level = level
        self._enabled: dict[str, bool] = {}

    @staticmethod
    def create(names: Any = ()) -> Patterns:
        """Return settings with only those patterns on."""
        made = Patterns(PatternsLevel.NoPatterns)
        for name in names:
            made.enablePattern(str(name), True)
        return made

    def enablePattern(self, name: str, enabled: bool = True) -> Patterns:
        """Turn one pattern on or off."""
        self._enabled[name] = enabled
        return self

    def isPatternEnabled(self, name: str) -> bool:
        """Return whether a pattern is on."""
        on = self.level in (PatternsLevel.Default, PatternsLevel.All)
        return self._enabled.get(name, on)

    def enableRuntimeAsserts(self, enabled: bool = True) -> Patterns:
        """Accept the setting."""
        return self
