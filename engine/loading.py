"""Loading a model in a device process: from its bytes to replicas that can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.anchors import main_anchors
from engine.batch import AnchorTable, Waiter
from engine.executable import Executable
from engine.executor import Executor
from engine.model_data import ModelData, ProgramStreams
from engine.model_file import receive_model
from engine.replica import BatchingPolicy, Replica
from engine.save_programs import SavePrograms
from engine.tensor_pack import unpack_tensors
from popef_io import Anchor, Model


@dataclass(frozen=True, slots=True)
class LoadedReplica:
    """A replica that takes requests, and the save programs over the same variables."""

    replica: Replica
    save: SavePrograms


def load_replicas(
    numbers: Sequence[int],
    message: Mapping[str, Any],
    fds: Sequence[int],
    wait_room: Waiter,
) -> list[LoadedReplica]:
    """Carry out a `load` message: map the files, load, run the load programs.

    One replica for each of `numbers`. They share the graphs and the weights, and have
    variables and places in feeds of their own, which begin alike.
    """
    names = [str(name) for name in message["sources"]]
    model = receive_model(names, fds, message.get("executable"))
    frozen = {}
    if message["frozen"] is not None:
        tensors = unpack_tensors(message["frozen"], fds[len(names)])
        frozen = {name: tensor.numpy() for name, tensor in tensors.items()}
    data = ModelData(model, frozen)
    executor = _executor(model, message)
    try:
        executor.run(model.metadata.program_flow.load, ProgramStreams(data))
        anchors = main_anchors(model, frozen.keys())
        for anchor in anchors.constants:
            data.check(anchor.handle)
        twins = [(executor.clone(), data.twin()) for _ in numbers[1:]]
    except BaseException:
        executor.close()
        raise
    return [
        _replica(number, model, message, frozen, mine, wait_room)
        for number, mine in zip(numbers, [(executor, data), *twins], strict=True)
    ]


def _executor(model: Model, message: Mapping[str, Any]) -> Executor:
    return Executor(
        Executable.decode(
            model.executable.executable(),
            check_digests=bool(message.get("check_package_hash", True)),
        ),
        model.metadata,
        threads=int(message["threads"]),
        providers=tuple(message.get("providers", ("CPUExecutionProvider",))),
    )


def _replica(
    number: int,
    model: Model,
    message: Mapping[str, Any],
    frozen: Mapping[str, Any],
    mine: tuple[Executor, ModelData],
    wait_room: Waiter,
) -> LoadedReplica:
    executor, data = mine
    anchors = main_anchors(model, frozen.keys())
    replica = Replica(
        number,
        str(message["name"]),
        executor,
        model.metadata.program_flow.main,
        AnchorTable(anchors.inputs, anchors.outputs, data),
        BatchingPolicy(
            max_rows=int(message["max_rows"]),
            batch_size=int(message["batch_size"]),
            delay_ns=int(message["delay_ns"]),
            preferred=tuple(map(int, message.get("preferred", ()))),
            same_shapes=any(_free_tail(a) for a in anchors.inputs),
        ),
        wait_room,
    )
    return LoadedReplica(replica, SavePrograms(executor, model.metadata, data))


def _free_tail(anchor: Anchor) -> bool:
    shape = anchor.tensor_info.shape
    return shape is None or any(dim < 0 for dim in shape[1:])
