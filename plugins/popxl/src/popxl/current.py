"""Place of a new operator, set by the enclosing contexts."""

from __future__ import annotations

import popir


class State:
    """The current place. The process has only one, because one thread builds
    programs.
    """

    def __init__(self) -> None:
        self.graphs: list[popir.IrGraph] = []
        self.ipus: list[int | None] = []
        self.orders: list[popir.Order] = []
        self.tile_sets: list[str] = []
        self.scopes: list[str] = []
        self.fragments: list[str] = []


state = State()


def settings() -> popir.OperatorSettings:
    """Return the place of a new operator."""
    order = state.orders[-1] if state.orders else None
    if order is not None and order.mode not in (True, False, "pass"):
        raise ValueError(f"Unknown mode of in_sequence: {order.mode!r}")
    return popir.OperatorSettings(
        scopes=tuple(state.scopes),
        ipu=state.ipus[-1] if state.ipus else 0,
        tile_set=state.tile_sets[-1] if state.tile_sets else "compute",
        fragment=state.fragments[-1] if state.fragments else "Normal",
        order=order,
    )


def push(graph: popir.IrGraph) -> None:
    """Make `graph` the current one; RuntimeError for a graph of another Ir."""
    if state.graphs and state.graphs[0].ir is not graph.ir:
        raise RuntimeError(
            "Can only have graphs from the same Ir in the context at one time"
        )
    state.graphs.append(graph)


def pop() -> None:
    """Make the previous graph the current one."""
    state.graphs.pop()


def graph() -> popir.IrGraph:
    """Return the graph that operators are made in; RuntimeError outside of all."""
    if not state.graphs:
        raise RuntimeError(
            "No graph is in context: use `with ir.main_graph:` around operators"
        )
    return state.graphs[-1]
