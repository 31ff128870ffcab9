"""Aliases in annotations."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def NewAliasAnnotation(name: str, tp: Any) -> Any:  # noqa: N802
    """Return the annotation `tp`; `name` is its name for documentation."""
    return tp
