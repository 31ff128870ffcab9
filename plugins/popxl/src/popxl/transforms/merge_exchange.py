"""Merge loads and stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import popir
from popxl.context import get_current_graph, in_sequence, io_tiles


@contextmanager
def merge_exchange() -> Iterator[None]:
    """Merge the loads and stores made inside into one operator at the end."""
    made: list[popir.Operator] = []
    with _exchanges(made):
        yield


@contextmanager
def io_tile_exchange(verify_overlap: bool = True) -> Iterator[None]:
    """Merge the loads and stores made inside, on the tiles for exchange and in any
    order; RuntimeError if more than one is left.
    """
    made: list[popir.Operator] = []
    with io_tiles(), in_sequence(False), _exchanges(made):
        yield
    if verify_overlap and len(made) > 1:
        raise RuntimeError(
            "More than one operator is left in io_tile_exchange, so that exchange and "
            f"compute would not overlap: {made}"
        )


@contextmanager
def _exchanges(left: list[popir.Operator]) -> Iterator[None]:
    graph = get_current_graph()._below
    made: list[popir.Operator] = []
    hook = graph.add_hook(made.append)
    try:
        yield
    finally:
        graph.hooks.pop(hook, None)
    left += popir.merge_exchanges(graph, made)
