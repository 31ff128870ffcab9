"""Sums as additions: not there yet."""

from __future__ import annotations

from typing import NoReturn

import popir
from popxl.graph import Graph


def decompose_sum(graph: Graph) -> NoReturn:
    """Not there yet."""
    raise popir.NotYet("transforms.decompose_sum is not there yet")
