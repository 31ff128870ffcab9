"""The contexts around operators: graph, device, order, tiles, names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import popir
from popart.attributes import Settings
from popxl import current
from popxl.current import settings, state
from popxl.graph import Graph
from popxl.ir import Ir
from popxl.tensorlocation import ExecutionContext


class Context:
    """Attributes of operators that are made in the current context."""

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
        """The enclosing name scopes, the outermost first."""
        return list(state.scopes)

    @property
    def ipu_id(self) -> int | None:
        """The device of the enclosing context."""
        return settings().ipu

    @property
    def io_tile_set(self) -> Literal["compute", "io"]:
        """The tiles of the enclosing context."""
        return "io" if settings().tile_set == "io" else "compute"

    @property
    def in_sequence(self) -> bool | str | None:
        """Return the mode of the enclosing `in_sequence`; None if there is none."""
        return state.orders[-1].mode if state.orders else None

    def push_graph(self, graph: Graph) -> None:
        """Make `graph` the current one; RuntimeError for a graph of another Ir."""
        current.push(graph._below)

    def pop_graph(self) -> None:
        """Make the previous graph the current one."""
        current.pop()

    def push_name_scope(self, name: str) -> None:
        """Begin names with `name/` until `pop_name_scope`."""
        state.scopes.append(name)

    def pop_name_scope(self) -> str:
        """End the innermost name scope; return its name."""
        return state.scopes.pop()

    def _op_created(self, op: Any) -> None:
        """Call the hooks of the graph of an operator made below `popxl`."""
        below = op._below
        for hook in list(below.graph.hooks.values()):
            hook(below)

    def _get_op_settings(self, name: str) -> Settings:
        return Settings._of(settings(), name)


def get_current_context() -> Context:
    """Return the attributes of operators that are made in the current context."""
    return Context()


def get_source_location(offset: int = 0) -> str:
    """Return file and line of the caller, `offset` calls further out."""
    frame = sys._getframe(1 + offset)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def get_current_graph() -> Graph:
    """Return the graph that operators are made in; RuntimeError outside of all."""
    return Graph._of(current.graph())


def get_main_graph() -> Graph:
    """Return the main graph of the current Ir."""
    if not state.graphs:
        raise RuntimeError("No graph is in context: there is no main graph")
    return Graph._of(state.graphs[0].ir.main)


def get_ir() -> Ir:
    """Return the current Ir."""
    found: Ir = get_current_graph().ir
    return found


gcg, gmg, gir = get_current_graph, get_main_graph, get_ir


@contextmanager
def ipu(ipu: int | None) -> Iterator[int | None]:
    """Place the operators inside on this device."""
    state.ipus.append(ipu)
    try:
        yield ipu
    finally:
        state.ipus.pop()


@contextmanager
def in_sequence(mode: bool | Literal["pass"] = True) -> Iterator[None]:
    """Run the operators inside in the order of their construction (True), in any order
    between those before and after (False), or as data flows ('pass').
    """
    if mode is None:
        raise TypeError("`None` cannot be passed to `in_sequence`")
    state.orders.append(popir.Order(mode))
    try:
        yield
    finally:
        state.orders.pop()


@contextmanager
def tiles(tile_set: Literal["compute", "io"]) -> Iterator[None]:
    """Place the operators inside on these tiles."""
    state.tile_sets.append(tile_set)
    try:
        yield
    finally:
        state.tile_sets.pop()


@contextmanager
def io_tiles() -> Iterator[None]:
    """Place the operators inside on the tiles for exchange."""
    with tiles("io"):
        yield


@contextmanager
def name_scope(name: str) -> Iterator[list[str]]:
    """Begin the names inside with `name/`."""
    state.scopes.append(name)
    try:
        yield list(state.scopes)
    finally:
        state.scopes.pop()


@contextmanager
def _execution_context(context: ExecutionContext) -> Iterator[ExecutionContext]:
    state.fragments.append(context.name)
    try:
        yield context
    finally:
        state.fragments.pop()


def op_debug_context(name: Any) -> Any:
    """Mark a function that makes operators; with or without a name."""
    if callable(name):
        return name

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        return fn

    return mark


@contextmanager
def debug_context_frame_offset(i: int) -> Iterator[None]:
    """Accept the call without effect: source lines of operators are not recorded."""
    yield
