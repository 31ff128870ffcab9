"""Aliases in annotations."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def NewAliasAnnotation(name: str, tp: Any) -> Any:  # noqa: N802
    """The annotation `tp` itself; `name` is what documentation would call it."""
    return tp
