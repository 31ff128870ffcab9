"""Description of a model's inputs and outputs under a configuration,
without a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.config import ModelRunnerConfig
from engine.model.anchors import check_data
from engine.model.interface import ModelInterface
from engine.model.model_file import ModelFiles, open_model
from engine.tensor import DataDesc


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The properties that a `ModelRunner` of the model would have, with the same names.

    `num_ipus` is the number of pool units that its device takes.
    """

    request_inputs: tuple[DataDesc, ...]
    request_outputs: tuple[DataDesc, ...]
    max_batch_size: int
    batching_dim: int
    is_fused: bool
    labels: Mapping[str, tuple[str, ...]]
    num_ipus: int


def describe_model(
    model: ModelFiles, config: ModelRunnerConfig | None = None
) -> ModelDescription:
    """Read the files' metadata. Does not load the model.

    Raises InvalidModel for files that are invalid or lack data, and InvalidConfig if
    the model cannot follow the configuration.
    """
    config = config or ModelRunnerConfig()
    opened = open_model(model)
    check_data(opened, config.frozen_inputs.keys())
    found = ModelInterface(opened.metadata.executable, opened, config)
    return ModelDescription(
        found.request_inputs,
        found.request_outputs,
        found.max_batch_size,
        found.batching_dim,
        found.is_fused,
        found.labels,
        max(1, opened.metadata.num_ipus),
    )
