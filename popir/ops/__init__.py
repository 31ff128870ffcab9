"""The operators: one record each, one file a family. Importing it registers them."""

from __future__ import annotations

from popir.ops import (
    arithmetic,
    control,
    elementwise,
    indexing,
    losses,
    networks,
    randoms,
    reductions,
    shapes,
    updates,
)

__all__ = (
    "arithmetic",
    "control",
    "elementwise",
    "indexing",
    "losses",
    "networks",
    "randoms",
    "reductions",
    "shapes",
    "updates",
)
