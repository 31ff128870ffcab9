"""Which anchors of a model a request carries, and which data the device has itself.

Client and device work it out from the same file with the same functions, so the order
of the rings of a channel needs no negotiation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.errors import UnknownAnchor
from engine.tensor import DataDesc
from popef_io import Anchor, Model, TensorType

#: Metadata options written by `popgate compile`.
OPTION_BATCHING = "popgate.batching"
OPTION_BATCH_SIZE = "popgate.batch_size"
OPTION_MAX_BATCH = "popgate.max_batch_size"
BATCHING_ROWS = "rows"
#: Which model each value of the choosing input selects.
OPTION_FUSED = "popgate.fused"


@dataclass(frozen=True, slots=True)
class MainAnchors:
    """The anchors of the main programs.

    `inputs` and `outputs` are what a request carries (Model Runtime: execute inputs
    and outputs); `constants` are inputs whose data is in the file or frozen.
    """

    inputs: tuple[Anchor, ...]
    outputs: tuple[Anchor, ...]
    constants: tuple[Anchor, ...]


def main_anchors(model: Model, frozen: Collection[str] = ()) -> MainAnchors:
    """Sort the anchors of the main programs; UnknownAnchor for a bad frozen name."""
    metadata = model.metadata
    main = set(metadata.program_flow.main)
    named = {anchor.name for anchor in metadata.anchors if _is_input(anchor)}
    unknown = sorted(set(frozen) - named)
    if unknown:
        raise UnknownAnchor(
            f"frozen_inputs names {unknown[0]!r}, which is no input of the model; "
            f"its inputs are {sorted(named)}"
        )
    inputs: list[Anchor] = []
    outputs: list[Anchor] = []
    constants: list[Anchor] = []
    for anchor in metadata.anchors:
        if anchor.programs and main.isdisjoint(anchor.programs):
            continue
        if anchor.type is TensorType.OUTPUT:
            outputs.append(anchor)
        elif anchor.type is TensorType.INPUT:
            given = anchor.name in frozen or anchor.name in model.tensors
            given = given or anchor.name in model.feeds
            (constants if given else inputs).append(anchor)
    return MainAnchors(tuple(inputs), tuple(outputs), tuple(constants))


def describe(anchor: Anchor, *, has_data: bool = False) -> DataDesc:
    """The descriptor of an anchor (Model Runtime: `DataDesc`)."""
    info = anchor.tensor_info
    return DataDesc(anchor.name, info.shape, info.data_type, has_data)


def _is_input(anchor: Anchor) -> bool:
    return anchor.type is TensorType.INPUT
