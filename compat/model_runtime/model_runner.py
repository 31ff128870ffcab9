# ruff: noqa: N802 - the names are the original's
"""`ModelRunner` under its original names."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, SupportsIndex, overload

from popef import Model
from popef.taking import expected

import engine
from model_runtime.arguments import one_of
from model_runtime.config import ModelRunnerConfig
from model_runtime.data_desc import DataDesc
from model_runtime.memory import InputMemoryView, ModelSource, arrays_of
from model_runtime.results import (
    OutputFutureMemory,
    OutputFutureMemoryView,
    OutputMemory,
)

Inputs = InputMemoryView | Mapping[str, Any]
Outputs = Mapping[str, Any]


class ModelRunner:
    """Loads a model and executes it (Model Runtime User Guide 3).

    `model` is the path of a file, `PopefPaths` or another sequence of paths, or a
    `popef.Model`; paths also by their own names. Unloaded when nobody holds it any
    more; a result holds it.
    """

    def __init__(
        self,
        model: ModelSource | None = None,
        config: ModelRunnerConfig | None = None,
        *,
        popef_path: str | None = None,
        popef_paths: Sequence[str] | None = None,
    ) -> None:
        given: ModelSource = one_of(
            "model, popef_path and popef_paths", model, popef_path, popef_paths
        )
        self._config = (
            ModelRunnerConfig()
            if config is None
            else expected(config, ModelRunnerConfig)
        )
        source = engine.open_model(given.io if isinstance(given, Model) else given)
        self._runner = engine.ModelRunner(source, self._config.to_engine(source))
        weakref.finalize(self, self._runner.close)
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
        self,
        input_data: Inputs,
        output_data: Outputs,
        replica_id: SupportsIndex = 0,
    ) -> None: ...

    def execute(
        self,
        input_data: Inputs,
        output_data: Outputs | SupportsIndex | None = None,
        replica_id: SupportsIndex = 0,
    ) -> OutputMemory | None:
        """Run a request; its outputs by name, or None where they went to
        `output_data`."""
        result = self._submit(input_data, output_data, replica_id)
        result.wait()
        if isinstance(result, OutputFutureMemoryView):
            return None
        return result.memory()

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
        self,
        input_data: Inputs,
        output_data: Outputs,
        replica_id: SupportsIndex = 0,
    ) -> OutputFutureMemoryView: ...

    def executeAsync(
        self,
        input_data: Inputs,
        output_data: Outputs | SupportsIndex | None = None,
        replica_id: SupportsIndex = 0,
    ) -> OutputFutureMemory:
        """Queue a request. The memory of its inputs must stay as it is until the
        result is there."""
        return self._submit(input_data, output_data, replica_id)

    def getExecuteInputs(self) -> list[DataDesc]:
        """The inputs that a request must supply."""
        return _listed(self._runner.execute_inputs)

    def getExecuteOutputs(self) -> list[DataDesc]:
        """The outputs that a request delivers."""
        return _listed(self._runner.execute_outputs)

    def getModelInputs(self) -> list[DataDesc]:
        """The inputs of a request and all that is needed to load the model."""
        return _listed(self._runner.model_inputs)

    def getModelOutputs(self) -> list[DataDesc]:
        """The outputs of a request and of other programs."""
        return _listed(self._runner.model_outputs)

    def config(self) -> ModelRunnerConfig:
        return self._config

    # Each fills the dictionary it is given, or a new one, and returns it.

    def getTimeTrace(
        self,
        time_info: dict[str, float] | None = None,
        replica_id: int = 0,
        cur: int = -1,
    ) -> dict[str, float]:
        """How long the last request took, or number `cur` of those that are kept."""
        values = self._runner.tracepoints(replica_id).trace(cur)
        return _filled(time_info, values, "duration_us")

    def getMonitoringStatisticsPercentile(
        self,
        monitoring_info: dict[str, float] | None = None,
        quantile: float = 0.9,
        replica_id: int = 0,
    ) -> dict[str, float]:
        """The time that the fraction `quantile` of the requests did not exceed."""
        values = self._runner.tracepoints(replica_id).percentile(quantile)
        return _filled(monitoring_info, values, "monitoring_statistics_percentile_us")

    def getMonitoringStatisticsMean(
        self, monitoring_info: dict[str, float] | None = None, replica_id: int = 0
    ) -> dict[str, float]:
        """How long requests took on average."""
        values = self._runner.tracepoints(replica_id).mean()
        return _filled(monitoring_info, values, "monitoring_statistics_mean_us")

    def getMonitoringStatisticsTotalCount(
        self, monitoring_info: dict[str, float] | None = None, replica_id: int = 0
    ) -> dict[str, float]:
        """How many requests there were."""
        values = self._runner.tracepoints(replica_id).counts()
        return _filled(monitoring_info, values, "monitoring_statistics_count")

    def _submit(
        self,
        inputs: Inputs,
        outputs: Outputs | SupportsIndex | None,
        replica_id: SupportsIndex,
    ) -> OutputFutureMemory:
        given = arrays_of(inputs, self._inputs)
        if outputs is None or isinstance(outputs, SupportsIndex):
            replica = index(replica_id if outputs is None else outputs)
            result = self._runner.execute_async(given, replica_id=replica)
            return OutputFutureMemory(result, self)
        targets = arrays_of(outputs, self._outputs)
        replica = index(replica_id)
        result = self._runner.execute_async(given, targets, replica_id=replica)
        return OutputFutureMemoryView(result, self)

    def __repr__(self) -> str:
        return repr(self._runner)


def _filled(
    given: dict[str, float] | None, values: engine.PhaseValues, suffix: str
) -> dict[str, float]:
    info = {} if given is None else given
    info.update((f"{k}_{suffix}", value) for k, value in values.by_name().items())
    return info


def _listed(descs: Iterable[engine.DataDesc]) -> list[DataDesc]:
    return [DataDesc.from_engine(desc) for desc in descs]
