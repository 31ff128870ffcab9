"""Where tensors and operators are."""

from __future__ import annotations

from enum import Enum, IntEnum


class TileSet(IntEnum):
    """Compute tiles or tiles for exchange."""

    Compute = 0
    IO = 1
    Undefined = 2
    N = 3


class ExecutionContext(IntEnum):
    """The program that an operator belongs to."""

    Normal = 0
    AccumulateOuterFragment = 1
    WeightsFromHostFragment = 2
    WeightsToHostFragment = 3
    OptimizerFromHostFragment = 4
    Subgraph = 5


class TensorStorage(Enum):
    """On the chip, or in memory beside it."""

    OnChip = "OnChip"
    OffChip = "OffChip"


class ReplicatedTensorSharding(Enum):
    """Whether replicas hold a share each."""

    Off = "Off"
    On = "On"


class TensorLocation:
    """Where a tensor is."""

    def __init__(
        self,
        storage: TensorStorage = TensorStorage.OnChip,
        replicated_tensor_sharding: ReplicatedTensorSharding = (
            ReplicatedTensorSharding.Off
        ),
    ) -> None:
        self.storage = storage
        self.replicated_tensor_sharding = replicated_tensor_sharding
