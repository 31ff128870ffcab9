"""Walk the operators of a program in the order of their construction and lower each.

Calls are lowered in place: changes by reference in a called graph apply to the storage
of its caller. Loops and branches become those of the executable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from popir.aliases import changed_inputs
from popir.builder import Block, Builder, Value
from popir.dtypes import to_carrier
from popir.errors import IrError, NotYet
from popir.exchanges import Exchange, ExchangeStreams, Part, RemoteLoad, RemoteStore
from popir.grouping import Collective
from popir.ir import Ir, IrGraph, IrTensor, Operator
from popir.lowering.regions import Assignment, Branch, Loop, StepRegion
from popir.lowering.storage import AliasView, Cell, Storage
from popir.ops.float8 import SCALED
from popir.records import Spec
from popir.remote import RemoteBuffer

Scope = dict[IrTensor, Storage]
#: Fragments that run after weights come from the host, and before they go back.
FROM_HOST, TO_HOST = "WeightsFromHostFragment", "WeightsToHostFragment"


@dataclass(slots=True)
class Lowered:
    """Result of lowering a program."""

    region: StepRegion
    """The program."""
    from_host: StepRegion
    """Steps after weights have come from the host."""
    to_host: StepRegion
    """Steps before weights go to the host."""
    variables: dict[str, Value]
    """Variables that something reads or writes, by their ids."""
    inputs: dict[str, IrTensor] = field(default_factory=dict)
    """Stream handle to the tensor of a loaded stream."""
    outputs: dict[str, IrTensor] = field(default_factory=dict)
    prints: dict[str, Operator] = field(default_factory=dict)
    """Stream handle to the operator that prints its values."""
    functions: dict[str, Operator] = field(default_factory=dict)
    """Name to the operator that is a function of NumPy arrays."""
    scales: dict[str, IrTensor] = field(default_factory=dict)
    """Stream handle to a scale of float8 whose range is checked."""
    ends: ExchangeStreams = field(default_factory=ExchangeStreams)
    """The streams that the caller does not serve: remote rows, other replicas."""


def input_handle(id_: str) -> str:
    """Return the stream that brings a tensor to the device."""
    return f"h2d_{id_}"


def output_handle(id_: str) -> str:
    """Return the stream that takes a stream's tensor to the host."""
    return f"anchor_d2h_{id_}"


def weight_handle(id_: str) -> str:
    """Return the stream that takes a variable to the host."""
    return f"weight_d2h_{id_}"


def argument_handle(name: str, number: int) -> str:
    """Return the stream of an argument of a NumPy function."""
    return f"{name}_in_{number}"


def result_handle(name: str, number: int) -> str:
    """Return the stream of a result of a NumPy function."""
    return f"{name}_out_{number}"


#: Operators that communicate with the host.
_STREAMED = frozenset({"HostLoad", "HostStore", "PrintTensor", "MultiExchange"})


def _fragment(operator: Operator) -> str:
    """Return where the operator runs; empty: in the program."""
    name = operator.settings.fragment
    return name if name in (FROM_HOST, TO_HOST) else ""


