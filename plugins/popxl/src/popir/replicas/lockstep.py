"""Takes all replicas through a program together, node by node.

Each replica has variables of its own. A graph runs once for each replica, by threads if
there is enough to do; where replicas take different branches, those of one branch go
through it before those of the next, each group in the order of its numbers. So results
do not depend on the number of threads, which each have one thread of ONNX Runtime.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.programs import (
    Copy,
    Execute,
    Node,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)
from engine.programs.onnx_session import OnnxSession, make_run_options
from popir.dtypes import Array
from popir.errors import IrError
from popir.exchanges import Exchanges

if TYPE_CHECKING:
    from popir.lowering.compile import Program

#: Graphs with fewer bytes of inputs and outputs run in the caller's thread.
SMALL = 1 << 16


class LockstepSession:
    """Runs the programs of a compiled Ir on all its replicas.

    threads: of this process that run graphs; default: one for each usable core.
    Raises InvalidModel where a graph cannot be loaded. Not thread-safe.
    """

    def __init__(
        self,
        program: Program,
        exchanges: Exchanges | None,
        *,
        threads: int | None = None,
    ) -> None:
        self._executable = program.executable
        self._exchanges = exchanges
        self._all = range(program.replicas)
        self._values: list[dict[str, Array]] = [{} for _ in self._all]
        self._graphs = {
            name: OnnxSession(graph.model, {}, threads=1)
            for name, graph in program.executable.graphs.items()
        }
        count = min(threads or _cores(), program.replicas)
        self._pool = ThreadPoolExecutor(count, "popir") if count > 1 else None
        self._streams = _Streams({}, {})

    def run(
        self,
        programs: Iterable[int],
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Run `programs`, one after the other.

        An input is for each replica an array with a first dimension of transfers, an
        output the same or a function that is called with each array of each replica.
        Raises ExecutionFailed if a graph fails, RunError where some members of a group
        do not reach a collective, ValueOutOfRange for a row that there is not.
        """
        self._streams = _Streams(inputs or {}, outputs or {})
        if self._exchanges is not None:
            self._exchanges.begin()
        try:
            for number in programs:
                self._node(self._executable.programs[number], self._all)
        finally:
            self._streams = _Streams({}, {})

    def close(self) -> None:
        """Give back all memory. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
        self._graphs.clear()
        self._values = [{} for _ in self._all]

    def _node(self, node: Node, there: Sequence[int]) -> None:
        match node:
            case Steps(nodes):
                for each in nodes:
                    self._node(each, there)
            case Execute():
                self._execute(node, there)
            case StreamIn(handle, variable):
                self._set(variable, there, self._read(handle, there))
            case StreamOut(variable, handle):
                self._write(handle, there, [self._values[r][variable] for r in there])
            case Copy(source, target):
                self._set(target, there, [self._values[r][source] for r in there])
            case Repeat(count, body):
                for _ in range(count):
                    self._node(body, there)
            case Switch():
                self._switch(node, there)
            case _:
                raise IrError(f"{node} does not run on several replicas")

    def _set(
        self, variable: str, there: Sequence[int], values: Sequence[Array]
    ) -> None:
        for replica, value in zip(there, values, strict=True):
            self._values[replica][variable] = value

    def _read(self, handle: str, there: Sequence[int]) -> list[Array]:
        if self._exchanges is not None and self._exchanges.knows(handle):
            return self._exchanges.receive(handle, there)
        return [self._streams.read(handle, replica) for replica in there]

    def _write(
        self, handle: str, there: Sequence[int], values: Sequence[Array]
    ) -> None:
        if self._exchanges is not None and self._exchanges.knows(handle):
            self._exchanges.send(handle, there, values)
            return
        for replica, value in zip(there, values, strict=True):
            self._streams.write(handle, replica, value)

    def _switch(self, node: Switch, there: Sequence[int]) -> None:
        taken: dict[int, list[int]] = {}
        for replica in there:
            case = int(self._values[replica][node.selector].reshape(-1)[0])
            taken.setdefault(case, []).append(replica)
        for case in sorted(taken):
            chosen = node.cases.get(case, node.default)
            if chosen is None:
                raise IrError(
                    f"no branch has the number {case}, and there is no default"
                )
            self._node(chosen, taken[case])

    def _execute(self, node: Execute, there: Sequence[int]) -> None:
        graph = self._graphs[node.graph]
        names = list(node.outputs)
        targets = list(node.outputs.values())

        def one(replica: int) -> None:
            values = self._values[replica]
            feed = {name: values[variable] for name, variable in node.inputs.items()}
            options = make_run_options()
            try:
                made = graph.raw_run(names, feed, options)
            except Exception as error:
                raise graph.error_of(error, options) from None
            values.update(zip(targets, made, strict=True))

        self._each(one, there, node)

    def _each(
        self, one: Callable[[int], None], there: Sequence[int], node: Execute
    ) -> None:
        if self._pool is None or len(there) < 2 or self._is_small(node, there[0]):
            for replica in there:
                one(replica)
            return
        waiting = [self._pool.submit(one, replica) for replica in there]
        errors = [each.exception() for each in waiting]
        for error in errors:
            if error is not None:
                raise error

    def _is_small(self, node: Execute, replica: int) -> bool:
        values = self._values[replica]
        return sum(values[v].nbytes for v in node.inputs.values()) < SMALL


class _Streams:
    """The data of one run: for each stream those of each replica, and how many of them
    it has had."""

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._read: dict[tuple[str, int], int] = {}
        self._written: dict[tuple[str, int], int] = {}

    def read(self, handle: str, replica: int) -> Array:
        array = self._inputs[handle][replica]
        at = self._read.get((handle, replica), 0)
        self._read[handle, replica] = at + 1
        # The caller may change what it gave; a variable may keep it.
        return np.array(array[at % len(array)], order="C")

    def write(self, handle: str, replica: int, value: Array) -> None:
        target = self._outputs[handle]
        if callable(target):
            target(value)
            return
        array = target[replica]
        at = self._written.get((handle, replica), 0)
        self._written[handle, replica] = at + 1
        array[at % len(array)] = value


def _cores() -> int:
    return len(os.sched_getaffinity(0))
