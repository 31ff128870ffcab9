"""Messages between the supervisor and its workers, mainly about models to run.

They are msgpack documents over a socket that keeps message borders, with descriptors
beside them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import msgpack

from app.repository.formats import SharedFormat, SharedScheduler
from app.serving.ensemble_graph import EnsembleGraph, Face, Step
from app.serving.ensembles import face_of
from app.serving.generators import GeneratorScheduler
from app.serving.table import ModelEntry
from app.spec import ModelSpec, TensorSpec
from engine import RunnerDescription, Tensor, receive_message
from popef_io import DataType

Message = dict[str, Any]

#: The most bytes of a message.
MOST = 160 * 1024


class TooLong(Exception):
    """The message exceeds the length limit."""


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Raise `TooLong`, and OSError as sockets do."""
    raw = msgpack.packb(message)
    if len(raw) > MOST:
        raise TooLong
    socket.send_fds(sock, [raw], list(fds))


def receive(sock: socket.socket, flags: int = 0) -> tuple[Message, list[int]]:
    """Return the next message and its descriptors, which the caller closes.

    Raises as `engine.receive_message`.
    """
    return receive_message(sock, MOST, flags)


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class SharedEnsemble:
    """An ensemble, and the tensors of its members."""

    graph: EnsembleGraph
    members: tuple[ModelSpec, ...]

    def compose(self, members: Sequence[ModelSpec]) -> EnsembleGraph:
        """Return the same graph for equal members. Raises ValueError."""
        if list(map(face_of, members)) != list(map(face_of, self.members)):
            raise ValueError("the members take or return other tensors than before")
        return self.graph

    def to_message(self) -> Message:
        graph = self.graph
        return {
            "spec": _spec_message(graph.spec),
            "steps": list(map(astuple, graph.steps)),
            "faces": [list(map(astuple, f)) for f in (graph.inputs, graph.outputs)],
            "members": list(map(_spec_message, self.members)),
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> SharedEnsemble:
        inputs, outputs = (
            tuple(Face(*map(_frozen, face)) for face in faces)
            for faces in message["faces"]
        )
        steps = tuple(Step(*map(_frozen, step)) for step in message["steps"])
        graph = EnsembleGraph(_spec_of(message["spec"]), steps, inputs, outputs)
        return cls(graph, tuple(map(_spec_of, message["members"])))


def _frozen(value: Any) -> Any:
    """Return lists from msgpack as the original tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class SharedEntry:
    """A version of a model that workers run.

    `key` is unique for each load, so a worker's runner belongs to one load only.
    `block` is its block of counters. `timeout`, `max_timeout` and `level_timeouts` are
    those of the `ModelEntry`. `generator` has all tensors of a model that gives several
    responses. `format` describes the scheduler of a plugin's format.
    """

    key: int
    block: int
    spec: ModelSpec
    runner: RunnerDescription | SharedEnsemble
    timeout: float | None = None
    max_timeout: float | None = None
    level_timeouts: Mapping[int, float | None] | None = None
    generator: ModelSpec | None = None
    format: SharedFormat | None = None

    @classmethod
    def of(
        cls,
        key: int,
        block: int,
        entry: ModelEntry,
        runner: RunnerDescription | SharedEnsemble,
    ) -> SharedEntry:
        scheduler = entry.scheduler
        return cls(
            key,
            block,
            entry.spec,
            runner,
            entry.timeout,
            entry.max_timeout,
            entry.level_timeouts,
            scheduler.spec if isinstance(scheduler, GeneratorScheduler) else None,
            scheduler.shared if isinstance(scheduler, SharedScheduler) else None,
        )

    def to_message(self) -> Message:
        return {
            "key": self.key,
            "block": self.block,
            "spec": _spec_message(self.spec),
            "runner": self.runner.to_message(),
            "is_ensemble": isinstance(self.runner, SharedEnsemble),
            "timeouts": [self.timeout, self.max_timeout],
            "levels": [list(item) for item in (self.level_timeouts or {}).items()],
            "generator": self.generator and _spec_message(self.generator),
            "format": self.format and _format_message(self.format),
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> SharedEntry:
        timeout, max_timeout = message["timeouts"]
        generator, format_ = message["generator"], message["format"]
        kind = SharedEnsemble if message["is_ensemble"] else RunnerDescription
        return cls(
            message["key"],
            message["block"],
            _spec_of(message["spec"]),
            kind.from_message(message["runner"]),
            timeout,
            max_timeout,
            dict(message["levels"]),
            generator and _spec_of(generator),
            format_
            and SharedFormat(
                format_["name"], _spec_of(format_["spec"]), format_["description"]
            ),
        )


def _format_message(shared: SharedFormat) -> Message:
    return {
        "name": shared.format,
        "spec": _spec_message(shared.spec),
        "description": dict(shared.description),
    }


def _spec_message(spec: ModelSpec) -> Message:
    return {
        "name": spec.name,
        "version": spec.version,
        "inputs": list(map(_tensor_message, spec.inputs)),
        "outputs": list(map(_tensor_message, spec.outputs)),
        "rows": [spec.max_batch_size, spec.max_rows, spec.optional_inputs],
        "aliases": dict(spec.aliases),
        "defaults": [
            [name, t.data_type.name, list(t.shape), t.tobytes()]
            for name, t in spec.defaults.items()
        ],
    }


def _spec_of(message: Mapping[str, Any]) -> ModelSpec:
    most, most_rows, optional = message["rows"]
    return ModelSpec(
        message["name"],
        message["version"],
        tuple(map(_tensor_of, message["inputs"])),
        tuple(map(_tensor_of, message["outputs"])),
        most,
        most_rows,
        optional,
        {
            name: Tensor(DataType[data_type], tuple(shape), (raw,), len(raw))
            for name, data_type, shape, raw in message["defaults"]
        },
        message["aliases"],
    )


def _tensor_message(tensor: TensorSpec) -> list[object]:
    shape = None if tensor.shape is None else list(tensor.shape)
    return [tensor.name, tensor.datatype, shape, list(tensor.labels), tensor.multiple]


def _tensor_of(message: Sequence[Any]) -> TensorSpec:
    name, datatype, shape, labels, multiple = message
    plain = TensorSpec.make(name, datatype, shape)
    return TensorSpec(
        plain.name,
        plain.datatype,
        plain.data_type,
        plain.shape,
        tuple(labels),
        multiple,
    )
