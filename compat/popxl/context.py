"""The contexts around operators: graph, device, order, tiles, names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import popir
from popxl.tensorlocation import ExecutionContext

if TYPE_CHECKING:
    from popxl.graph import Graph
    from popxl.ir import Ir


class _State:
    """One for the process: programs are built by one thread."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.ipus: list[int | None] = []
        self.orders: list[popir.Order] = []
        self.tile_sets: list[str] = []
        self.scopes: list[str] = []
        self.fragments: list[ExecutionContext] = []


_state = _State()


class Context:
    """What operators made now would be."""

    @property
    def graph(self) -> Graph:
        """The current graph."""
        return get_current_graph()

    @property
    def main_graph(self) -> Graph:
        """The main graph of the current Ir."""
        return get_main_graph()

    @property
    def ir(self) -> Ir:
        """The current Ir."""
        return get_ir()

    @property
    def name_scopes(self) -> list[str]:
        """The names around, outermost first."""
        return list(_state.scopes)

    def _get_op_settings(self, name: str) -> popir.Settings:
        return settings()


def get_current_context() -> Context:
    """What operators made now would be."""
    return Context()


def settings() -> popir.Settings:
    """Where an operator made now stands."""
    order = _state.orders[-1] if _state.orders else None
    if order is not None and order.mode not in (True, False, "pass"):
        raise ValueError(f"Unknown mode of in_sequence: {order.mode!r}")
    fragment = _state.fragments[-1].name if _state.fragments else "Normal"
    return popir.Settings(
        scopes=tuple(_state.scopes),
        ipu=_state.ipus[-1] if _state.ipus else 0,
        tile_set=_state.tile_sets[-1] if _state.tile_sets else "compute",
        fragment=fragment,
        order=order,
    )


def push(graph: Graph) -> None:
    """Make `graph` the current one; RuntimeError for another Ir's."""
    if _state.graphs and _state.graphs[0].ir is not graph.ir:
        raise RuntimeError(
            "Can only have graphs from the same Ir in the context at one time"
        )
    _state.graphs.append(graph)


def pop() -> None:
    """Make the graph before it the current one."""
    _state.graphs.pop()


def get_current_graph() -> Graph:
    """The graph that operators are made in; RuntimeError outside of all."""
    if not _state.graphs:
        raise RuntimeError(
            "No graph is in context: use `with ir.main_graph:` around operators"
        )
    return _state.graphs[-1]


def get_main_graph() -> Graph:
    """The main graph of the current Ir."""
    if not _state.graphs:
        raise RuntimeError("No graph is in context: there is no main graph")
    return _state.graphs[0].ir.main_graph


def get_ir() -> Ir:
    """The current Ir."""
    return get_current_graph().ir


gcg, gmg, gir = get_current_graph, get_main_graph, get_ir


@contextmanager
def ipu(ipu: int | None) -> Iterator[int | None]:
    """Operators inside are on this device."""
    _state.ipus.append(ipu)
    try:
        yield ipu
    finally:
        _state.ipus.pop()


@contextmanager
def in_sequence(mode: bool | Literal["pass"] = True) -> Iterator[None]:
    """Operators inside run in the order in which they are made (True), in any order
    after those before and before those after (False), or as data flows ('pass')."""
    if mode is None:
        raise TypeError("`None` cannot be passed to `in_sequence`")
    _state.orders.append(popir.Order(mode))
    try:
        yield
    finally:
        _state.orders.pop()


@contextmanager
def io_tiles() -> Iterator[None]:
    """Operators inside are on the tiles for exchange."""
    _state.tile_sets.append("io")
    try:
        yield
    finally:
        _state.tile_sets.pop()


@contextmanager
def name_scope(name: str) -> Iterator[list[str]]:
    """Names inside begin with `name/`."""
    _state.scopes.append(name)
    try:
        yield list(_state.scopes)
    finally:
        _state.scopes.pop()


@contextmanager
def _execution_context(context: ExecutionContext) -> Iterator[ExecutionContext]:
    _state.fragments.append(context)
    try:
        yield context
    finally:
        _state.fragments.pop()


def op_debug_context(name: Any) -> Any:
    """Marks a function that makes operators; with or without a name."""
    if callable(name):
        return name

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        return fn

    return mark


@contextmanager
def debug_context_frame_offset(i: int) -> Iterator[None]:
    """Accepted: which line of a program an operator came from is not recorded."""
    yield
