"""Assembly of an executable from regions: ONNX graphs, variables, programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from engine.programs import (
    Copy,
    Executable,
    Execute,
    Graph,
    Node,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)
from popef_io import DataType, TensorInfo
from popir.builder import Block, Value
from popir.builder import Node as OnnxNode
from popir.lowering.regions import Assignment, Branch, Loop, StepRegion

OPSET = 20
#: Versions that ONNX Runtime 1.22 reads.
IR_VERSION = 9
ONNX_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}
_POPEF_TYPES = {
    **{f"int{n}": DataType[f"S{n}"] for n in (8, 16, 32, 64)},
    **{f"uint{n}": DataType[f"U{n}"] for n in (8, 16, 32, 64)},
    **{f"float{n}": DataType[f"F{n}"] for n in (16, 32, 64)},
    "bool": DataType.BOOL,
}


def data_type_of(dtype: np.dtype[Any]) -> DataType:
    """Return PopEF's name for the type that a device holds."""
    return _POPEF_TYPES[dtype.name]


class Assembly:
    """Collects graphs and variables; `program` turns a region into a node.

    `variables` are those of the program, by name: they live across runs. Variables that
    no region assigns are weights of the graphs that read them. Two kinds are not: those
    that the regions `around` the program read during a transfer, and those that differ
    between replicas (not `has_weights`).
    """

    def __init__(
        self,
        variables: Mapping[str, Value],
        region: StepRegion,
        around: Sequence[StepRegion] = (),
        has_weights: bool = True,
    ) -> None:
        whole = StepRegion([step for each in (region, *around) for step in each.steps])
        self._variables = {
            name: _info(value.dtype, value.shape) for name, value in variables.items()
        }
        self._graphs: dict[str, Graph] = {}
        self.written = {
            target
            for step in _steps(whole)
            if isinstance(step, Assignment)
            for _, target in step.pairs
        } & variables.keys()
        read = {
            value.variable
            for each in around
            for step in _steps(each)
            if isinstance(step, Block)
            for node in step.nodes
            for value in node.inputs
            if value is not None
        }
        self._weights = variables.keys() - self.written - read if has_weights else set()
        self._used_by = _users(whole)
        self._numbers = 0

    def executable(self, programs: Mapping[int, Node]) -> Executable:
        """Return the executable of `programs`, with the variables that they use."""
        return Executable(self._graphs, self._variables, programs)

    def program(self, region: StepRegion) -> Steps:
        """Return the node that performs `region`."""
        nodes: list[Node] = []
        for at, step in enumerate(region.steps):
            match step:
                case Block():
                    behind = region.steps[at + 1 : at + 2]
                    pairs = (
                        behind[0].pairs
                        if behind and isinstance(behind[0], Assignment)
                        else []
                    )
                    nodes += self._block(step, pairs)
                case Loop(count, body):
                    nodes.append(Repeat(count, self.program(body)))
                case Branch(condition, then, otherwise):
                    cases = {1: self.program(then), 0: self.program(otherwise)}
                    nodes.append(Switch(self._variable_of(condition), cases))
                case Assignment():
                    pass  # it is lowered with the block before it
        return Steps(tuple(nodes))

    def _variable_of(self, value: Value) -> str:
        if not value.variable:
            self._numbers += 1
            value.variable = f"%v{self._numbers}"
        if value.variable not in self._variables:
            self._variables[value.variable] = _info(value.dtype, value.shape)
        return value.variable

    def _block(self, block: Block, pairs: list[tuple[Value, str]]) -> list[Node]:
        targets = {target for _, target in pairs}
        outputs: dict[Value, str] = {}
        copies = self._assigned(block, pairs, targets, outputs)
        leaving = []
        for value, handle in block.stream_out:
            if value.array is not None or value.variable in targets:
                value = _copied(block, value)
            if value.block is block and value not in outputs:
                outputs[value] = self._variable_of(value)
            leaving.append(StreamOut(outputs.get(value) or value.variable, handle))
        for value in [v for node in block.nodes for v in node.outputs]:
            if value not in outputs and self._used_by.get(value, set()) - {block}:
                outputs[value] = self._variable_of(value)
        nodes: list[Node] = [
            StreamIn(handle, self._variable_of(value))
            for handle, value in block.stream_in
        ]
        if outputs:
            nodes.append(self._graph(block, outputs))
        return [*nodes, *leaving, *copies]

    def _assigned(
        self,
        block: Block,
        pairs: list[tuple[Value, str]],
        targets: set[str],
        outputs: dict[Value, str],
    ) -> list[Node]:
        """Let the block's graph write directly into the variables if possible. Return
        the copies for the other variables. No copy reads a target.
        """
        copies: list[Node] = []
        for value, target in pairs:
            self._variables.setdefault(target, _info(value.dtype, value.shape))
            if value.block is block:
                if value not in outputs:
                    only_here = self._used_by.get(value, set()) <= {block}
                    outputs[value] = target if only_here else self._variable_of(value)
                if outputs[value] != target:
                    copies.append(Copy(outputs[value], target))
            elif value.array is not None:
                outputs[_copied(block, value)] = target
            elif self._variable_of(value) == target:
                pass
            elif value.variable in targets:
                outputs[_copied(block, value)] = target
            else:
                copies.append(Copy(value.variable, target))
        return copies

    def _graph(self, block: Block, outputs: Mapping[Value, str]) -> Execute:
        from onnx import helper

        needed = _needed(block, outputs)
        names: dict[Value, str] = {}
        inputs: dict[str, str] = {}
        constants, external, weights = [], [], []

        def name_of(value: Value | None) -> str:
            if value is None:
                return ""
            if value in names:
                return names[value]
            name = names[value] = f"t{len(names)}"
            if value.array is not None:
                constants.append(_initializer(name, value.array))
            elif value.block is not block:
                inputs[name] = self._variable_of(value)
                if value.variable in self._weights:
                    weights.append((name, value))
                else:
                    external.append(_port(name, value))
            return name

        nodes = [
            _onnx_node(node, [name_of(v) for v in node.inputs], name_of)
            for node in needed
        ]
        graph = helper.make_graph(
            nodes,
            f"g{len(self._graphs)}",
            external,
            [_port(name_of(value), value) for value in outputs],
            [*constants, *(_outside(name, value) for name, value in weights)],
        )
        opsets = {"": OPSET} | dict.fromkeys(
            (node.domain for node in nodes if node.domain), 1
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(*each) for each in opsets.items()],
            ir_version=IR_VERSION,
            producer_name="popir",
        )
        self._graphs[graph.name] = Graph(
            graph.name,
            model.SerializeToString(),
            weights=tuple(name for name, _ in weights),
            opsets=opsets,
        )
        taken = {names[value]: variable for value, variable in outputs.items()}
        return Execute(graph.name, inputs, taken)


