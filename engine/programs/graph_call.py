"""One prepared execution of a graph: the sources of its inputs, the targets of its
outputs.

There are two ways to run a graph. The plain way passes arrays to ONNX Runtime and
receives new arrays, which is cheapest for small tensors. The bound way
(`engine.programs.output_binding`) lets ONNX Runtime write large outputs directly into
memory that the streams offer. Only the bound way supports BF16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from engine.errors import ExecutionFailed, InvalidModel
from engine.programs.executable import Execute, Graph
from engine.programs.output_binding import BoundRun, gate_of, offers_for
from engine.programs.python_tensors import ANSWER, ROUTE
from engine.programs.session import GraphSession, Port, RunOptions
from engine.programs.streams import ChoosingStreams, Step, Streams
from engine.tensor import Array
from popef_io import DataType


class GraphCall:
    """An `Execute` node together with the stream copies around it.

    `sources` and `targets` map variables to the handles of their streams. The other
    variables are read from and written to `values`.
    """

    def __init__(
        self,
        graph: Graph,
        node: Execute,
        session: GraphSession,
        values: dict[str, Array],
        sources: Mapping[str, str],
        targets: Mapping[str, str],
    ) -> None:
        self._session = session
        self._values = values
        weights = set(graph.weights)
        wanted = {k: v for k, v in node.inputs.items() if k not in weights}
        _check_ports(graph.name, node, wanted, session)
        streamed = {k: sources.get(v) for k, v in wanted.items()}
        self._streamed = tuple((k, h) for k, h in streamed.items() if h is not None)
        self._stored = tuple((k, v) for k, v in wanted.items() if streamed[k] is None)
        self._input_types = {k: _type_of(session.inputs[k]) for k in wanted}
        # Streamed outputs come first, in the order in which they are sent.
        names = sorted(node.outputs, key=lambda n: node.outputs[n] not in targets)
        self._output_types = {n: _type_of(session.outputs[n]) for n in names}
        self._outputs = names
        leaving = [targets.get(node.outputs[n]) for n in names]
        self._handles = tuple(h for h in leaving if h is not None)
        self._kept = tuple(node.outputs[n] for n in names[len(self._handles) :])
        self._types = {*self._input_types.values(), *self._output_types.values()}
        has_strings = DataType.STRING in self._types
        self._run = session.run_strings if has_strings else session.raw_run

    def step(self) -> Step:
        """Return the step that runs it."""
        bound = self._bound_run()
        if bound is None and not (self._stored or self._kept):
            if ROUTE in self._input_types:
                return self._routed_step()
            return self._ordinary_step()
        if bound is not None and not (self._stored or self._kept or bound.always):
            return self._gated_step(bound)
        return self._general_step(bound)

    def _bound_run(self) -> BoundRun | None:
        """Return the bound way to run the graph; None if that can never pay."""
        if not self._session.is_onnx:
            return None
        must = DataType.BF16 in self._types
        if DataType.STRING in self._types:
            if must:
                # No call of ONNX Runtime's Python interface accepts both types.
                raise InvalidModel(
                    "a graph cannot have both strings and BF16 as inputs or outputs"
                )
            return None
        leaving = zip(self._outputs, self._handles, strict=False)
        handles = dict(leaving)
        offers = offers_for(self._session, handles, self._output_types)
        if not offers and not must:
            return None
        return BoundRun(
            self._session, self._input_types, self._output_types, offers, must
        )

    def _ordinary_step(self) -> Step:
        """Return the single step of an ordinary model: streams, graph, streams."""
        run, names = self._run, self._outputs
        error_of = self._session.error_of
        handles, streamed = self._handles, self._streamed

        def ordinary(streams: Streams, options: RunOptions) -> None:
            read = streams.read
            feed: dict[str, Array] = {}
            for name, handle in streamed:  # a comprehension would be a call
                feed[name] = read(handle)
            try:
                results = run(names, feed, options)
            except Exception as error:
                raise error_of(error, options) from None
            write = streams.write
            for handle, value in zip(handles, results):  # noqa: B905 (slower)
                write(handle, value)

        return ordinary

    def _routed_step(self) -> Step:
        """Return the step of a Python model with routes. A run has either requests to
        routes or requests to the model. The two have different inputs and outputs.
        """
        run, error_of = self._run, self._session.error_of
        handles = dict(zip(self._outputs, self._handles, strict=True))
        streamed = dict(self._streamed)
        asked, answered = streamed.pop(ROUTE), handles.pop(ANSWER)

        def routed(streams: Streams, options: RunOptions) -> None:
            if cast(ChoosingStreams, streams).brings(asked):
                feed, targets = {ROUTE: streams.read(asked)}, {ANSWER: answered}
            else:
                feed = {name: streams.read(handle) for name, handle in streamed.items()}
                targets = handles
            try:
                results = run(list(targets), feed, options)
            except Exception as error:
                raise error_of(error, options) from None
            for handle, value in zip(targets.values(), results, strict=True):
                streams.write(handle, value)

        return routed

    def _gated_step(self, bound: BoundRun) -> Step:
        """Return a step that binds outputs only if one is large. Checking that takes
        0.2 µs.
        """
        gate = gate_of(bound.offers)
        if gate is None:
            return self._general_step(bound)
        (source, axis), least = gate
        run, names = self._run, self._outputs
        error_of = self._session.error_of
        handles, streamed = self._handles, self._streamed

        def gated(streams: Streams, options: RunOptions) -> None:
            read = streams.read
            feed: dict[str, Array] = {}
            for name, handle in streamed:  # a comprehension would be a call
                feed[name] = read(handle)
            large = feed[source].shape
            if len(large) <= axis or large[axis] < least:
                try:
                    results = run(names, feed, options)
                except Exception as error:
                    raise error_of(error, options) from None
            else:
                results = bound(streams, feed, options)
            write = streams.write
            for handle, value in zip(handles, results):  # noqa: B905 (slower)
                write(handle, value)

        return gated

    def _general_step(self, bound: BoundRun | None) -> Step:
        run, names = self._run, self._outputs
        error_of = self._session.error_of
        feed_of, finish = self._feed, self._finish

        def general(streams: Streams, options: RunOptions) -> None:
            feed = feed_of(streams)
            if bound is not None:
                finish(streams, bound(streams, feed, options))
                return
            try:
                results = run(names, feed, options)
            except Exception as error:
                raise error_of(error, options) from None
            finish(streams, results)

        return general

    def _feed(self, streams: Streams) -> dict[str, Array]:
        read, values = streams.read, self._values
        feed = {name: read(handle) for name, handle in self._streamed}
        for name, variable in self._stored:
            feed[name] = value_of(values, variable)
        return feed

    def _finish(self, streams: Streams, results: list[Array]) -> None:
        handles = self._handles
        for handle, value in zip(handles, results, strict=False):
            streams.write(handle, value)
        for variable, value in zip(self._kept, results[len(handles) :], strict=True):
            self._values[variable] = value


def value_of(values: Mapping[str, Array], variable: str) -> Array:
    """Return the value of `variable`. Raises ExecutionFailed if it has none yet."""
    try:
        return values[variable]
    except KeyError:
        raise ExecutionFailed(
            f"variable {variable!r} is read before it is written"
        ) from None


def _check_ports(
    graph: str, node: Execute, wanted: Mapping[str, str], session: GraphSession
) -> None:
    missing = [n for n in session.inputs if n not in wanted]
    if missing:
        raise InvalidModel(
            f"a program executes graph {graph!r} without its input {missing[0]!r}"
        )
    unknown = [n for n in wanted if n not in session.inputs]
    if unknown:
        raise InvalidModel(f"graph {graph!r} has no input {unknown[0]!r}")
    unknown = [n for n in node.outputs if n not in session.outputs]
    if unknown:
        raise InvalidModel(f"graph {graph!r} has no output {unknown[0]!r}")
    if not node.outputs:
        raise InvalidModel(
            f"a program executes graph {graph!r} without reading any of its outputs"
        )


def _type_of(port: Port) -> DataType:
    if port.data_type is None:
        raise InvalidModel(f"{port.name!r} is of type {port.type_name}, not a tensor")
    return port.data_type
