"""Anchors with data from requests, and anchors with data in the device.

Client and device derive both from the same file with the same functions. So they agree
on the order of a channel's rings without negotiating it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from dataclasses import dataclass

from engine.errors import InvalidModel, UnknownAnchor
from engine.tensor import DataDesc
from popef_io import Anchor, Model, TensorType

#: Metadata options written by `popgate compile`.
OPTION_BATCHING = "popgate.batching"
OPTION_BATCH_SIZE = "popgate.batch_size"
OPTION_MAX_BATCH = "popgate.max_batch_size"
BATCHING_ROWS = "rows"
#: The models that the values of the selecting input choose.
OPTION_FUSED = "popgate.fused"
#: Set if runs change variables that later runs read.
OPTION_STATE = "popgate.keeps_state"
#: Prefix of the option for an output. The value is a JSON list of the output's class
#: names.
OPTION_LABELS = "popgate.labels."


@dataclass(frozen=True, slots=True)
class MainAnchors:
    """The anchors of the main programs.

    `inputs` and `outputs` are the anchors of a request (Model Runtime: execute inputs
    and outputs). `constants` are inputs whose data is in the file or frozen.
    """

    inputs: tuple[Anchor, ...]
    outputs: tuple[Anchor, ...]
    constants: tuple[Anchor, ...]


def main_anchors(model: Model, frozen: Collection[str] = ()) -> MainAnchors:
    """Sort the anchors of the main programs. Raises UnknownAnchor for an unknown frozen
    name.
    """
    metadata = model.metadata
    main = set(metadata.program_flow.main)
    named = {anchor.name for anchor in metadata.anchors if _is_input(anchor)}
    unknown = sorted(set(frozen) - named)
    if unknown:
        raise UnknownAnchor(
            f"frozen_inputs names {unknown[0]!r}, which is not an input of the model; "
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


def check_data(model: Model, frozen: Collection[str] = ()) -> None:
    """Raise InvalidModel if the load programs read data that neither the file nor
    `frozen` has. Loading such a model would fail.
    """
    load = set(model.metadata.program_flow.load)
    given = {*frozen, *model.tensors, *model.feeds}
    for anchor in model.metadata.anchors:
        is_missing = _is_input(anchor) and anchor.name not in given
        if is_missing and not load.isdisjoint(anchor.programs):
            raise InvalidModel(
                f"input {anchor.name!r} has no data, neither in the file nor in "
                "frozen_inputs"
            )


def labels_of(model: Model) -> dict[str, tuple[str, ...]]:
    """Return the class names in the file, by output. Ignore entries that are not lists
    of strings.
    """
    found: dict[str, tuple[str, ...]] = {}
    for option in model.metadata.engine_options:
        if option.name.startswith(OPTION_LABELS):
            with contextlib.suppress(ValueError, RecursionError):
                labels = json.loads(option.value)
                if isinstance(labels, list) and all(isinstance(x, str) for x in labels):
                    found[option.name.removeprefix(OPTION_LABELS)] = tuple(labels)
    return found


def describe(anchor: Anchor, *, has_data: bool = False) -> DataDesc:
    """Return the descriptor of an anchor (Model Runtime: `DataDesc`)."""
    info = anchor.tensor_info
    return DataDesc(anchor.name, info.shape, info.data_type, has_data)


def _is_input(anchor: Anchor) -> bool:
    return anchor.type is TensorType.INPUT
