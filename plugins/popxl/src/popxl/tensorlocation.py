"""Places of tensors and operators."""

from __future__ import annotations

from enum import Enum

from popart.enums import ExecutionContext as ExecutionContext
from popart.enums import TileSet as TileSet


class TensorStorage(Enum):
    """Storage of a tensor: on the chip, or in memory beside it."""

    OnChip = "OnChip"
    OffChip = "OffChip"


class ReplicatedTensorSharding(Enum):
    """Sharding: whether replicas hold a share each."""

    Off = "Off"
    On = "On"


class TensorLocation:
    """Place of a tensor."""

    def __init__(
        self,
        storage: TensorStorage = TensorStorage.OnChip,
        replicated_tensor_sharding: ReplicatedTensorSharding = (
            ReplicatedTensorSharding.Off
        ),
    ) -> None:
        self.storage = storage
        self.replicated_tensor_sharding = replicated_tensor_sharding
