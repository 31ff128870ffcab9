"""``[ragged]`` of a model's ``config.toml``: rows of different lengths in one batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Strict

from app.config.config_keys import between, checked, key, section


def _inputs(value: Any) -> Mapping[str, float]:
    if not isinstance(value, dict) or not all(
        isinstance(pad, int | float)
        and not isinstance(pad, bool)
        and abs(pad) <= sys.float_info.max
        for pad in value.values()
    ):
        raise ValueError("a table of input name to a number, the padding value")
    return value


@section
@dataclass(frozen=True, slots=True)
class RaggedConfig:
    """Inputs with a length that padding does not change, and limits of padding."""

    enabled: Annotated[bool, Strict()] = key(
        True, "whether the device runs rows of different lengths together"
    )
    inputs: Annotated[Mapping[str, float], checked(_inputs)] = key(
        dict, "inputs whose second axis is the length, with their padding values"
    )
    max_batch_tokens: Annotated[int, between(0, 1 << 24)] = key(
        0, "limit of rows times longest length in a batch; 0: the device's own limit"
    )
    max_padding: Annotated[float, between(0, 0.9)] = key(
        0.1, "largest part of a batch that may be padding"
    )
