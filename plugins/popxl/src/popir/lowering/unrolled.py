"""Turn a program of several replicas into one for a device, with everything once per
replica.

Each variable exists once for each replica, a graph runs once for each, a collective is
a graph over all values, and a remote buffer is a table for each. Host arrays of a
stream have an axis of replicas, if there are several. Sums keep the order of the
replicas, so results have the bits of a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from engine.programs import (
    Copy,
    Executable,
    Execute,
    Node,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)
from popef_io import Anchor, Metadata, TensorInfo, TensorType
from popir.errors import NotYet
from popir.exchanges import Exchange, RemoteLoad, RemoteStore
from popir.grouping import Collective
from popir.ir import IrTensor
from popir.lowering.assembly import data_type_of
from popir.lowering.compile import LOAD, MAIN, SAVE, Program
from popir.lowering.lower import input_handle, weight_handle
from popir.lowering.moves import Moves, ReplicaShare
from popir.placement import Placement
from popir.remote import RemoteBuffer

#: Bytes of all tables of remote buffers that a device may hold.
MOST_ROWS = 1 << 30


def unrolled(program: Program) -> Program:
    """Return the program with all its replicas as one.

    Raises NotYet with the operator that cannot be expressed.
    """
    return _Unrolling(program).run()


class _Unrolling:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._all = range(program.replicas)
        self._moves = Moves(program.replicas)
        self._infos: dict[str, TensorInfo] = {}
        sent = (exchange for exchange, _ in program.ends.sent.values())
        self._buffers = {
            e.buffer.number: e.buffer
            for e in (*sent, *program.ends.received.values())
            if isinstance(e, RemoteLoad | RemoteStore)
        }
        for tensor in program.remote:
            if (buffer := tensor.placement.buffer) is not None:
                self._buffers[buffer.number] = buffer
        self._numbers: dict[Exchange, int] = {}
        self._hosts = {input_handle(t.id): t for t in program.variables}

    def run(self) -> Program:
        """Return the program."""
        _check_rows(self._buffers.values(), len(self._all))
        given = self._program.executable
        for name, info in given.variables.items():
            for r in self._all:
                self._infos[_of(name, r)] = info
        remote = self._program.remote
        load = [self._zeros(b) for b in self._buffers.values()]
        load += [node for t in remote for node in self._place(t)]
        programs: dict[int, Node] = {
            LOAD: Steps((*load, self._node(given.programs[LOAD], self._all))),
            MAIN: self._node(given.programs[MAIN], self._all),
            SAVE: Steps(
                (
                    self._node(given.programs[SAVE], self._all),
                    *(node for t in remote for node in self._fetch(t)),
                )
            ),
        }
        graphs = {**given.graphs, **self._moves.graphs}
        executable = Executable(graphs, self._infos, programs)
        variables = (*self._program.variables, *remote)
        return replace(
            self._program,
            executable=executable,
            metadata=self._metadata(),
            variables=variables,
            remote=(),
            ends=type(self._program.ends)(),
            replicas=1,
        )

    def _metadata(self) -> Metadata:
        anchors = [self._anchor(a) for a in self._program.metadata.anchors]
        for tensor in self._program.remote:
            info = self._host_info(tensor)
            for handle, kind, number in (
                (input_handle(tensor.id), TensorType.INPUT, LOAD),
                (weight_handle(tensor.id), TensorType.OUTPUT, SAVE),
            ):
                anchors.append(Anchor(tensor.id, handle, info, kind, (number,)))
        return replace(self._program.metadata, anchors=tuple(anchors))

    def _anchor(self, anchor: Anchor) -> Anchor:
        if MAIN in anchor.programs:
            return replace(anchor, tensor_info=self._stacked(anchor.tensor_info))
        (tensor,) = [t for t in self._program.variables if t.id == anchor.name]
        return replace(anchor, tensor_info=self._host_info(tensor))

    def _stacked(self, info: TensorInfo) -> TensorInfo:
        if len(self._all) == 1:
            return info
        return TensorInfo((len(self._all), *(info.shape or ())), info.data_type)

    def _host_info(self, tensor: IrTensor) -> TensorInfo:
        assert tensor.data is not None
        return TensorInfo(tensor.data.shape, data_type_of(tensor.dtype.carrier))

    # Nodes

    def _node(self, node: Node, there: Sequence[int]) -> Node:
        match node:
            case Steps(nodes):
                return Steps(tuple(self._node(each, there) for each in nodes))
            case Execute(graph, inputs, outputs):
                return Steps(
                    tuple(
                        Execute(
                            graph,
                            {name: _of(v, r) for name, v in inputs.items()},
                            {name: _of(v, r) for name, v in outputs.items()},
                        )
                        for r in there
                    )
                )
            case Copy(source, target):
                return Steps(tuple(Copy(_of(source, r), _of(target, r)) for r in there))
            case Repeat(count, body):
                return Repeat(count, self._node(body, there))
            case Switch():
                return self._switch(node, there)
            case StreamIn(handle, variable):
                return self._stream_in(handle, variable, there)
            case StreamOut(variable, handle):
                return self._stream_out(variable, handle, there)
        raise NotYet(f"{node} of several replicas")

    def _switch(self, node: Switch, there: Sequence[int]) -> Node:
        made = []
        for r in there:
            cases = {n: self._node(case, [r]) for n, case in node.cases.items()}
            other = None if node.default is None else self._node(node.default, [r])
            made.append(Switch(_of(node.selector, r), cases, other))
        return Steps(tuple(made))

    def _stream_in(self, handle: str, variable: str, there: Sequence[int]) -> Node:
        exchange = self._program.ends.received.get(handle)
        if isinstance(exchange, Collective):
            made = self._name(exchange, "value")
            return Steps(tuple(Copy(_of(made, r), _of(variable, r)) for r in there))
        if isinstance(exchange, RemoteLoad):
            return Steps(
                tuple(self._load(exchange, _of(variable, r), r) for r in there)
            )
        if handle in self._hosts:
            return Steps(self._from_host(self._hosts[handle], variable))
        self._check_all(there, f"the stream {handle!r}")
        if len(self._all) == 1:
            return StreamIn(handle, _of(variable, 0))
        whole = self._variable(f"%in {variable}", self._stacked(self._info(variable)))
        graph = self._moves.unstacked(self._info(variable))
        outputs = {f"y{r}": _of(variable, r) for r in self._all}
        return Steps((StreamIn(handle, whole), Execute(graph, {"x": whole}, outputs)))

    def _stream_out(self, variable: str, handle: str, there: Sequence[int]) -> Node:
        sent = self._program.ends.sent.get(handle)
        if sent is not None:
            exchange, part = sent
            if isinstance(exchange, Collective):
                return self._collective(exchange, variable, there)
            name = self._name(exchange, part)
            nodes: list[Node] = []
            for r in there:
                self._infos[_of(name, r)] = self._info(variable)
                nodes.append(Copy(_of(variable, r), _of(name, r)))
                if part == "row":
                    assert isinstance(exchange, RemoteStore)
                    at = self._name(exchange, "at")
                    nodes.append(self._store(exchange, _of(name, r), _of(at, r), r))
            return Steps(tuple(nodes))
        host = {weight_handle(t.id): t for t in self._program.variables}
        if handle in host:
            return Steps(self._to_host(host[handle], variable, handle))
        self._check_all(there, f"the stream {handle!r}")
        if len(self._all) == 1:
            return StreamOut(_of(variable, 0), handle)
        whole = self._variable(f"%out {variable}", self._stacked(self._info(variable)))
        graph = self._moves.stacked(self._info(variable))
        inputs = {f"x{r}": _of(variable, r) for r in self._all}
        return Steps((Execute(graph, inputs, {"y": whole}), StreamOut(whole, handle)))

    def _check_all(self, there: Sequence[int], what: str) -> None:
        if len(there) < len(self._all):
            raise NotYet(
                f"{what} is in a branch that each replica takes by itself, "
                "which a file cannot express"
            )

    def _info(self, variable: str) -> TensorInfo:
        return self._infos[_of(variable, 0)]

    def _variable(self, name: str, info: TensorInfo) -> str:
        self._infos[name] = info
        return name

    def _name(self, exchange: Exchange, part: str) -> str:
        number = self._numbers.setdefault(exchange, len(self._numbers))
        return f"%exchange {number} {part}"

    # Collectives and rows

    def _collective(
        self, exchange: Collective, variable: str, there: Sequence[int]
    ) -> Node:
        self._check_all(there, exchange.operator)
        made = self._name(exchange, "value")
        info = self._info(variable)
        result = TensorInfo(exchange.shape, info.data_type)
        for r in self._all:
            self._infos[_of(made, r)] = result
        return Execute(
            self._moves.exchanged(exchange, info),
            {f"x{r}": _of(variable, r) for r in self._all},
            {f"y{r}": _of(made, r) for r in self._all},
        )

    def _table(self, buffer: RemoteBuffer, replica: int) -> str:
        shape = (buffer.entries, *buffer.shape)
        info = TensorInfo(shape, data_type_of(buffer.dtype.carrier))
        return self._variable(f"%rows {buffer.number}@{replica}", info)

    def _zeros(self, buffer: RemoteBuffer) -> Node:
        tables = [self._table(buffer, r) for r in self._all]
        graph = self._moves.zeros(self._infos[tables[0]])
        return Steps(tuple(Execute(graph, {}, {"y": table}) for table in tables))

    def _load(self, exchange: RemoteLoad, target: str, replica: int) -> Node:
        table = self._table(exchange.buffer, replica)
        inputs = {"table": table}
        at = self._place_of(exchange, replica)
        if at:
            inputs["at"] = at
        info = self._infos[at] if at else None
        graph = self._moves.loaded(self._infos[table], exchange.offset, info)
        return Execute(graph, inputs, {"y": target})

    def _store(self, exchange: RemoteStore, row: str, at: str, replica: int) -> Node:
        table = self._table(exchange.buffer, replica)
        inputs = {"table": table, "row": row}
        if exchange.offset is None:
            inputs["at"] = at
        info = self._infos[at] if exchange.offset is None else None
        graph = self._moves.stored(self._infos[table], exchange.offset, info)
        return Execute(graph, inputs, {"y": table})

    def _place_of(self, exchange: RemoteLoad, replica: int) -> str:
        if exchange.offset is not None:
            return ""
        return _of(self._name(exchange, "at"), replica)

    # Weights

    def _from_host(self, tensor: IrTensor, variable: str) -> tuple[Node, ...]:
        whole = self._variable(f"%host {tensor.id}", self._host_info(tensor))
        nodes: list[Node] = [StreamIn(input_handle(tensor.id), whole)]
        for r in self._all:
            share, info = _share(tensor.placement, r), self._info(variable)
            graph = self._moves.share(self._infos[whole], share, info)
            nodes.append(Execute(graph, {"x": whole}, {"y": _of(variable, r)}))
        return tuple(nodes)

    def _to_host(
        self, tensor: IrTensor, variable: str, handle: str
    ) -> tuple[Node, ...]:
        whole = self._variable(f"%host {tensor.id}", self._host_info(tensor))
        placement = tensor.placement
        groups = placement.groups
        members = [list(self._all)] if groups is None else groups.members
        order = [r for each in members for r in each[: placement.shards]]
        graph = self._moves.joined(self._infos[whole], order, placement.shards)
        inputs = {f"x{n}": _of(variable, r) for n, r in enumerate(order)}
        return (Execute(graph, inputs, {"y": whole}), StreamOut(whole, handle))

    def _place(self, tensor: IrTensor) -> tuple[Node, ...]:
        """Bring the data of a remote variable to its rows."""
        at = tensor.placement
        assert at.buffer is not None
        variable = self._row_variables(tensor)
        nodes = list(self._from_host(tensor, variable))
        store = RemoteStore(at.buffer, at.offset)
        nodes += [self._store(store, _of(variable, r), "", r) for r in self._all]
        return tuple(nodes)

    def _fetch(self, tensor: IrTensor) -> tuple[Node, ...]:
        """Bring the rows of a remote variable to the host."""
        at = tensor.placement
        assert at.buffer is not None
        variable = self._row_variables(tensor)
        load = RemoteLoad(at.buffer, at.offset)
        nodes: list[Node] = [self._load(load, _of(variable, r), r) for r in self._all]
        return (*nodes, *self._to_host(tensor, variable, weight_handle(tensor.id)))

    def _row_variables(self, tensor: IrTensor) -> str:
        buffer = tensor.placement.buffer
        assert buffer is not None
        name = f"%row {tensor.id}"
        for r in self._all:
            info = TensorInfo(buffer.shape, data_type_of(buffer.dtype.carrier))
            self._infos[_of(name, r)] = info
        return name


def _check_rows(buffers: Iterable[RemoteBuffer], replicas: int) -> None:
    sizes = (b.entries * prod(b.shape) * b.dtype.carrier.itemsize for b in buffers)
    total = sum(sizes) * replicas
    if total > MOST_ROWS:
        raise NotYet(
            f"its remote buffers have {total} bytes; a file can hold up to {MOST_ROWS}"
        )


def _of(variable: str, replica: int) -> str:
    return f"{variable}@{replica}"


def _share(placement: Placement, replica: int) -> ReplicaShare:
    """Return a replica's part of a variable's host data."""
    groups = placement.groups
    if groups is None:
        return ReplicaShare(None, placement.shards, replica % placement.shards)
    group = groups.assignment[replica]
    rank = groups.members[group].index(replica) % placement.shards
    several = group if groups.num_groups > 1 else None
    return ReplicaShare(several, placement.shards, rank)
