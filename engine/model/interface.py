"""`ModelInterface`: the inputs and outputs of a runner's model, and its metadata."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import ModelRunnerConfig
from engine.errors import InvalidInput
from engine.model.anchors import (
    OPTION_FUSED,
    OPTION_STATE,
    check_data,
    describe,
    labels_of,
    main_anchors,
)
from engine.model.batch_plan import plan_batches
from engine.model.channel_layout import plan_layout
from engine.model.model_file import ModelFiles, open_model
from engine.model.ragged import OPTION_RAGGED, OPTION_RAGGED_REASON
from engine.model.validation import check_inputs, check_outputs
from engine.programs.python_tensors import ANSWER, OPTION_ROUTES, ROUTE
from engine.tensor import Array, DataDesc, Tensor
from engine.transport.channel import MAX_SLOTS, ChannelLayout
from popef_io import Model, PopefError

#: The fewest descriptors of a ring, so that a burst of single requests finds room.
MIN_SLOTS = 128


class ModelInterface:
    """The tensors of a model, and what a request of them must look like.

    `inputs` and `outputs` are those of the main programs as they were compiled, and
    `request_inputs` and `request_outputs` are those that requests may have. `batches`
    is the mapping of requests to runs.
    """

    def __init__(self, name: str, model: Model, config: ModelRunnerConfig) -> None:
        self.model = model
        self._name = name
        self._validates = config.validate_io_params
        anchors = main_anchors(model, config.frozen_inputs.keys())
        self.inputs = tuple(describe(a) for a in anchors.inputs)
        self.outputs = tuple(describe(a) for a in anchors.outputs)
        self._desc_by_name = {desc.name: desc for desc in self.inputs}
        self.batches = plan = plan_batches(model, anchors, config)
        #: The most rows that run together. 0: rows of requests are not mixed.
        self.max_batch_size = plan.max_units if plan.mixes_rows else 0
        #: The dimension in which the rows of requests lie.
        self.batching_dim = plan.dim
        self.request_inputs = plan.request_descs(self.inputs, plan.inputs)
        self.request_outputs = plan.request_descs(self.outputs, plan.outputs)
        # A request has either the inputs of the model or the input of its routes.
        own = (desc for desc in self.request_inputs if desc.name != ROUTE)
        self._request_descs = {desc.name: desc for desc in own}
        self._output_names = [desc.name for desc in self.outputs]
        self._last_descs: tuple[int, tuple[DataDesc, ...]] = (-1, ())

    def layout(self, config: ModelRunnerConfig) -> ChannelLayout:
        """Return the rings that a channel needs for these inputs and outputs."""
        batches = self.batches
        slots = config.ring_buffer_size_multiplier * batches.depth
        return plan_layout(
            self.request_inputs,
            self.request_outputs,
            min(max(MIN_SLOTS, slots), MAX_SLOTS),
            max(self.max_batch_size, batches.unit_extent),
            config.channel_memory,
        )

    # -- metadata

    @property
    def ragged_reason(self) -> str:
        """Return why rows of different lengths may or may not run together. Empty if
        the file does not state it.
        """
        metadata = self.model.metadata
        if metadata.option(OPTION_RAGGED) and self.batches.ragged is None:
            return "its options do not allow it"
        return metadata.option(OPTION_RAGGED_REASON) or ""

    @property
    def is_fused(self) -> bool:
        """Return whether the file states that an input chooses among several models."""
        return self.model.metadata.option(OPTION_FUSED) is not None

    @property
    def keeps_state(self) -> bool:
        """Return whether runs may change what later runs give."""
        metadata = self.model.metadata
        return bool(metadata.program_flow.save or metadata.option(OPTION_STATE))

    @property
    def routes(self) -> str:
        """Return a Python model's routes (`OPTION_ROUTES`); empty if it has none."""
        return self.model.metadata.option(OPTION_ROUTES) or ""

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return the names of classes, by output, if the file has them."""
        return labels_of(self.model)

    # -- requests

    def tensors(self, inputs: Mapping[str, Array]) -> dict[str, Tensor]:
        """Return the tensors of a request from arrays of the inputs' data types. Raises
        InvalidInput for other types.
        """
        return {name: self._tensor(name, array) for name, array in inputs.items()}

    def valid_tensors(self, inputs: Mapping[str, Array]) -> dict[str, Tensor]:
        """Return the tensors of a request, checked if the configuration says so."""
        tensors = self.tensors(inputs)
        if self._validates:
            self.validate(tensors)
        return tensors

    def _tensor(self, name: str, array: Array) -> Tensor:
        """Return the array in this input's data type if it has that type's numpy form
        (BF16 as uint16).

        Types are compared with and without `validate_io_params`, because bytes of
        another type mean nothing.
        """
        desc = self._desc_by_name.get(name)
        try:
            if desc is not None and desc.data_type.numpy_dtype == array.dtype:
                return Tensor.from_numpy(array, desc.data_type)
            tensor = Tensor.from_numpy(array)
        except AttributeError:
            kind = type(array).__name__
            msg = f"input {name!r}: expected a plain numpy array, got {kind}"
            raise InvalidInput(msg) from None
        except PopefError as error:
            raise InvalidInput(f"input {name!r}: {error}") from None
        if desc is not None and tensor.data_type is not desc.data_type:
            raise InvalidInput(
                f"input {name!r} must be {desc.data_type.name}, got "
                f"{tensor.data_type.name}"
            )
        return tensor

    def validate(self, inputs: Mapping[str, Tensor]) -> None:
        """Check names, data types, shapes and sizes of a request."""
        check_inputs(self._name, self._request_descs, inputs)

    def check_output_names(self, outputs: Mapping[str, Array]) -> None:
        """Raise InvalidInput for a name that is not an output."""
        names = self._output_names
        for name in outputs:
            if name not in names:
                raise InvalidInput(f"the model has no output {name!r}; it has {names}")

    def check_outputs(self, units: int, outputs: Mapping[str, Array]) -> None:
        """Check the memory for the outputs of a request with `units` units."""
        check_outputs(self._result_descs(units), outputs)

    def _result_descs(self, units: int) -> tuple[DataDesc, ...]:
        """Return the outputs of a request with `units` units. Keep the last result,
        because most requests have as many units as the one before.
        """
        of, descs = self._last_descs
        if of != units:
            own = [desc for desc in self.request_outputs if desc.name != ANSWER]
            descs = self.batches.result_descs(own, units)
            self._last_descs = units, descs
        return descs

    def __repr__(self) -> str:
        return (
            f"<ModelInterface of {self._name!r}, {[d.name for d in self.inputs]} -> "
            f"{self._output_names}>"
        )


def describe_model(
    model: ModelFiles, config: ModelRunnerConfig | None = None
) -> ModelInterface:
    """Return the tensors and the metadata that a `ModelRunner` of the model would have.
    Reads the files' metadata, and does not load the model.

    Raises InvalidModel for files that are invalid or lack data, and InvalidConfig if
    the model cannot follow the configuration.
    """
    config = config or ModelRunnerConfig()
    opened = open_model(model)
    check_data(opened, config.frozen_inputs.keys())
    return ModelInterface(opened.metadata.executable, opened, config)
