"""The graph of a program: tensors, operators, graphs, and their names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from popir.dtypes import Array, DType, Shape
from popir.errors import IrError
from popir.placement import ALIKE, Placement
from popir.records import (
    TAKES_FLOAT8,
    OpCall,
    OperatorSettings,
    Record,
    Spec,
    record_of,
)

Kind: TypeAlias = Literal[
    "result", "input", "variable", "constant", "stream", "unconnected"
]
_ir_numbers = itertools.count()


@dataclass(eq=False, slots=True)
class IrTensor:
    """A value of a graph. Compared by identity."""

    id: str
    graph: IrGraph
    spec: Spec
    kind: Kind
    scopes: tuple[str, ...] = ()
    data: Array | None = None
    """The value of a constant, or the host's copy of a variable; float8 is
    structured.
    """
    producer: Operator | None = None
    readers: list[Operator] = field(default_factory=list)
    by_reference: bool = False
    is_current: bool = True
    """True if `data` of a variable equals the device's value."""
    placement: Placement = ALIKE
    """For a variable: the part of `data` that each replica has."""

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def name(self) -> str:
        """Return the id without the id of the graph."""
        prefix = self.graph.id
        return self.id[len(prefix) + 1 :] if prefix else self.id

    def __repr__(self) -> str:
        return f"<{self.id} {self.dtype} {self.shape}>"


@dataclass(eq=False, slots=True)
class Operator:
    """One operator of a graph. Compared by identity."""

    id: int
    type: str
    record: Record
    graph: IrGraph
    inputs: list[IrTensor]
    outputs: list[IrTensor]
    attributes: dict[str, Any]
    settings: OperatorSettings
    name: str = ""
    after: tuple[Operator, ...] = ()
    """The operators that `in_sequence` puts before it."""
    modified: set[int] = field(default_factory=set)
    """Inputs of a call whose final values are written back (`Call`, `Loop`)."""

    @property
    def call(self) -> OpCall:
        """Return the operator as its record sees it."""
        return OpCall(
            [t.spec for t in self.inputs],
            [t.spec for t in self.outputs],
            self.attributes,
        )

    @property
    def connected(self) -> list[IrTensor]:
        """Return its inputs except those that are connected later."""
        return [t for t in self.inputs if t.kind != "unconnected"]

    @property
    def called_graphs(self) -> tuple[IrGraph, ...]:
        graphs: tuple[IrGraph, ...] = self.attributes.get("graphs", ())
        return graphs

    def written(self) -> list[int]:
        """Return the inputs whose storage it changes."""
        found = [0] if self.record.writes else []
        found += self.attributes.get("changes", ())
        found += [i for i in sorted(self.modified) if i not in found]
        return found

    def __repr__(self) -> str:
        return f"<{self.type} {self.id} -> {[t.id for t in self.outputs]}>"


@dataclass(eq=False, slots=True)
class Order:
    """One `in_sequence` block; the same object for all operators made inside it."""

    mode: bool | str


@dataclass(slots=True)
class _Previous:
    """The operators after which the next operator of a graph and fragment runs."""

    operators: list[Operator] = field(default_factory=list)
    block: Order | None = None
    before_block: list[Operator] = field(default_factory=list)


