"""Loading a model in a device process: from files to a replica that can run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.anchors import main_anchors
from engine.batch import AnchorTable, ClientChannel
from engine.channel import AnchorRing
from engine.errors import InvalidModel
from engine.executable import Executable
from engine.executor import Executor
from engine.model_file import open_model
from engine.replica import BatchingPolicy, Replica
from engine.tensor import Array, Tensor
from popef_io import Anchor, DataType, Model, TensorType, map_descriptor


class LoadStreams:
    """The streams of the load programs: the file's data, or what was frozen over it."""

    def __init__(self, model: Model, frozen: Mapping[str, Array]) -> None:
        self._by_handle = {
            a.handle: a for a in model.metadata.anchors if a.type is TensorType.INPUT
        }
        self._model = model
        self._frozen = frozen

    def read(self, handle: str) -> Array:
        anchor = self._by_handle.get(handle)
        if anchor is None:
            raise InvalidModel(f"a load program reads unknown stream {handle!r}")
        return data_of(self._model, anchor, self._frozen)

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        return None

    def write(self, handle: str, value: Array) -> None:
        """Outputs of load programs have no reader."""


def data_of(model: Model, anchor: Anchor, frozen: Mapping[str, Array]) -> Array:
    """The data of an input that requests do not carry; the frozen value wins."""
    if anchor.name in frozen:
        return frozen[anchor.name]
    try:
        reader = model.tensors[anchor.name]
    except KeyError:
        raise InvalidModel(
            f"no data for {anchor.name!r}: neither the file nor frozen_inputs has it"
        ) from None
    return reader.data()


def load_replica(
    number: int,
    message: Mapping[str, Any],
    fds: Sequence[int],
    wait_room: Callable[[ClientChannel, AnchorRing, int], int],
) -> Replica:
    """Carry out a `load` message: open the files, load, run the load programs."""
    paths = [str(path) for path in message["paths"]]
    model = open_model(paths, message.get("executable"))
    frozen = _frozen(message.get("frozen", []), fds)
    anchors = main_anchors(model, frozen.keys())
    metadata = model.metadata
    executor = Executor(
        Executable.decode(
            model.executable.executable(),
            check_digests=bool(message.get("check_package_hash", True)),
        ),
        metadata,
        threads=int(message["threads"]),
        providers=tuple(message.get("providers", ("CPUExecutionProvider",))),
    )
    try:
        executor.run(metadata.program_flow.load, LoadStreams(model, frozen))
        constants = {
            anchor.handle: data_of(model, anchor, frozen)
            for anchor in anchors.constants
        }
    except BaseException:
        executor.close()
        raise
    return Replica(
        number,
        str(message["name"]),
        executor,
        metadata.program_flow.main,
        AnchorTable(anchors.inputs, anchors.outputs, constants),
        BatchingPolicy(
            max_rows=int(message["max_rows"]),
            batch_size=int(message["batch_size"]),
            delay_ns=int(message["delay_ns"]),
            same_shapes=any(_free_tail(a) for a in anchors.inputs),
        ),
        wait_room,
    )


def _free_tail(anchor: Anchor) -> bool:
    shape = anchor.tensor_info.shape
    return shape is None or any(dim < 0 for dim in shape[1:])


def _frozen(table: Sequence[Sequence[Any]], fds: Sequence[int]) -> dict[str, Array]:
    if not table:
        return {}
    size = os.fstat(fds[0]).st_size
    memory = map_descriptor(fds[0], size)
    arrays = {}
    for row in table:
        name, data_type, shape, offset, nbytes = row
        part = memory[offset : offset + nbytes]
        tensor = Tensor(DataType[data_type], tuple(shape), (part,), nbytes)
        arrays[str(name)] = tensor.numpy()
    return arrays
