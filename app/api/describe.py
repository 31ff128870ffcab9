"""Descriptions of models in the API: documents made from records and specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias
from urllib.parse import quote

from app.api.examples import example_parameters, example_request, shown_shape
from app.api.schemas import (
    FileTensor,
    IndexEntry,
    MetadataTensor,
    ModelDetails,
    ModelMetadata,
    ModelStatistics,
    ModelSummary,
    StatisticsList,
    VersionStatus,
)
from app.errors import VersionNotAvailable
from app.observe.metrics import MetricsRegistry
from app.repository.model_life import State
from app.repository.records import LoadedModel, ModelRecord, VersionRecord
from app.serving.ensemble import Ensemble
from app.serving.stateful import StatefulScheduler
from app.spec import TensorSpec
from engine import DeviceState, ModelRunner

LOST = "its device was lost and is being restarted"
NOT_BACK = "its device was restarted and has not loaded the model yet"

# Limits of the properties shown from a model file: characters of a value, and number.
# The properties named here have fields of their own.
_LONGEST_PROPERTY, _MOST_PROPERTIES = 500, 50
_NO_PROPERTIES = (
    "batching", "batch_size", "batching_reason", "popgate.example", "ragged", "routes",
    "ragged_reason",
)  # fmt: skip
#: Returns a reason as this client may read it.
Redact: TypeAlias = Callable[[str], str]


def is_serving(loaded: LoadedModel | None) -> bool:
    """Return whether a version answers now: it is loaded on at least one of its
    devices.
    """
    return loaded is not None and loaded.runner.serving


def why_not_serving(loaded: LoadedModel | None) -> str:
    """Return why a loaded version does not answer."""
    if loaded is not None and isinstance(loaded.runner, Ensemble):
        return loaded.runner.missing or LOST
    if loaded is not None and any(
        device.state is DeviceState.READY for device in loaded.runner.devices
    ):
        return NOT_BACK
    return LOST


def platform_of(loaded: LoadedModel) -> str:
    """Return the kind of a version by Triton's name: a kind of file, or ensemble."""
    if loaded.config.ensemble is not None:
        return "ensemble"
    if loaded.source.is_python:
        return "popgate_python"
    return "onnxruntime_onnx" if loaded.source.is_onnx else "popgate_popef"


def version_status(record: VersionRecord, redact: Redact = str) -> VersionStatus:
    state, reason = record.state, record.explanation
    if state is State.READY and not is_serving(record.loaded):
        state, reason = State.FAILED, why_not_serving(record.loaded)
    return VersionStatus(
        version=str(record.version),
        state=state.word,
        reason=redact(reason),
        in_memory=record.loaded is not None,
    )


def model_summary(record: ModelRecord, redact: Redact = str) -> ModelSummary:
    """Return the list entry of a model, with reasons as `redact` returns them."""
    return ModelSummary(**_summary(record, redact))


def model_details(
    record: ModelRecord, loaded: LoadedModel | None, redact: Redact = str
) -> ModelDetails:
    """Return the full description of a model; `loaded` is the requested version."""
    values = _summary(record, redact)
    if loaded is None:
        return ModelDetails(**values)
    spec = loaded.spec
    return ModelDetails(
        **values,
        platform=platform_of(loaded),
        inputs=[_tensor(loaded, t) for t in spec.inputs],
        outputs=[_tensor(loaded, t) for t in spec.outputs],
        batching=spec.is_batched,
        max_batch_size=spec.max_batch_size,
        example=example_request(
            spec, loaded.example, loaded.fill, example_parameters(loaded)
        ),
        batching_reason=_batching_reason(loaded),
        properties=_properties(loaded),
        memory=loaded.memory,
    )


def _batching_reason(loaded: LoadedModel) -> str:
    """Return why rows of different requests may or may not be mixed."""
    if loaded.config.batching is not None:
        return "the model's configuration sets it"
    if isinstance(loaded.runner, ModelRunner):
        metadata = loaded.runner.model.metadata
        reason = metadata.option("popgate.batching_reason", "") or ""
        lengths = loaded.runner.interface.ragged_reason
        if lengths:
            how = "together" if loaded.runner.ragged else "alone"
            reason = f"{reason}; rows of different lengths run {how}: {lengths}"
        return reason
    return "it is an ensemble: each member model decides"