class IrGraph:
    """Operators over tensors, in the order of their construction."""

    def __init__(self, ir: Ir, id_: str) -> None:
        self.ir = ir
        self.id = id_
        self.tensors: dict[str, IrTensor] = {}
        self.inputs: list[IrTensor] = []
        self.outputs: list[IrTensor] = []
        self.operators: list[Operator] = []
        self.callers: dict[Operator, None] = {}
        """The operators of all graphs that run it, in the order they were made."""
        self.hooks: dict[int, Callable[[Operator], object]] = {}
        self.can_be_differentiated = True
        """Whether autodiff of a calling graph may differentiate it without a given
        gradient graph.
        """
        self.is_loop_body = False
        """True for the wrapper that a loop runs."""
        self._hook_numbers = itertools.count()
        self._previous: dict[str, _Previous] = {}

    def new_tensor(
        self,
        spec: Spec,
        kind: Kind,
        name: str | None = None,
        scopes: Sequence[str] = (),
        data: Array | None = None,
    ) -> IrTensor:
        """Return a tensor under a free id made of `scopes` and `name`."""
        parts = [*([self.id] if self.id else []), *scopes, name or "t"]
        tensor = IrTensor(
            self.ir.free_id("/".join(parts), self.tensors), self, spec, kind
        )
        tensor.scopes = tuple(scopes)
        tensor.data = data
        self.tensors[tensor.id] = tensor
        return tensor

    def add_input(
        self,
        spec: Spec,
        name: str | None = None,
        scopes: Sequence[str] = (),
        by_reference: bool = False,
    ) -> IrTensor:
        """Return a further input; a scalar without a name is called `t`, as all are."""
        tensor = self.new_tensor(spec, "input", name, scopes)
        tensor.by_reference = by_reference
        self.inputs.append(tensor)
        return tensor

    def add(
        self,
        type_: str | Record,
        inputs: Sequence[IrTensor],
        names: Sequence[str | None] = (),
        attributes: Mapping[str, Any] | None = None,
        settings: OperatorSettings | None = None,
    ) -> Operator:
        """Make an operator and its results, named `names` inside the scopes.

        Raises IrError if its record refuses inputs or attributes.
        """
        where = settings or OperatorSettings()
        self.ir.check_open()
        for tensor in inputs:
            if tensor.graph is not self:
                raise IrError(f"{tensor.id!r} is not in graph {self.id!r}")
        record = record_of(type_) if isinstance(type_, str) else type_
        if record.type not in TAKES_FLOAT8 and any(t.dtype.is_float8 for t in inputs):
            raise IrError(f"{record.type} does not take float8: {list(inputs)}")
        given = dict(attributes or {})
        specs = record.infer(OpCall([t.spec for t in inputs], [], given))
        operator = Operator(
            next(self.ir.operator_numbers),
            record.type,
            record,
            self,
            list(inputs),
            [],
            given,
            where,
        )
        named = [*names, *[None] * len(specs)]
        for spec, name in zip(specs, named, strict=False):
            tensor = self.new_tensor(spec, "result", name, where.scopes)
            tensor.producer = operator
            operator.outputs.append(tensor)
        for tensor in inputs:
            tensor.readers.append(operator)
        for called in operator.called_graphs:
            called.callers[operator] = None
        self.operators.append(operator)
        if isinstance(where.order, Order):
            self._put_in_order(operator, where.order)
        for hook in list(self.hooks.values()):
            hook(operator)
        return operator

    def unconnected(self, spec: Spec) -> IrTensor:
        """Return a placeholder for an input that will be connected later. It belongs to
        no graph.
        """
        return IrTensor("", self, spec, "unconnected")

    def connect(self, operator: Operator, index: int, tensor: IrTensor) -> None:
        """Connect the input `index` of `operator`.

        Raises IrError if it does not fit.
        """
        if tensor.graph is not self or not 0 <= index < len(operator.inputs):
            raise IrError(f"{tensor} cannot be input {index} of {operator}")
        old = operator.inputs[index]
        if (old.shape, old.dtype) != (tensor.shape, tensor.dtype):
            raise IrError(
                f"{tensor} does not fit input {index} of {operator}, which is "
                f"{old.dtype}{list(old.shape)}"
            )
        if operator in old.readers:
            old.readers.remove(operator)
        operator.inputs[index] = tensor
        tensor.readers.append(operator)

    def remove(self, operator: Operator) -> None:
        """Remove an operator; its results stay for their next producer."""
        self.operators.remove(operator)
        for tensor in operator.inputs:
            if operator in tensor.readers:
                tensor.readers.remove(operator)
        for called in operator.called_graphs:
            called.callers.pop(operator, None)

    def forget(self, gone: Sequence[Operator], new: Operator | None) -> None:
        """Order later operators after `new` instead of `gone`."""
        for previous in self._previous.values():
            for some in (previous.operators, previous.before_block):
                if any(each in gone for each in some):
                    kept = [each for each in some if each not in gone]
                    some[:] = kept if new is None else [*kept, new]

    def add_hook(self, hook: Callable[[Operator], object]) -> int:
        """Call `hook` with every operator made from now on; return a number to remove
        it.
        """
        number = next(self._hook_numbers)
        self.hooks[number] = hook
        return number

    def _put_in_order(self, operator: Operator, block: Order) -> None:
        previous = self._previous.setdefault(operator.settings.fragment, _Previous())
        if block.mode == "pass":
            self._previous[operator.settings.fragment] = _Previous()
        elif block.mode is True:
            operator.after = tuple(previous.operators)
            previous.operators, previous.block = [operator], None
        else:
            if previous.block is not block:
                previous.block = block
                previous.before_block = previous.operators
                previous.operators = []
            operator.after = tuple(previous.before_block)
            previous.operators.append(operator)

    def __repr__(self) -> str:
        return f"<IrGraph {self.id!r} of {len(self.operators)} operators>"


