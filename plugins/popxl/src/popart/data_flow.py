"""Streams that enter and leave a program in one run."""

# ruff: noqa: N802, N803 - the names are the original's
from __future__ import annotations

from collections.abc import Mapping


class AnchorReturnType:
    """Choice of the tensors of a stream that are returned."""

    def __init__(self, value: str, period: int = 1) -> None:
        self.value = value
        self.period = period


class DataFlow:
    """Inputs and outputs of a run; here the streams define them."""

    def __init__(
        self,
        batchesPerStep: int = 1,
        anchorTensors: Mapping[str, AnchorReturnType] | None = None,
    ) -> None:
        self._batches = int(batchesPerStep)
        self.anchor_types = dict(anchorTensors or {})
        """How each anchored stream is returned, by its id."""

    def batchesPerStep(self) -> int:
        """Return the number of transfers of one run."""
        return self._batches

    def anchors(self) -> list[str]:
        """Return the ids of streams."""
        return list(self.anchor_types)
