"""The operators: one record each, one file a family. Importing it registers them."""

from __future__ import annotations

from popir.ops import (
    arithmetic,
    collectives,
    control,
    elementwise,
    float8,
    indexing,
    losses,
    networks,
    randoms,
    reductions,
    resampling,
    shapes,
    updates,
)

__all__ = (
    "arithmetic",
    "collectives",
    "control",
    "elementwise",
    "float8",
    "indexing",
    "losses",
    "networks",
    "randoms",
    "reductions",
    "resampling",
    "shapes",
    "updates",
)