def _info(dtype: np.dtype[Any], shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo(shape, data_type_of(dtype))


def _copied(block: Block, value: Value) -> Value:
    """Add a node whose result is `value` under another name."""
    copy = Value(value.b, value.dtype, value.shape, block)
    block.nodes.append(OnnxNode("Identity", [value], [copy], {}))
    return copy


def _steps(region: StepRegion) -> Iterator[object]:
    for step in region.steps:
        yield step
        if isinstance(step, Loop):
            yield from _steps(step.body)
        elif isinstance(step, Branch):
            yield from _steps(step.then)
            yield from _steps(step.otherwise)


def _users(region: StepRegion) -> dict[Value, set[object]]:
    """Return for each value the blocks and other steps that need it.

    Nodes without needed results do not count, because they are removed.
    """
    users: dict[Value, set[object]] = {}
    producers: dict[Value, tuple[Block, OnnxNode]] = {}
    todo: list[tuple[Value, object]] = []
    behind: Block | None = None
    for step in _steps(region):
        match step:
            case Block():
                behind = step
                for node in step.nodes:
                    producers.update((v, (step, node)) for v in node.outputs)
                todo += [(value, step) for value, _ in step.stream_out]
            case Assignment(pairs):
                # The block before it performs the assignment.
                todo += [(value, behind) for value, _ in pairs]
            case Branch(condition):
                todo.append((condition, step))
    while todo:
        value, user = todo.pop()
        is_new = value not in users
        users.setdefault(value, set()).add(user)
        if is_new and value in producers:
            block, node = producers[value]
            todo += [(v, block) for v in node.inputs if v is not None]
    return users


def _needed(block: Block, outputs: Iterable[Value]) -> list[OnnxNode]:
    wanted = set(outputs)
    kept = []
    for node in reversed(block.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(v for v in node.inputs if v is not None)
    return kept[::-1]


def _onnx_node(node: OnnxNode, inputs: list[str], name_of: Any) -> Any:
    from onnx import helper

    attributes = {
        name: ONNX_TYPES[value.name] if isinstance(value, np.dtype) else value
        for name, value in node.attributes.items()
    }
    outputs = [name_of(value) for value in node.outputs]
    # An operator of another domain is called `domain:type`.
    domain, _, kind = node.operator.rpartition(":")
    return helper.make_node(kind, inputs, outputs, domain=domain, **attributes)


def _port(name: str, value: Value) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(
        name, ONNX_TYPES[value.dtype.name], value.shape
    )


def _initializer(name: str, array: np.ndarray[Any, Any]) -> Any:
    from onnx import TensorProto

    return TensorProto(
        name=name,
        dims=array.shape,
        data_type=ONNX_TYPES[array.dtype.name],
        raw_data=array.tobytes(),
    )


def _outside(name: str, value: Value) -> Any:
    """Add an initializer whose data comes from a variable when the graph is loaded."""
    from onnx import TensorProto

    tensor = TensorProto(
        name=name, dims=value.shape, data_type=ONNX_TYPES[value.dtype.name]
    )
    tensor.data_location = TensorProto.EXTERNAL
    size = value.size * value.dtype.itemsize
    for key, entry in (("location", name), ("offset", "0"), ("length", str(size))):
        added = tensor.external_data.add()
        added.key, added.value = key, entry
    return tensor