@dataclass(eq=False, slots=True)
class Stream:
    """A stream between host and device; its tensor is in the main graph."""

    tensor: IrTensor
    is_input: bool
    uses: int = 0
    """How many operators load or store it."""


class Ir:
    """All graphs of a program."""

    def __init__(self) -> None:
        self.number = next(_ir_numbers)
        self.operator_numbers = itertools.count(100)
        self._suffixes = itertools.count()
        self._remote_buffers = itertools.count(1)
        self._subgraphs = itertools.count()
        self.main = IrGraph(self, "")
        self.graphs: dict[str, IrGraph] = {"": self.main}
        self.streams: dict[str, Stream] = {}
        self.transfers = 1
        """Slices that each host array brings to one run (`num_host_transfers`)."""
        self.is_prepared = False
        """True once a session was made. After that nothing may be added."""
        self.options: Any = None
        """The session options of the layer above."""
        self.data_flow: Any = None

    def free_id(self, wanted: str, taken: Mapping[str, object]) -> str:
        """Return `wanted`, with a suffix if it is taken."""
        found = wanted
        while found in taken:
            found = f"{wanted}__t{next(self._suffixes)}"
        return found

    def new_remote_buffer(self) -> int:
        """Return the number of a further remote buffer."""
        return next(self._remote_buffers)

    def new_graph(self, base: str = "graph") -> IrGraph:
        """Return an empty graph called `base` and a number."""
        return self._keep(f"{base}_subgraph({next(self._subgraphs)})")

    def new_named_graph(self, id_: str) -> IrGraph:
        """Make an empty graph with that id; IrError if it exists."""
        if id_ in self.graphs:
            raise IrError(f"there is a graph {id_!r} already")
        return self._keep(id_)

    def new_gradient_graph(self, forward: IrGraph) -> IrGraph:
        """Return an empty graph for the gradients of `forward`."""
        return self._keep(self.free_id(f"{forward.id}_bwd", self.graphs))

    def _keep(self, id_: str) -> IrGraph:
        self.check_open()
        self.graphs[id_] = IrGraph(self, id_)
        return self.graphs[id_]

    def add_stream(
        self, spec: Spec, name: str, is_input: bool, scopes: Sequence[str] = ()
    ) -> Stream:
        """Return a stream whose tensor is in the main graph."""
        stream = Stream(self.main.new_tensor(spec, "stream", name, scopes), is_input)
        self.streams[stream.tensor.id] = stream
        return stream

    def reachable(self) -> list[IrGraph]:
        """Return the main graph and all that it calls, directly or not; callers
        first.
        """
        found: dict[IrGraph, None] = {}

        def visit(graph: IrGraph) -> None:
            if graph not in found:
                found[graph] = None
                for called in called_by(graph):
                    visit(called)

        visit(self.main)
        return list(found)

    def device_count(self) -> int:
        """Return the number of devices of its operators."""
        places = (op.settings.ipu for g in self.reachable() for op in g.operators)
        return 1 + max((n for n in places if n is not None), default=0)

    def check_open(self) -> None:
        """Raise IrError if a session was made of it."""
        if self.is_prepared:
            raise IrError(
                "the Ir can no longer be changed, because a session was made of it"
            )


def called_by(graph: IrGraph) -> Iterable[IrGraph]:
    """Return the graphs that operators of `graph` run, each once."""
    return dict.fromkeys(c for op in graph.operators for c in op.called_graphs)
