"""Takes all replicas through a program together, node by node.

Each replica has its own variables. A graph runs once for each replica, in threads if
there is enough work. If replicas take different branches, the branches run one after
the other, each for its own replicas in the order of their numbers. So results do not
depend on the number of threads. Each thread has one thread of ONNX Runtime.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
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
from popir.replicas.lifetimes import lifetimes, walk
from popir.thread_pool import ThreadPool

if TYPE_CHECKING:
    from popir.lowering.compile import Program

#: Graphs with fewer bytes of inputs and outputs run in the caller's thread.
SMALL = 1 << 16


class LockstepSession:
    """Runs the programs of a compiled Ir on all its replicas.

    threads: the number of threads that run graphs; default: one for each usable core.
    Raises InvalidModel if a graph cannot be loaded. Not thread-safe.
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
        self._pool = ThreadPool(min(threads or _cores(), program.replicas))
        self._streams = _ReplicaStreams({}, {})
        programs = program.executable.programs.values()
        self._lifetimes = lifetimes(programs)
        self._calls = {
            id(node): _Call(node, self._graphs[node.graph])
            for each in programs
            for node in walk(each)
            if isinstance(node, Execute)
        }

    def run(
        self,
        programs: Iterable[int],
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Run `programs`, one after the other.

        An input is for each replica an array with a first dimension of transfers. An
        output is the same, or a function that is called with each array of each
        replica. Raises ExecutionFailed if a graph fails, RunError if some members of a
        group do not reach a collective, ValueOutOfRange for a row that does not exist.
        """
        self._streams = _ReplicaStreams(inputs or {}, outputs or {})
        if self._exchanges is not None:
            self._exchanges.begin()
        try:
            for number in programs:
                self._node(self._executable.programs[number], self._all)
        finally:
            self._streams = _ReplicaStreams({}, {})

    def close(self) -> None:
        """Release all memory. Idempotent."""
        self._pool.close()
        self._graphs.clear()
        self._calls.clear()
        self._values = [{} for _ in self._all]

    def _node(self, node: Node, there: Sequence[int]) -> None:
        match node:
            case Steps(nodes):
                last = self._lifetimes.last
                for each in nodes:
                    self._node(each, there)
                    for name in last.get(id(each), ()):
                        for replica in there:
                            self._values[replica].pop(name, None)
            case Execute():
                self._execute(self._calls[id(node)], there)
            case StreamIn(handle, variable):
                self._set(variable, there, self._read(handle, variable, there))
            case StreamOut():
                self._write(node, there)
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

    def _read(self, handle: str, variable: str, there: Sequence[int]) -> list[Array]:
        if self._exchanges is not None and self._exchanges.knows(handle):
            return self._exchanges.receive(handle, there)
        keeps = variable not in self._lifetimes.fed
        return [self._streams.read(handle, replica, keeps) for replica in there]

    def _write(self, node: StreamOut, there: Sequence[int]) -> None:
        values = [self._values[replica][node.variable] for replica in there]
        if self._exchanges is not None and self._exchanges.knows(node.handle):
            free = node.variable in self._lifetimes.summed
            self._exchanges.send(node.handle, there, values, self._pool, free)
            return
        for replica, value in zip(there, values, strict=True):
            self._streams.write(node.handle, replica, value)

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

    def _execute(self, call: _Call, there: Sequence[int]) -> None:
        def one(replica: int) -> None:
            call.run(self._values[replica])

        if call.is_small(self._values[there[0]]):
            for replica in there:
                one(replica)
        else:
            self._pool.each(one, there)


class _Call:
    """A prepared run of a graph, for the variables of any replica."""

    def __init__(self, node: Execute, graph: OnnxSession) -> None:
        self._graph = graph
        self._inputs = list(node.inputs.items())
        self._names = list(node.outputs)
        self._targets = list(node.outputs.values())
        self._is_small: bool | None = None

    def is_small(self, values: Mapping[str, Array]) -> bool:
        """Return whether threads would cost more than they save. Shapes do not change,
        so the answer is constant.
        """
        if self._is_small is None:
            size = sum(values[variable].nbytes for _, variable in self._inputs)
            self._is_small = size < SMALL
        return self._is_small

    def run(self, values: dict[str, Array]) -> None:
        """Run the graph, from and into `values`."""
        feed = {name: values[variable] for name, variable in self._inputs}
        options = make_run_options()
        try:
            made = self._graph.raw_run(self._names, feed, options)
        except Exception as error:
            raise self._graph.error_of(error, options) from None
        values.update(zip(self._targets, made, strict=True))


class _ReplicaStreams:
    """The data of one run: for each stream each replica's arrays, and the
    number used.
    """

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._read: dict[tuple[str, int], int] = {}
        self._written: dict[tuple[str, int], int] = {}

    def read(self, handle: str, replica: int, keeps: bool) -> Array:
        """Return the next data of a stream; keeps: the data must outlive the run."""
        array = self._inputs[handle][replica]
        at = self._read.get((handle, replica), 0)
        self._read[handle, replica] = at + 1
        found: Array = array[at % len(array), ...]
        if keeps or not (found.flags.c_contiguous and found.flags.aligned):
            # The caller may change its array.
            return np.array(found, order="C")
        return found

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
