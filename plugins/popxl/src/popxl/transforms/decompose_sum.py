"""Sums as additions."""

from __future__ import annotations

import popir
from popxl.graph import Graph


def decompose_sum(graph: Graph) -> Graph:
    """Each Sum of more than two inputs becomes an Init and an Add for each of them."""
    popir.decompose_sums(graph._below)
    return graph