def _properties(loaded: LoadedModel) -> dict[str, str]:
    """Return the file's properties, except properties with fields of their own."""
    if not isinstance(loaded.runner, ModelRunner):
        return {}
    options = loaded.runner.model.metadata.engine_options
    properties = {o.name.removeprefix("popgate."): o.value for o in options}
    return {
        name: value[:_LONGEST_PROPERTY]
        for name, value in list(properties.items())[:_MOST_PROPERTIES]
        if not name.endswith(_NO_PROPERTIES)
    }


def model_metadata(record: ModelRecord, loaded: LoadedModel) -> ModelMetadata:
    """Return the protocol's metadata document."""
    return ModelMetadata(
        name=record.name,
        versions=[str(version) for version in record.available],
        platform=platform_of(loaded),
        inputs=[_tensor(loaded, t) for t in loaded.spec.inputs],
        outputs=[_tensor(loaded, t) for t in loaded.spec.outputs],
    )


def gives_several(loaded: LoadedModel) -> bool:
    """Return whether a request may have any number of responses."""
    scheduler = loaded.scheduler
    return isinstance(scheduler, StatefulScheduler) and scheduler.gives_several


def index_entries(
    records: list[ModelRecord], *, ready: bool, redact: Redact = str
) -> list[IndexEntry]:
    """Return the repository index; with `ready`, only versions that answer."""
    entries = []
    for record in records:
        for _, version in sorted(record.versions.items()):
            status = version_status(version, redact)
            entries.append(
                IndexEntry(
                    name=record.name,
                    version=status.version,
                    state=status.state,
                    reason=status.reason or None,
                )
            )
        if not record.versions:
            why = redact(record.problem or record.absence)
            entries.append(
                IndexEntry(name=record.name, state=record.state.word, reason=why)
            )
    return [e for e in entries if e.state == "READY" or not ready]


def _summary(record: ModelRecord, redact: Redact) -> dict[str, Any]:
    default, number = record.default, record.default_version
    state, reason = record.state, record.problem or record.news()
    if state.word == "UNAVAILABLE" or state is State.ON_DEMAND:
        reason = reason or record.absence
    if state is State.READY and not is_serving(default):
        state, reason = State.FAILED, why_not_serving(default)
    return {
        "name": record.name,
        "state": state.word,
        "ready": state.word == State.READY.word,
        "reason": redact(reason),
        "version": None if number is None else str(number),
        "versions": [
            version_status(v, redact) for _, v in sorted(record.versions.items())
        ],
        "instances": 0 if default is None else default.config.instances,
        "url": f"/v1/models/{quote(record.name)}/infer",
    }


def _tensor(loaded: LoadedModel, tensor: TensorSpec) -> MetadataTensor:
    kind = FileTensor if tensor.name in loaded.spec.encoded else MetadataTensor
    return kind(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=shown_shape(loaded.spec, tensor),
    )


def statistics_of(
    metrics: MetricsRegistry,
    records: Iterable[ModelRecord],
    name: str = "",
    version: str | None = None,
) -> StatisticsList:
    """Return the statistics of a version of these models, or of all their versions.

    If they are those of one model, it has a `name`. Raises `UnknownModel` if it accepts
    no requests.
    """
    found = [
        _statistics(metrics, record, number)
        for record in records
        for number, entry in sorted(record.versions.items())
        if entry.loaded is not None or entry.state is State.ON_DEMAND
        if version in (None, str(number))
    ]
    if name and not found:
        raise VersionNotAvailable(name)
    return StatisticsList(model_stats=found)


def _statistics(
    metrics: MetricsRegistry, record: ModelRecord, number: int
) -> ModelStatistics:
    loaded = record.versions[number].loaded
    document = metrics.total(record.name, str(number)).statistics()
    if loaded is not None:
        document["memory_usage"] = [
            {"type": memory_kind(loaded), "id": 0, "byte_size": loaded.memory}
        ]
    return ModelStatistics.model_validate(document)


def memory_kind(loaded: LoadedModel) -> str:
    """Return Triton's word for the memory of a model."""
    on_gpu = any("cuda" in device.id for device in loaded.runner.devices)
    return "GPU" if on_gpu else "CPU"
