"""A program as a PopEF file that devices run and the gateway serves.

Names, numbers and anchors are those of the original's files. The programs are 0
(weights from host), 5 (the program) and 7 (weights to host). Anchors have the ids of
tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from popir.dtypes import Array, to_carrier
from popir.errors import IrError, NotYet
from popir.ir import Ir, IrTensor

if TYPE_CHECKING:
    from popef_io import Anchor, Metadata
    from popgate_onnx.compiler import BatchDecision, CompileReport
    from popir.lowering.compile import Program


#: The opaque blob of an executable that only sessions run.
EXECUTABLE = "popir.executable"


class HasIr(Protocol):
    """Interface of an object that wraps an Ir, for example `popxl.Ir`."""

    @property
    def _below(self) -> Ir: ...


def export_popef(
    program: Ir | HasIr,
    target: str | Path,
    *,
    name: str = "",
    batch: Literal["auto", "off"] = "auto",
    user_metadata: Mapping[str, str] | None = None,
    description: str = "",
    check_order: bool = True,
    threads: int = 1,
) -> CompileReport:
    """Write `program` to `target`, which it replaces.

    Variables have the values of the host's copies. These contain the changes of an
    attached session only after `weights_to_host`. Inputs and outputs have the names of
    the tensors of their streams. Print operators are left out.

    name: of the executable; empty: a hash of the program. batch: auto: rows of
    different requests share a run if a check proves that they may; off: never. Raises
    IrError if the program is wrong, NotYet for features that do not run yet, OSError if
    the file cannot be written.
    """
    from popef_io import TensorType
    from popgate_onnx.compiler import BatchDecision, CompileReport, TensorReport
    from popir.lowering.compile import MAIN

    ir = program if isinstance(program, Ir) else program._below
    compiled, is_whole = compile_whole(ir, check_order)
    if is_whole:
        decision = BatchDecision(False, 0, "replicas exchange values, or rows last")
    else:
        decision = _rows(compiled, batch, threads)
    content = compiled.executable.encode()
    rest = _rest(ir, compiled)
    metadata = _metadata(
        compiled.metadata,
        name or _hash_of(content, compiled.metadata),
        decision,
        [_unstreamed(t) for t in rest],
        {**(user_metadata or {})},
        description,
        keeps_state=_keeps_state(ir, compiled),
    )
    data = {t.id: _data(t) for t in (*compiled.variables, *rest)}
    _write(Path(target), metadata, content, data, _about())
    anchors = [a for a in metadata.anchors if MAIN in a.programs]
    inputs, outputs = (
        tuple(TensorReport(a.name, a.tensor_info) for a in anchors if a.type is kind)
        for kind in (TensorType.INPUT, TensorType.OUTPUT)
    )
    total = sum(array.nbytes for array in data.values())
    size = Path(target).stat().st_size
    return CompileReport(
        Path(target), inputs, outputs, decision, len(data), total, size
    )


def compile_whole(ir: Ir, check_order: bool = True) -> tuple[Program, bool]:
    """Return a program that a device runs by itself, and whether all replicas are in
    it.

    Replicas that neither differ nor exchange anything are merged into one, whose
    requests bring rows. Others are all in the program: host arrays have an axis of
    replicas.
    """
    from popir.lowering.compile import compile_ir
    from popir.lowering.unrolled import unrolled

    if getattr(ir.options, "enableDistributedReplicatedGraphs", False):
        raise NotYet(
            "a program of several instances cannot be written to a file; make "
            "the Ir with a number of replicas instead of 'popdist'"
        )
    replicas = int(getattr(ir.options, "replicatedGraphCount", 1))

    def compiled(alike: bool) -> Program:
        return compile_ir(
            ir, check=check_order, host_effects=False, replicas=replicas, alike=alike
        )

    plain = compiled(True)
    ends = plain.ends
    differs = replicas > 1 and (plain.written or any(map(_differs, plain.variables)))
    if ends.sent or ends.received or plain.remote or differs:
        return unrolled(compiled(False)), True
    return replace(plain, replicas=1), False


def _differs(variable: IrTensor) -> bool:
    """Return whether replicas have different values of a variable."""
    groups = variable.placement.groups
    several = groups is not None and groups.num_groups > 1
    return several or variable.placement.shards > 1


def package(compiled: Program, target: Path) -> None:
    """Write the program of a session for a device process; its host serves
    all streams.
    """
    content = compiled.executable.encode()
    _write(target, compiled.metadata, content, {}, _about())


def write_program(
    ir: Ir, compiled: Program, target: Path, name: str, blobs: Mapping[str, bytes]
) -> None:
    """Write a program that was compiled, with opaque `blobs` beside it.

    A program that a device cannot run by itself goes into an opaque blob, `EXECUTABLE`.
    The file then serves the whole program with all replicas and rows. If no device can
    run that, it serves nothing.
    name: of the executable. Raises IrError if it has variables that no file holds.
    """
    from popgate_onnx.compiler import BatchDecision

    served: Program | None = compiled
    ends = compiled.ends
    if compiled.replicas > 1 or ends.sent or ends.received or compiled.remote:
        blobs = {**blobs, EXECUTABLE: compiled.executable.encode()}
        try:
            served, _ = compile_whole(ir, check_order=False)
        except NotYet:
            served = None
    if served is None:
        _write(target, None, b"", {}, blobs)
        return
    rest = _rest(ir, served)
    decision = BatchDecision(False, 0, "a cached program is not checked for it")
    unstreamed = [_unstreamed(t) for t in rest]
    metadata = _metadata(
        served.metadata,
        name,
        decision,
        unstreamed,
        {},
        "",
        keeps_state=_keeps_state(ir, served),
    )
    data = {t.id: _data(t) for t in (*served.variables, *rest)}
    content = served.executable.encode()
    _write(target, metadata, content, data, {**_about(), **blobs})


def _keeps_state(ir: Ir, compiled: Program) -> bool:
    """Return whether a run may depend on the runs before it."""
    operators = (op for graph in ir.reachable() for op in graph.operators)
    return bool(compiled.written) or any(op.type == "RemoteStore" for op in operators)


def _about() -> dict[str, bytes]:
    about: dict[str, Any] = {"format": "popxl", "programs": [0, 5, 7]}
    return {"popart": json.dumps(about).encode()}


def _rows(compiled: Program, batch: str, threads: int) -> BatchDecision:
    from popgate_onnx.compiler import BatchDecision, CompileOptions, decide_rows
    from popir.lowering.compile import MAIN

    if compiled.metadata.device_iterations > 1:
        return BatchDecision(False, 0, "a run takes several transfers")
    weights = {t.id: _data(t) for t in compiled.variables if t not in compiled.written}
    options = CompileOptions(batch="off" if batch == "off" else "auto", threads=threads)
    return decide_rows(compiled.executable, MAIN, weights, options)


def _rest(ir: Ir, compiled: Program) -> list[IrTensor]:
    """Return the variables that no operator uses."""
    used = set(compiled.variables)
    return [
        t for t in ir.main.tensors.values() if t.kind == "variable" and t not in used
    ]


def _data(variable: IrTensor) -> Array:
    assert variable.data is not None
    if variable.dtype.is_complex:
        raise IrError(f"{variable.id!r} is complex, which a file cannot hold")
    return np.ascontiguousarray(to_carrier(variable.data)).reshape(variable.data.shape)


def _unstreamed(variable: IrTensor) -> Anchor:
    from popef_io import Anchor, TensorInfo, TensorType
    from popir.lowering.assembly import data_type_of

    data = _data(variable)
    info = TensorInfo(data.shape, data_type_of(data.dtype))
    return Anchor(variable.id, "", info, TensorType.UNKNOWN)


def _hash_of(content: bytes, metadata: Metadata) -> str:
    digest = hashlib.sha256(content)
    digest.update(repr((metadata.anchors, metadata.device_iterations)).encode())
    return str(int.from_bytes(digest.digest()[:8], "big"))


def _metadata(
    metadata: Metadata,
    name: str,
    decision: BatchDecision,
    unstreamed: list[Anchor],
    user: Mapping[str, str],
    description: str,
    *,
    keeps_state: bool,
) -> Metadata:
    from popef_io import Option

    options = [
        Option("popgate.batching", "rows" if decision.rows else "none"),
        Option("popgate.batch_size", str(decision.size)),
        Option("popgate.batching_reason", decision.reason),
        Option("popgate.producer", "popxl"),
        *([Option("popgate.keeps_state", "true")] if keeps_state else []),
        *([Option("popgate.description", description)] if description else []),
        *(Option(f"user.{key}", value) for key, value in user.items()),
    ]
    return replace(
        metadata,
        executable=name,
        anchors=(*metadata.anchors, *unstreamed),
        engine_options=tuple(options),
    )


def _write(
    target: Path,
    metadata: Metadata | None,
    content: bytes,
    data: Mapping[str, Array],
    blobs: Mapping[str, bytes],
) -> None:
    from popef_io import TensorDataInfo, TensorInfo, Writer
    from popir.lowering.assembly import data_type_of

    with Writer(target) as writer:
        if metadata is not None:
            writer.write(metadata)
            with writer.create_executable(metadata.executable) as blob:
                blob.write(content)
        for name, array in data.items():
            info = TensorInfo(array.shape, data_type_of(array.dtype))
            with writer.create_tensor_data(TensorDataInfo(name, info)) as blob:
                blob.write(array.reshape(-1).view(np.uint8))
        for name, about in blobs.items():
            of = "" if metadata is None else metadata.executable
            with writer.create_opaque_blob(name, of) as blob:
                blob.write(about)
