"""Description of a loaded model for a process that feeds its replicas.

The owner of the replicas makes it (`ModelRunner.description`). A `JoinedRunner` is made
from it. Both use it to open their channels (replica_lines.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.config import ModelRunnerConfig
from engine.model.batch_plan import BatchPlan
from engine.model.interface import ModelInterface
from engine.tensor import DataDesc
from engine.transport.channel import ChannelLayout
from popef_io import DataType

#: Longer waits for rows of other requests hide how fast a replica is.
LONG_WAIT_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class RunnerDescription:
    """A loaded model.

    `replicas` are pairs of a device and the replica's number there, in order. At most
    `max_queue_size` requests may wait in one replica. `priority_queue_sizes` limits
    single levels. `measured` is set if requests do not wait long to run together. Only
    then are running times measured. With `moves`, requests that wait for one replica
    may move to another. `run_timeout` is the time limit of a run in seconds, 0 for
    none.
    """

    name: str
    inputs: tuple[DataDesc, ...]
    outputs: tuple[DataDesc, ...]
    batches: BatchPlan
    layout: ChannelLayout
    max_queue_size: int
    priority_levels: int = 0
    default_level: int = 0
    priority_queue_sizes: Mapping[int, int] = field(default_factory=dict)
    measured: bool = True
    moves: bool = False
    replicas: tuple[tuple[str, int], ...] = ()
    run_timeout: float = 0.0

    @classmethod
    def of(
        cls,
        name: str,
        interface: ModelInterface,
        config: ModelRunnerConfig,
        longest_wait_ns: int,
    ) -> RunnerDescription:
        """Make the description of a model that is not loaded yet."""
        batches = interface.batches
        return cls(
            name,
            interface.inputs,
            interface.outputs,
            batches,
            interface.layout(config),
            config.max_queue_size,
            config.priority_levels,
            config.default_level,
            dict(config.priority_queue_sizes),
            not (batches.run_units > 1 and longest_wait_ns > LONG_WAIT_NS),
            run_timeout=float(config.run_timeout),  # users may set an integer
        )

    def shared(self, clients: int) -> RunnerDescription:
        """Return the description for one of `clients` clients. All their queues
        together are as long as the original queue.
        """
        return replace(
            self,
            max_queue_size=-(-self.max_queue_size // clients),
            priority_queue_sizes={
                level: -(-size // clients)
                for level, size in self.priority_queue_sizes.items()
            },
        )

    def limit_of(self, priority: int) -> int:
        """Return how many requests of a level may wait in a replica. 0 means no
        separate limit.
        """
        return self.priority_queue_sizes.get(priority, self.max_queue_size)

    def to_message(self) -> dict[str, object]:
        """Return the description as a value for msgpack."""
        return {
            "name": self.name,
            "inputs": list(map(_desc_message, self.inputs)),
            "outputs": list(map(_desc_message, self.outputs)),
            "batches": self.batches.to_message(),
            "layout": self.layout.to_message(),
            "queue": self.max_queue_size,
            "levels": [self.priority_levels, self.default_level],
            "queues": [[n, size] for n, size in self.priority_queue_sizes.items()],
            "measured": self.measured,
            "moves": self.moves,
            "replicas": [list(replica) for replica in self.replicas],
            "run_timeout": self.run_timeout,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> RunnerDescription:
        levels, default = message["levels"]
        return cls(
            str(message["name"]),
            tuple(map(_desc_of, message["inputs"])),
            tuple(map(_desc_of, message["outputs"])),
            BatchPlan.from_message(message["batches"]),
            ChannelLayout.from_message(message["layout"]),
            int(message["queue"]),
            int(levels),
            int(default),
            {int(n): int(size) for n, size in message["queues"]},
            bool(message["measured"]),
            bool(message["moves"]),
            tuple((str(d), int(number)) for d, number in message["replicas"]),
            float(message["run_timeout"]),
        )


def _desc_message(desc: DataDesc) -> list[object]:
    shape = None if desc.shape is None else list(desc.shape)
    return [desc.name, shape, desc.data_type.name, desc.multiple]


def _desc_of(message: Sequence[Any]) -> DataDesc:
    name, shape, data_type, multiple = message
    dims = None if shape is None else tuple(map(int, shape))
    return DataDesc(str(name), dims, DataType[data_type], multiple=int(multiple))
