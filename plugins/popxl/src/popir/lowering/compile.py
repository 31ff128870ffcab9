"""An Ir in runnable form: executable, metadata, and the meaning of each stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.programs import Executable, Node, Steps, StreamIn, StreamOut
from popef_io import Anchor, Metadata, ProgramFlow, TensorInfo, TensorType
from popir.aliases import check_order
from popir.errors import IrError
from popir.exchanges import ExchangeStreams, RemoteStore
from popir.ir import Ir, IrTensor, Operator
from popir.lowering.assembly import Assembly, data_type_of
from popir.lowering.lower import (
    Lowered,
    Lowering,
    argument_handle,
    input_handle,
    result_handle,
    weight_handle,
)

#: The programs of a PopXL executable: weights from host, the run, weights to host.
LOAD, MAIN, SAVE = 0, 5, 7


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled Ir. Immutable; keeps the tensors that it names."""

    executable: Executable
    metadata: Metadata
    variables: tuple[IrTensor, ...]
    """Variables that something reads or writes."""
    written: frozenset[IrTensor]
    """Variables that a run may change."""
    inputs: Mapping[str, IrTensor]
    """Stream handle to the tensor of the stream."""
    outputs: Mapping[str, IrTensor]
    prints: Mapping[str, Operator]
    """Stream handle to the operator that prints its values."""
    functions: Mapping[str, Operator]
    """Name to the operator that is a function of NumPy arrays."""
    scales: Mapping[str, IrTensor]
    """Stream handle to a scale of float8 to check."""
    remote: tuple[IrTensor, ...]
    """Variables that are rows of remote buffers."""
    ends: ExchangeStreams
    """Streams that the caller does not serve."""
    replicas: int
    """Replicas of this instance."""


def compile_ir(
    ir: Ir,
    *,
    check: bool = True,
    host_effects: bool = True,
    check_scales: bool = False,
    transfers: int | None = None,
    replicas: int = 1,
    instances: int = 1,
    alike: bool | None = None,
) -> Program:
    """Lower `ir`.

    check: refuse programs whose result depends on an order that nothing fixes.
    host_effects: make streams for effects in the caller's process (printing). replicas:
    the number that run it together in each of `instances` processes. alike: all
    replicas have the same weights, so graphs may contain them; default: true for a
    single replica. check_scales: make streams for the scales of float8, which the
    caller's process checks. Raises IrError if the program is wrong, NotYet for
    unsupported features.
    """
    if not any(graph.operators for graph in ir.reachable()):
        raise IrError("the Ir has no graphs, so it has no operator to run")
    if check:
        for graph in ir.reachable():
            check_order(graph)
    _check_groups(ir, replicas * instances)
    lowered = Lowering(ir, host_effects, check_scales).run()
    around = [lowered.from_host, lowered.to_host]
    is_alike = replicas * instances == 1 if alike is None else alike
    assembly = Assembly(lowered.variables, lowered.region, around, is_alike)
    main = assembly.program(lowered.region)
    after_load, before_save = map(assembly.program, around)
    tensors = ir.main.tensors
    ids = list(lowered.variables)
    programs: dict[int, Node] = {
        LOAD: Steps((*(StreamIn(input_handle(i), i) for i in ids), *after_load.nodes)),
        MAIN: main,
        SAVE: Steps(
            (*before_save.nodes, *(StreamOut(i, weight_handle(i)) for i in ids))
        ),
    }
    executable = assembly.executable(programs)
    remote = tuple(
        t
        for t in tensors.values()
        if t.kind == "variable" and t.placement.buffer is not None
    )
    return Program(
        executable,
        metadata_of(ir, lowered, ids, transfers or ir.transfers),
        tuple(tensors[i] for i in ids),
        frozenset(tensors[i] for i in assembly.written) | _stored(lowered, remote),
        lowered.inputs,
        lowered.outputs,
        lowered.prints,
        lowered.functions,
        lowered.scales,
        remote,
        lowered.ends,
        replicas,
    )


def _stored(lowered: Lowered, remote: tuple[IrTensor, ...]) -> frozenset[IrTensor]:
    """Return the remote variables that may be stored."""
    stores = [e for e, _ in lowered.ends.sent.values() if isinstance(e, RemoteStore)]
    return frozenset(
        t
        for t in remote
        for store in stores
        if t.placement.buffer is store.buffer
        and store.offset in (None, t.placement.offset)
    )


def _check_groups(ir: Ir, replicas: int) -> None:
    """Raise IrError if groups have another number of replicas."""
    of_variables = [
        (t.id, t.placement.groups)
        for t in ir.main.tensors.values()
        if t.kind == "variable"
    ]
    of_operators = [
        (str(op), op.attributes.get("members"))
        for graph in ir.reachable()
        for op in graph.operators
    ]
    for name, groups in (*of_variables, *of_operators):
        if groups is not None and groups.num_replicas != replicas:
            raise IrError(
                f"{name} has groups of {groups.num_replicas} replicas, but the "
                f"Ir has {replicas}"
            )


def metadata_of(
    ir: Ir, lowered: Lowered | Program, ids: Sequence[str], transfers: int
) -> Metadata:
    """Return the metadata of a program. ids: of its variables."""
    tensors = ir.main.tensors
    anchors = [
        *(
            _anchor(tensor, handle, TensorType.INPUT, MAIN)
            for handle, tensor in lowered.inputs.items()
        ),
        *(
            _anchor(tensor, handle, TensorType.OUTPUT, MAIN)
            for handle, tensor in lowered.outputs.items()
        ),
        *(
            _anchor(operator.outputs[0], handle, TensorType.OUTPUT, MAIN)
            for handle, operator in lowered.prints.items()
        ),
        *(
            _named(tensor, handle, TensorType.OUTPUT)
            for handle, tensor in lowered.scales.items()
        ),
    ]
    for name, operator in lowered.functions.items():
        for number, tensor in enumerate(operator.inputs):
            handle = argument_handle(name, number)
            anchors.append(_named(tensor, handle, TensorType.OUTPUT))
        for number, tensor in enumerate(operator.outputs):
            handle = result_handle(name, number)
            anchors.append(_named(tensor, handle, TensorType.INPUT))
    for id_ in ids:
        tensor = tensors[id_]
        load, save = input_handle(id_), weight_handle(id_)
        anchors.append(_anchor(tensor, load, TensorType.INPUT, LOAD))
        anchors.append(_anchor(tensor, save, TensorType.OUTPUT, SAVE))
    return Metadata(
        executable="popxl",
        anchors=tuple(anchors),
        program_flow=ProgramFlow(load=(LOAD,), main=(MAIN,)),
        programs_map={LOAD: "WeightsFromHost", MAIN: "Program", SAVE: "WeightsToHost"},
        device_iterations=transfers,
    )


def _named(tensor: IrTensor, handle: str, kind: TensorType) -> Anchor:
    """Return an anchor with the name of its stream, because several may show one
    tensor.
    """
    return replace(_anchor(tensor, handle, kind, MAIN), name=handle)


def _anchor(tensor: IrTensor, handle: str, kind: TensorType, program: int) -> Anchor:
    info = TensorInfo(tensor.shape, data_type_of(tensor.dtype.carrier))
    return Anchor(tensor.id, handle, info, kind, (program,))
