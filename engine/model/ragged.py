"""Rows of different lengths: which axes of a model are lengths, and how much padding is
allowed to run rows together.

The compiler writes its findings into the file. The
runner makes a `RaggedPlan` from them and sends it to the device process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from engine.errors import InvalidModel
from popef_io import DataType

#: Metadata options that the compiler writes: a `ShownLengths`, and the reason for or
#: against it.
OPTION_RAGGED: Final = "popgate.ragged"
OPTION_RAGGED_REASON: Final = "popgate.ragged_reason"
#: The axis of the inputs that is the length.
LENGTH_AXIS: Final = 1
#: The most elements along the length axis in a batch, on a processor and on other
#: devices. More elements slow a processor down, but other devices need many to be busy.
PROCESSOR_TOKENS: Final = 256
DEVICE_TOKENS: Final = 8192
#: The part of a batch that may be padding.
MAX_PADDING: Final = 0.1


@dataclass(frozen=True, slots=True)
class ShownLengths:
    """Inputs with their padding values, and the axes of each output that are lengths.

    An output without such an axis has the value `()`.
    """

    inputs: Mapping[str, float]
    outputs: Mapping[str, tuple[int, ...]]

    def to_text(self) -> str:
        """Return the value of the metadata option."""
        outputs = {name: list(axes) for name, axes in self.outputs.items()}
        return json.dumps({"inputs": dict(self.inputs), "outputs": outputs})

    @classmethod
    def from_text(cls, text: str) -> ShownLengths:
        """Return the inverse of `to_text`. Raises InvalidModel."""
        try:
            found = json.loads(text)
            return cls(
                {str(name): float(pad) for name, pad in found["inputs"].items()},
                {
                    str(name): tuple(int(axis) for axis in axes)
                    for name, axes in found["outputs"].items()
                },
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise InvalidModel(f"the option {OPTION_RAGGED} of the file: {e}") from None


@dataclass(frozen=True, slots=True)
class RaggedPlan:
    """Rules for running rows of different length together.

    `pads` are the padding values of the inputs, in the order of their anchors. The
    value is None for an input that has no length. `cuts` are the axes of each output
    that are lengths. `max_tokens` limits rows times the longest length (0: the device's
    own limit). `max_padding` limits the padded part. `optional` are the numbers of
    outputs that a request receives only if it wants them (`WANTS_ALL`). Otherwise its
    rows of them have length 0.
    """

    pads: tuple[float | None, ...]
    cuts: tuple[tuple[int, ...], ...]
    max_tokens: int = 0
    max_padding: float = MAX_PADDING
    optional: tuple[int, ...] = ()

    def tokens_on(self, providers: Sequence[str]) -> int:
        """Return the limit of tokens for a device with these providers."""
        if self.max_tokens:
            return self.max_tokens
        plain = not providers or providers[0] == "CPUExecutionProvider"
        return PROCESSOR_TOKENS if plain else DEVICE_TOKENS

    def to_message(self) -> list[object]:
        cuts = [list(axes) for axes in self.cuts]
        optional = list(self.optional)
        return [list(self.pads), cuts, self.max_tokens, self.max_padding, optional]

    @classmethod
    def from_message(cls, message: Sequence[Any]) -> RaggedPlan:
        pads, cuts, max_tokens, max_padding, optional = message
        return cls(
            tuple(None if pad is None else float(pad) for pad in pads),
            tuple(tuple(int(axis) for axis in axes) for axes in cuts),
            int(max_tokens),
            float(max_padding),
            tuple(int(index) for index in optional),
        )


def padding_of(data_type: DataType, value: float) -> float:
    """Return a padding value in the form that arrays use: BF16 is stored as unsigned
    numbers.
    """
    if data_type is DataType.BF16:
        return int(np.float32(value).view(np.uint32)) >> 16
    return value
