"""A plan for the decoding process: how pictures become the numbers of one input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

CHANNELS: Final = {"RGB": 3, "BGR": 3, "L": 1}


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The work of the decoding process on a picture, sent along with it.

    `table` has the value of each of 256 shades, for each channel, as bytes of `dtype`.
    """

    height: int
    width: int
    mode: str
    channels_first: bool
    resize: str
    shorter: int
    resample: str
    fill: int
    orientation: bool
    max_pixels: int
    timeout: float
    dtype: str
    table: bytes

    @property
    def channels(self) -> int:
        return CHANNELS[self.mode]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the numbers of one picture."""
        size = self.height * self.width * self.channels
        return size * np.dtype(self.dtype).itemsize

    def message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> DecodePlan:
        return cls(**message)
