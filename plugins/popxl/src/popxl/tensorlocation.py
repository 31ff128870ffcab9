"""Where tensors and operators are."""

from __future__ import annotations

from enum import Enum

from popart.enums import ExecutionContext as ExecutionContext
from popart.enums import TileSet as TileSet


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
