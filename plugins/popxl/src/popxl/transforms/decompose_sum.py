"""Sums as additions."""

from __future__ import annotations

import popir
from popxl.graph import Graph


def decompose_sum(graph: Graph) -> Graph:
    """Replace each Sum of more than two inputs by an Init and an Add for each input."""
    popir.decompose_sums(graph._below)
    return graph
