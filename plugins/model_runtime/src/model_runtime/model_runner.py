# ruff: noqa: N802 - the names are the original's
"""`ModelRunner` under its original names."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex, overload

import engine
from model_runtime.arguments import one_of
from model_runtime.config import ModelRunnerConfig
from model_runtime.data_desc import DataDesc
from model_runtime.ending import close_with
from model_runtime.memory import InputMemoryView, arrays_of
from model_runtime.model_source import FilesOrModel, opened
from model_runtime.results import (
    OutputFutureMemory,
    OutputFutureMemoryView,
    OutputMemory,
)
from popef.errors import WrongType
from popef.taking import NotPickled, Path, expected, got, number
from popef_io import TensorType
from popgate_sessions import descs_of

Inputs = InputMemoryView | Mapping[str, Any]
Outputs = Mapping[str, Any]


class ModelRunner(NotPickled):
    """Loads a model and executes it (Model Runtime User Guide 3).

    `model` is the path of a file, `PopefPaths` or another sequence of paths, or a
    `popef.Model`; paths also by their own names. Devices are attached and the model is
    loaded when this returns. The runner is unloaded when nothing refers to it. Results
    refer to it. Errors are RuntimeErrors. Thread-safe.
    """

    def __init__(
        self,
        model: FilesOrModel | None = None,
        config: ModelRunnerConfig | None = None,
        *,
        popef_path: Path | None = None,
        popef_paths: Sequence[Path] | None = None,
    ) -> None:
        given: FilesOrModel = one_of(
            "model, popef_path and popef_paths", model, popef_path, popef_paths
        )
        self._config = copy.copy(
            ModelRunnerConfig()
            if config is None
            else expected(config, ModelRunnerConfig)
        )
        source = opened(given)
        self._runner = engine.ModelRunner(source, self._config.to_engine(source))
        close_with(self, self._runner.close)
        self._inputs = {desc.name: desc for desc in self._runner.execute_inputs}
        self._outputs = {desc.name: desc for desc in self._runner.execute_outputs}

    @overload
    def execute(
        self,
        input_data: Inputs,
        output_data: None = None,
        replica_id: SupportsIndex = 0,
    ) -> OutputMemory: ...
    @overload
    def execute(
        self, input_data: Inputs, replica_id: SupportsIndex, /
    ) -> OutputMemory: ...
    @overload
    def execute(
        self, input_data: Inputs, output_data: Outputs, replica_id: SupportsIndex = 0
    ) -> None: ...

    def execute(
        self,
        input_data: Inputs,
        output_data: Outputs | SupportsIndex | None = None,
        replica_id: SupportsIndex = 0,
    ) -> OutputMemory | None:
        """Run a request and wait for its result. Return its outputs by name, or None if
        they were written to `output_data`.

        Both are views or dicts of memory by tensor name: arrays of the type and shape
        that `getExecuteInputs` and `getExecuteOutputs` tell, or a multiple of the batch
        in the first dimension. The result of a view holds `TensorMemory`, that of a
        dict arrays. Raises a RuntimeError if names, types or shapes are wrong, or if
        the request fails.
        """
        result = self._submit(input_data, output_data, replica_id)
        result.wait()
        if isinstance(result, OutputFutureMemoryView):
            return None
        return result.memory(as_memory=isinstance(input_data, InputMemoryView))

    @overload
    def executeAsync(
        self,
        input_data: Inputs,
        output_data: None = None,
        replica_id: SupportsIndex = 0,
    ) -> OutputFutureMemory: ...
    @overload
    def executeAsync(
        self, input_data: Inputs, replica_id: SupportsIndex, /
    ) -> OutputFutureMemory: ...
    @overload
    def executeAsync(
        self, input_data: Inputs, output_data: Outputs, replica_id: SupportsIndex = 0
    ) -> OutputFutureMemoryView: ...

    def executeAsync(
        self,
        input_data: Inputs,
        output_data: Outputs | SupportsIndex | None = None,
        replica_id: SupportsIndex = 0,
    ) -> OutputFutureMemory:
        """Queue a request with the arguments of `execute`. The first access to the
        result waits for it.

        The memory of its inputs must not change before the result arrives.
        """
        return self._submit(input_data, output_data, replica_id)

    def getExecuteInputs(self) -> list[DataDesc]:
        """Return the inputs that a request must supply."""
        return _listed(self._runner.execute_inputs)

    def getExecuteOutputs(self) -> list[DataDesc]:
        """Return the outputs that a request delivers."""
        return _listed(self._runner.execute_outputs)

    def getModelInputs(self) -> list[DataDesc]:
        """Return the inputs of a request and all that is needed to load the model."""
        frozen = self._config.frozen_inputs
        return [d for d in self._descs(TensorType.INPUT) if d.name not in frozen]

    def getModelOutputs(self) -> list[DataDesc]:
        """Return the outputs of a request and of other programs."""
        return self._descs(TensorType.OUTPUT)

    def _descs(self, kind: TensorType) -> list[DataDesc]:
        return _listed(descs_of(self._runner.interface.model, kind))

    def config(self) -> ModelRunnerConfig:
        """Return a copy of the options with which the runner was created."""
        return copy.copy(self._config)

    # Each method fills the given dictionary, or a new one, and returns it.

    def getTimeTrace(
        self,
        time_info: dict[str, float] | None = None,
        replica_id: SupportsIndex = 0,
        cur: SupportsIndex = -1,
    ) -> dict[str, float]:
        """Return the times of the last request, or of the kept request number `cur`."""
        values = self._traced(replica_id).trace(number(cur))
        return _filled(time_info, values, "duration_us")

    def getMonitoringStatisticsPercentile(
        self,
        monitoring_info: dict[str, float] | None = None,
        quantile: float = 0.9,
        replica_id: SupportsIndex = 0,
    ) -> dict[str, float]:
        """Return the time that the fraction `quantile` of the requests did not
        exceed.
        """
        if not isinstance(quantile, SupportsFloat):
            raise WrongType(f"expected a quantile from 0 to 1, {got(quantile)}")
        values = self._traced(replica_id).percentile(float(quantile))
        return _filled(monitoring_info, values, "monitoring_statistics_percentile_us")

    def getMonitoringStatisticsMean(
        self,
        monitoring_info: dict[str, float] | None = None,
        replica_id: SupportsIndex = 0,
    ) -> dict[str, float]:
        """Return the mean times of requests."""
        values = self._traced(replica_id).mean()
        return _filled(monitoring_info, values, "monitoring_statistics_mean_us")

    def getMonitoringStatisticsTotalCount(
        self,
        monitoring_info: dict[str, float] | None = None,
        replica_id: SupportsIndex = 0,
    ) -> dict[str, float]:
        """Return the number of requests."""
        values = self._traced(replica_id).counts()
        return _filled(monitoring_info, values, "monitoring_statistics_count")

    def _traced(self, replica_id: SupportsIndex) -> engine.Tracepoints:
        return self._runner.tracepoints(number(replica_id))

    def _submit(
        self,
        inputs: Inputs,
        outputs: Outputs | SupportsIndex | None,
        replica_id: SupportsIndex,
    ) -> OutputFutureMemory:
        given = arrays_of(inputs, self._inputs)
        if outputs is None or isinstance(outputs, SupportsIndex):
            replica = number(replica_id if outputs is None else outputs)
            result = self._runner.execute_async(given, replica_id=replica)
            return OutputFutureMemory(result, self)
        targets = arrays_of(outputs, self._outputs)
        replica = number(replica_id)
        result = self._runner.execute_async(given, targets, replica_id=replica)
        return OutputFutureMemoryView(result, self)

    def __repr__(self) -> str:
        return repr(self._runner)


def _filled(
    given: dict[str, float] | None, values: engine.PhaseValues, suffix: str
) -> dict[str, float]:
    info = {} if given is None else expected(given, dict)
    info.update((f"{k}_{suffix}", value) for k, value in values.by_name().items())
    return info


def _listed(descs: Iterable[engine.DataDesc]) -> list[DataDesc]:
    return [DataDesc.from_engine(desc) for desc in descs]
