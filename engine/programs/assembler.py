"""Turn programs into closures once, so that running them needs no look-ups.

A step is a function of the streams and the run options. The steps of a sequence are
kept flat. Every ordinary model has the same shape: stream copies in, one graph, and
stream copies out, over variables that nothing else uses. That becomes a single step
that never touches the variables (`engine.programs.graph_call`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeAlias

from engine.errors import Cancelled, ExecutionFailed
from engine.programs.dataflow import Dataflow
from engine.programs.executable import (
    Copy,
    Executable,
    Execute,
    Node,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)
from engine.programs.graph_call import GraphCall, value_of
from engine.programs.session import GraphSession, RunOptions
from engine.programs.streams import Step, Streams, look_for_signals
from engine.tensor import Array

#: Bit masks: a run handles signals every 16th turn, and yields its core every 256th.
_LOOK_EVERY = 0xF
_YIELD_EVERY = 0xFF

SessionOf: TypeAlias = Callable[[Execute], GraphSession | None]
"""The session for a node; None while its weights are not loaded."""


class Assembler:
    """Makes the steps of one executable over one table of variables."""

    def __init__(
        self,
        executable: Executable,
        dataflow: Dataflow,
        values: dict[str, Array],
        session_of: SessionOf,
    ) -> None:
        self._executable = executable
        self._dataflow = dataflow
        self._values = values
        self._session_of = session_of
        self._called: dict[int, Step] = {}
        #: The number of turns of loops and calls so far, in a list that all steps
        #: share.
        self._turns = [0]

    def programs(self) -> Mapping[int, Step]:
        """Return a step for each program."""
        self._called = {}  # forget the old steps, because new sessions may exist
        return {n: self.step(p) for n, p in self._executable.programs.items()}

    def step(self, node: Node) -> Step:
        """Return the step for `node`."""
        match node:
            case Steps():
                return _in_order(self._flat(node))
            case StreamIn():
                return self._stream_in(node)
            case Execute():
                return self._execute(node)
            case StreamOut():
                return self._stream_out(node)
            case Copy():
                return self._copy(node)
            case Repeat():
                return self._repeat(node)
            case Switch():
                return self._switch(node)
            case ProgramCall(program):
                return self._call(program)

    def _flat(self, sequence: Steps) -> list[Step]:
        nodes = _unnested(sequence)
        steps: list[Step] = []
        done = 0
        for position, node in enumerate(nodes):
            if position < done:
                continue
            fused = self._fused(nodes, position)
            if fused is None:
                steps.append(self.step(node))
            else:
                step, done = fused
                steps.append(step)
        return steps

    def _fused(self, nodes: list[Node], start: int) -> tuple[Step, int] | None:
        """Return one step for the stream copies and the graph that begin at `start`,
        and the place after them.

        Return None if other nodes use the variables between them. Otherwise the data
        goes directly from stream to graph to stream.
        """
        single = self._dataflow.single_use
        end = start
        sources: dict[str, str] = {}
        while end < len(nodes) and isinstance(node := nodes[end], StreamIn):
            if node.variable not in single:
                return None
            sources[node.variable] = node.handle
            end += 1
        if end == len(nodes) or not isinstance(execute := nodes[end], Execute):
            return None
        session = self._session_of(execute)
        if session is None or not sources.keys() <= set(execute.inputs.values()):
            return None
        end += 1
        targets: dict[str, str] = {}
        written = set(execute.outputs.values())
        while end < len(nodes) and isinstance(node := nodes[end], StreamOut):
            if node.variable not in single or node.variable not in written:
                break
            targets[node.variable] = node.handle
            end += 1
        call = GraphCall(
            self._executable.graphs[execute.graph],
            execute,
            session,
            self._values,
            sources,
            targets,
        )
        return call.step(), end

    def _stream_in(self, node: StreamIn) -> Step:
        handle, variable, values = node.handle, node.variable, self._values
        # A weight is not copied, because its stream lends it as long as the executor
        # lives.
        if (
            variable in self._dataflow.persistent
            and variable not in self._dataflow.load_only
        ):

            def keep(streams: Streams, _: RunOptions) -> None:
                values[variable] = streams.read(handle).copy()

            return keep

        def borrow(streams: Streams, _: RunOptions) -> None:
            values[variable] = streams.read(handle)

        return borrow

    def _execute(self, node: Execute) -> Step:
        session = self._session_of(node)
        if session is None:
            message = f"graph {node.graph!r} cannot run before its weights are loaded"

            def not_yet(_: Streams, __: RunOptions) -> None:
                raise ExecutionFailed(message)

            return not_yet
        graph = self._executable.graphs[node.graph]
        return GraphCall(graph, node, session, self._values, {}, {}).step()

    def _stream_out(self, node: StreamOut) -> Step:
        handle, variable, values = node.handle, node.variable, self._values

        def send(streams: Streams, _: RunOptions) -> None:
            streams.write(handle, value_of(values, variable))

        return send

    def _copy(self, node: Copy) -> Step:
        source, target, values = node.source, node.target, self._values
        if target not in self._dataflow.persistent:

            def alias(_: Streams, __: RunOptions) -> None:
                # Values are never changed in place, so sharing a value is as good as
                # copying it.
                values[target] = value_of(values, source)

            return alias

        def copy(_: Streams, __: RunOptions) -> None:
            values[target] = value_of(values, source).copy()

        return copy

    def _repeat(self, node: Repeat) -> Step:
        body, count, turns = self.step(node.body), node.count, self._turns

        def repeat(streams: Streams, options: RunOptions) -> None:
            for _ in range(count):
                take_turn(turns, options)
                body(streams, options)

        return repeat

    def _call(self, program: int) -> Step:
        """Return the step of a called program. Each program has one step, however often
        it is called. So programs that call each other many times take more time but no
        more memory.
        """
        made = self._called.get(program)
        if made is None:
            made = self._called[program] = self.step(self._executable.programs[program])
        called, turns = made, self._turns

        def call(streams: Streams, options: RunOptions) -> None:
            take_turn(turns, options)
            called(streams, options)

        return call

    def _switch(self, node: Switch) -> Step:
        cases = {n: self.step(case) for n, case in node.cases.items()}
        default = None if node.default is None else self.step(node.default)
        selector, values = node.selector, self._values

        def switch(streams: Streams, options: RunOptions) -> None:
            number = _integer(value_of(values, selector), selector)
            chosen = cases.get(number, default)
            if chosen is None:
                known = ", ".join(map(str, sorted(cases)))
                raise ExecutionFailed(
                    f"{selector!r} must be one of {known}, got {number}",
                    callers_fault=True,
                )
            chosen(streams, options)

        return switch


def take_turn(turns: list[int], options: RunOptions) -> None:
    """End a cancelled run. Called before every turn of a loop, and every call.

    Raises Cancelled. It lets other threads use the interpreter now and then, which
    compiled code does not do by itself. Otherwise a loop of copies would keep the
    device from answering and from stopping. It also handles signals such as Ctrl-C,
    which a caller's own process (`LocalSession`) may receive.
    """
    turns[0] += 1
    if turns[0] & _LOOK_EVERY == 0:
        look_for_signals()
        if turns[0] & _YIELD_EVERY == 0:
            os.sched_yield()
    if options is not None and options.terminate:
        raise Cancelled("the run was terminated")


def _integer(value: Array, selector: str) -> int:
    if value.size != 1 or value.dtype.kind not in "iub":
        shape = list(value.shape)
        raise ExecutionFailed(
            f"{selector!r} must be one integer, got {value.dtype}{shape}",
            callers_fault=True,
        )
    return int(value.reshape(-1)[0])


def _unnested(sequence: Steps) -> list[Node]:
    nodes: list[Node] = []
    for node in sequence.nodes:
        nodes.extend(_unnested(node) if isinstance(node, Steps) else [node])
    return nodes


def _in_order(steps: list[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    fixed = tuple(steps)

    def sequence(streams: Streams, options: RunOptions) -> None:
        for step in fixed:
            step(streams, options)

    return sequence