class Lowering:
    """Lowers the main graph of one Ir, once.

    host_effects: effects in the caller's process during a run (printing) have streams;
    otherwise they are left out. check_scales: scales of float8 have streams too.
    """

    def __init__(
        self, ir: Ir, host_effects: bool = True, check_scales: bool = False
    ) -> None:
        self._ir = ir
        self._host_effects = host_effects
        self._check_scales = check_scales
        self._b = Builder()
        self._b.collective = self._collective
        self._region = StepRegion()
        self._new_block()
        self._numbers = 0
        self._result = Lowered(self._region, StepRegion(), StepRegion(), {})

    def run(self) -> Lowered:
        """Return the lowered program. Raises IrError or NotYet, naming the operator."""
        main = self._ir.main
        scope: Scope = {}
        cells: dict[str, tuple[Cell, Value]] = {}
        for tensor in main.tensors.values():
            if tensor.kind != "variable" or not tensor.readers:
                continue
            if tensor.placement.buffer is not None:
                raise IrError(
                    f"{tensor.id!r} is in remote memory: {tensor.readers[0]} cannot "
                    "take it before it is loaded"
                )
            value = self._given(tensor.spec, tensor.id)
            cells[tensor.id] = Cell(value), value
            scope[tensor] = cells[tensor.id][0]
            self._result.variables[tensor.id] = value
        found = self._result
        parts = {FROM_HOST: found.from_host, "": found.region, TO_HOST: found.to_host}
        for fragment, region in parts.items():
            inside = [op for op in main.operators if _fragment(op) == fragment]
            if inside:
                self._fragment(inside, region, scope, cells)
            if fragment == FROM_HOST:
                self._keep(scope, cells)
        return found

    def _keep(self, scope: Scope, cells: dict[str, tuple[Cell, Value]]) -> None:
        """Keep values computed from incoming weights like a variable, and mark them as
        changed.
        """
        known = {cell for cell, _ in cells.values()}
        made = dict.fromkeys(
            cell
            for tensor, storage in scope.items()
            if tensor.kind == "result"
            for cell in storage.cells()
            if cell not in known
        )
        names = [self._fresh() for _ in made]
        self._assign([(c.get(), n) for c, n in zip(made, names, strict=True)])
        for cell, name in zip(made, names, strict=True):
            cell.set(self._at(cell, name))
            cells[name] = cell, cell.get()

    def _fragment(
        self,
        operators: Sequence[Operator],
        region: StepRegion,
        scope: Scope,
        cells: Mapping[str, tuple[Cell, Value]],
    ) -> None:
        """Lower one part of the main graph, and keep its changes to variables."""
        self._region = region
        self._new_block()
        self._operators(operators, scope)
        changed = {name: (c, v) for name, (c, v) in cells.items() if c.get() is not v}
        old = {value for _, value in changed.values()}
        for each in scope.values():
            # The next part also sees the old values of variables.
            if isinstance(each, Cell) and each.get() in old:
                each.set(self._b.identity(each.get()))
        self._assign([(cell.get(), name) for name, (cell, _) in changed.items()])
        for cell, value in changed.values():
            cell.set(value)

    def _given(self, spec: Spec, variable: str) -> Value:
        if spec.dtype.is_complex:
            raise IrError(f"{variable!r} is complex, which no device computes with")
        return Value(self._b, spec.dtype.carrier, spec.shape, variable=variable)

    def _graph(self, graph: IrGraph, scope: Scope) -> None:
        self._operators(graph.operators, scope)

    def _operators(self, operators: Iterable[Operator], scope: Scope) -> None:
        for operator in operators:
            try:
                self._operator(operator, scope)
            except AssertionError as wrong:  # a bug of popir: name the operator
                raise AssertionError(f"lowering {operator}: {wrong}") from wrong

    def _storage(self, tensor: IrTensor, scope: Scope) -> Storage:
        found = scope.get(tensor)
        if found is None and tensor.kind == "constant":
            assert tensor.data is not None
            found = Cell(self._b.constant(to_carrier(tensor.data)))
            scope[tensor] = found
        if tensor.kind == "unconnected":
            raise IrError("an input of a call was never connected")
        if found is None:
            raise IrError(f"tensor {tensor.id!r} is read before anything computes it")
        return found

    def _operator(self, operator: Operator, scope: Scope) -> None:
        if _fragment(operator) and operator.type in _STREAMED:
            raise IrError(
                f"{operator} cannot run while weights come or go: it uses a stream"
            )
        special = self._SPECIAL.get(operator.type)
        if special is not None:
            special(self, operator, scope)
            return
        record = operator.record
        stored = [self._storage(t, scope) for t in operator.inputs]
        if record.put is not None:
            view = AliasView(self._b, record, operator.call, stored)
            scope[operator.outputs[0]] = view
            return
        if record.host is not None:
            self._function(operator, [each.get() for each in stored], scope)
            return
        if record.lower is None:
            raise NotYet(f"the operator {operator.type} is not supported")
        values = [each.get() for each in stored]
        if self._check_scales and operator.type in SCALED:
            handle = f"scale_{operator.id}"
            self._result.scales[handle] = operator.inputs[-1]
            self._b.block.stream_out.append((values[-1], handle))
        results = list(record.lower(self._b, operator.call, values))
        made = results[: len(operator.outputs)]
        for tensor, value in zip(operator.outputs, made, strict=True):
            assert value.dtype == tensor.dtype.carrier, (value.dtype, tensor)
            assert value.shape == tensor.shape, (value.shape, tensor)
            scope[tensor] = Cell(value)
        if record.writes:
            stored[0].set(results[0])
            scope[operator.outputs[0]] = stored[0]
        changed = operator.attributes.get("changes", ())
        for index, value in zip(changed, results[len(made) :], strict=True):
            stored[index].set(value)

    def _function(self, operator: Operator, given: list[Value], scope: Scope) -> None:
        """Stream out the arguments of a NumPy function and stream in its results."""
        if not self._host_effects or _fragment(operator):
            raise NotYet(
                f"{operator} is a NumPy function, which runs in the caller's process "
                "only: give the operator ONNX nodes"
            )
        name = f"function_{operator.id}"
        self._result.functions[name] = operator
        for number, value in enumerate(given):
            self._b.block.stream_out.append((value, argument_handle(name, number)))
        self._new_block()
        for number, tensor in enumerate(operator.outputs):
            value = self._given(tensor.spec, self._fresh())
            self._b.block.stream_in.append((result_handle(name, number), value))
            scope[tensor] = Cell(value)

    # Calls

    def _call(self, operator: Operator, scope: Scope) -> None:
        (graph,) = operator.called_graphs
        inner: Scope = {}
        back: list[tuple[Storage, Cell]] = []
        for index, (tensor, given) in enumerate(
            zip(graph.inputs, operator.inputs, strict=True)
        ):
            outer = self._storage(given, scope)
            if tensor.by_reference:
                inner[tensor] = outer
                continue
            inner[tensor] = own = Cell(outer.get())
            if index in operator.modified:
                back.append((outer, own))
        self._graph(graph, inner)
        self._results(operator, graph, inner, scope)
        for outer, own in back:
            outer.set(own.get())

    def _results(
        self, operator: Operator, graph: IrGraph, inner: Scope, scope: Scope
    ) -> None:
        for tensor, made in zip(operator.outputs, graph.outputs, strict=True):
            scope[tensor] = Cell(self._storage(made, inner).get())

    def _loop(self, operator: Operator, scope: Scope) -> None:
        """Run the wrapper graph, with carried values in variables.

        A loop carries the inputs that outputs feed. It also carries all cells under
        inputs by reference that it changes, so aliases among them are kept. The
        wrapper's first two inputs and first output are counter and condition.
        """
        (graph,) = operator.called_graphs
        carried = len(operator.outputs)
        changed = changed_inputs(operator)
        inner: Scope = {
            tensor: Cell(self._b.constant(number, tensor.dtype.carrier))
            for tensor, number in zip(graph.inputs[:2], (0, 1), strict=True)
        }
        starts: list[Cell] = []
        cells: dict[Cell, None] = {}
        back: list[tuple[Storage, Cell]] = []
        for index, (tensor, given) in enumerate(
            zip(graph.inputs[2:], operator.inputs, strict=True)
        ):
            outer = self._storage(given, scope)
            if index < carried:
                starts.append(Cell(outer.get()))
            elif tensor.by_reference:
                inner[tensor] = outer
                if index in changed:
                    cells.update(dict.fromkeys(outer.cells()))
            else:
                inner[tensor] = own = Cell(outer.get())
                if index in operator.modified:
                    cells[own] = None
                    back.append((outer, own))
        kept = [*starts, *cells]
        names = [self._fresh() for _ in kept]
        self._assign([(c.get(), n) for c, n in zip(kept, names, strict=True)])
        outside = self._begin()
        body = self._region
        for cell, name in zip(kept, names, strict=True):
            cell.set(self._at(cell, name))
        for tensor, cell in zip(graph.inputs[2:], starts, strict=False):
            inner[tensor] = Cell(cell.get())
        self._graph(graph, inner)
        finals = [self._storage(t, inner).get() for t in graph.outputs[1:]]
        finals += [cell.get() for cell in cells]
        self._assign(list(zip(finals, names, strict=True)))
        self._end(outside, Loop(operator.attributes["count"], body))
        for cell, name in zip(kept, names, strict=True):
            cell.set(self._at(cell, name))
        for tensor, cell in zip(operator.outputs, starts, strict=True):
            scope[tensor] = Cell(cell.get())
        for outer, own in back:
            outer.set(own.get())

    def _at(self, cell: Cell, name: str) -> Value:
        value = cell.get()
        return Value(self._b, value.dtype, value.shape, variable=name)

    def _if(self, operator: Operator, scope: Scope) -> None:
        chosen, *given = (self._storage(t, scope).get() for t in operator.inputs)
        if chosen.array is not None:  # a variable selects the branch, not a number
            chosen = self._b.identity(chosen)
        regions, names = [], [self._fresh() for _ in operator.outputs]
        outside = self._begin()
        branches = operator.called_graphs
        for number, graph in enumerate(branches):
            if number:
                self._region = StepRegion()
                self._new_block()
            at = len(branches[0].inputs) if number else 0
            inputs = given[at : at + len(graph.inputs)]
            inner: Scope = {
                tensor: Cell(value)
                for tensor, value in zip(graph.inputs, inputs, strict=True)
            }
            regions.append(self._region)
            self._graph(graph, inner)
            finals = [self._storage(t, inner).get() for t in graph.outputs]
            self._assign(list(zip(finals, names, strict=True)))
        self._end(outside, Branch(chosen, *regions))
        for tensor, name in zip(operator.outputs, names, strict=True):
            scope[tensor] = Cell(self._given(tensor.spec, name))

    # Regions

    def _fresh(self) -> str:
        self._numbers += 1
        return f"%c{self._numbers}"

    def _assign(self, pairs: list[tuple[Value, str]]) -> None:
        if pairs:
            self._region.steps.append(Assignment(pairs))
            self._new_block()

    def _new_block(self) -> None:
        self._b.block = Block()
        self._b.region = self._region
        self._region.steps.append(self._b.block)

    def _begin(self) -> StepRegion:
        """Begin a region, which receives the next lowered steps.

        Return the one around it.
        """
        outside = self._region
        self._region = StepRegion()
        self._new_block()
        return outside

    def _end(self, outside: StepRegion, step: Loop | Branch) -> None:
        """Go back to the outer region and append `step` to it."""
        self._region = outside
        outside.steps.append(step)
        self._new_block()

    # Streams

    def _host_load(self, operator: Operator, scope: Scope) -> None:
        tensor: IrTensor = operator.attributes["stream"]
        handle = input_handle(tensor.id)
        self._result.inputs[handle] = tensor
        spec = operator.outputs[0].spec
        value = self._given(spec, self._fresh())
        self._b.block.stream_in.append((handle, value))
        loaded = self._storage(operator.inputs[0], scope)
        loaded.set(value)
        scope[operator.outputs[0]] = loaded

    def _host_store(self, operator: Operator, scope: Scope) -> None:
        tensor: IrTensor = operator.attributes["stream"]
        handle = output_handle(tensor.id)
        self._result.outputs[handle] = tensor
        value = self._storage(operator.inputs[0], scope).get()
        self._b.block.stream_out.append((value, handle))

    def _end_of(self, exchange: Exchange) -> str:
        """Return a name for the streams of an exchange."""
        self._numbers += 1
        return f"%{type(exchange).__name__}{self._numbers}"

    def _send(self, exchange: Exchange, part: Part, name: str, value: Value) -> None:
        handle = f"{name}_{part}"
        self._result.ends.sent[handle] = exchange, part
        self._b.block.stream_out.append((value, handle))

    def _receive(self, exchange: Exchange, name: str, value: Value) -> None:
        handle = f"{name}_result"
        self._result.ends.received[handle] = exchange
        self._b.block.stream_in.append((handle, value))

    def _collective(self, collective: Collective, value: Value) -> Value:
        """End the block; exchanged values arrive in the next."""
        name = self._end_of(collective)
        self._send(collective, "value", name, value)
        self._new_block()
        made = Value(self._b, value.dtype, collective.shape, variable=self._fresh())
        self._receive(collective, name, made)
        return made

    def _remote_load(self, operator: Operator, scope: Scope) -> None:
        buffer: RemoteBuffer = operator.attributes["buffer"]
        target, at = (self._storage(t, scope) for t in operator.inputs)
        spec = operator.outputs[0].spec
        _check_row(operator, buffer, spec)
        place = at.get()
        offset = _offset(buffer, place)
        exchange = RemoteLoad(buffer, offset)
        name = self._end_of(exchange)
        if offset is None:
            self._send(exchange, "at", name, place)
            self._new_block()
        value = self._given(spec, self._fresh())
        self._receive(exchange, name, value)
        target.set(value)
        scope[operator.outputs[0]] = target

    def _remote_store(self, operator: Operator, scope: Scope) -> None:
        buffer: RemoteBuffer = operator.attributes["buffer"]
        value, place = (self._storage(t, scope).get() for t in operator.inputs)
        _check_row(operator, buffer, operator.inputs[0].spec)
        offset = _offset(buffer, place)
        exchange = RemoteStore(buffer, offset)
        name = self._end_of(exchange)
        if offset is None:
            self._send(exchange, "at", name, place)
        self._send(exchange, "row", name, value)
        # Later stores and loads come after it.
        self._new_block()

    def _print(self, operator: Operator, scope: Scope) -> None:
        value = self._storage(operator.inputs[0], scope).get()
        if self._host_effects:
            handle = f"print_{operator.outputs[0].id}"
            self._result.prints[handle] = operator
            self._b.block.stream_out.append((value, handle))
        scope[operator.outputs[0]] = Cell(value)

    def _exchange(self, operator: Operator, scope: Scope) -> None:
        for part in operator.attributes["parts"]:
            self._operator(part, scope)

    def _nothing(self, operator: Operator, scope: Scope) -> None:
        """Do nothing, because code is always on the device."""

    _SPECIAL: Mapping[str, Callable[[Any, Operator, Scope], None]] = {
        "Call": _call,
        "Loop": _loop,
        "If": _if,
        "HostLoad": _host_load,
        "HostStore": _host_store,
        "PrintTensor": _print,
        "MultiExchange": _exchange,
        "RemoteCodeLoad": _nothing,
        "RemoteLoad": _remote_load,
        "RemoteLoadInplace": _remote_load,
        "RemoteStore": _remote_store,
    }


def _offset(buffer: RemoteBuffer, place: Value) -> int | None:
    """Return a constant offset; None: it is known when the program runs."""
    if place.array is None:
        return None
    offset = int(place.array.reshape(-1)[0])
    buffer.check(offset)
    return offset


def _check_row(operator: Operator, buffer: RemoteBuffer, spec: Spec) -> None:
    if (spec.shape, spec.dtype) != (buffer.shape, buffer.dtype):
        raise IrError(
            f"{operator} takes {spec.dtype}{list(spec.shape)}, a row of remote buffer "
            f"{buffer.number} is {buffer.dtype}{list(buffer.shape)}"
        )
