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
from app.config.declared import DeclaredTensor
from app.errors import VersionNotAvailable
from app.observe.metrics import MetricsRegistry
from app.repository.loaded_model import LoadedModel
from app.repository.model_life import State
from app.repository.model_record import ModelRecord, VersionRecord
from app.serving.ensemble import Ensemble, Step
from app.serving.stateful import StatefulScheduler
from app.spec import TensorSpec
from engine import DeviceState, DeviceWaitTimeout, ModelRunner, NoDeviceAvailable

LOST = "its device was lost and is being restarted"
NOT_BACK = "its device was restarted and has not loaded the model yet"

# The backend that runs each platform.
_BACKENDS = {
    "ensemble": "",
    "onnxruntime_onnx": "onnxruntime",
    "popgate_popef": "popgate",
    "popgate_python": "python",
}
# Limits of the properties shown from a model file: characters of a value, and number.
# The properties named here have fields of their own.
_LONGEST_PROPERTY, _MOST_PROPERTIES = 500, 50
_NO_PROPERTIES = (
    "batching", "batch_size", "batching_reason", "popgate.example", "ragged", "routes",
    "ragged_reason",
)  # fmt: skip
# The protocol's datatypes in the words of Triton's model configuration.
_CONFIG_TYPES = {"BYTES": "TYPE_STRING"}


#: Returns a reason as this client may read it.
Told: TypeAlias = Callable[[str], str]


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


def version_status(record: VersionRecord, told: Told = str) -> VersionStatus:
    state, reason = record.state, record.explanation
    if state is State.READY and not is_serving(record.loaded):
        state, reason = State.FAILED, why_not_serving(record.loaded)
    return VersionStatus(
        version=str(record.version),
        state=state.word,
        reason=told(reason),
        in_memory=record.loaded is not None,
    )


def model_summary(record: ModelRecord, told: Told = str) -> ModelSummary:
    """Return the list entry of a model, with reasons from `told`."""
    return ModelSummary(**_summary(record, told))


def model_details(
    record: ModelRecord, loaded: LoadedModel | None, told: Told = str
) -> ModelDetails:
    """Return the full description of a model; `loaded` is the requested version."""
    values = _summary(record, told)
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
        return "the model's config.toml sets it"
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
    told = {o.name.removeprefix("popgate."): o.value for o in options}
    return {
        name: value[:_LONGEST_PROPERTY]
        for name, value in list(told.items())[:_MOST_PROPERTIES]
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


def model_config(loaded: LoadedModel) -> dict[str, Any]:
    """Return Triton's model configuration document, as far as it applies."""
    spec, config, files = loaded.spec, loaded.config, loaded.source.files
    document: dict[str, Any] = {
        "name": spec.name,
        "platform": platform_of(loaded),
        "backend": _BACKENDS[platform_of(loaded)],
        "version_policy": _version_policy(loaded),
        "max_batch_size": spec.max_batch_size,
        "input": [_config_input(loaded, t) for t in spec.inputs],
        "output": [_config_output(loaded, t) for t in spec.outputs],
        "instance_group": [
            {
                "name": f"{spec.name}_0",
                "kind": f"KIND_{memory_kind(loaded)}",
                "count": config.instances,
            }
        ],
        "default_model_filename": files[0].name if len(files) == 1 else "",
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": gives_several(loaded)},
    }
    scheduler = loaded.scheduler
    if isinstance(loaded.runner, Ensemble):
        document["ensemble_scheduling"] = {
            "step": [_ensemble_step(step) for step in loaded.runner.steps]
        }
    elif isinstance(scheduler, StatefulScheduler) and scheduler.has_sequences:
        document["sequence_batching"] = scheduler.sequence_batching
    elif spec.is_batched and loaded.runner.max_batch_size:
        document["dynamic_batching"] = _dynamic_batching(loaded)
    return document


def _dynamic_batching(loaded: LoadedModel) -> dict[str, Any]:
    config = loaded.config
    return {
        "preferred_batch_size": sorted(config.preferred_batch_sizes),
        "max_queue_delay_microseconds": round(config.max_queue_delay * 1e6),
        "priority_levels": config.priority_levels,
        "default_priority_level": loaded.runner.config.default_level,
        "default_queue_policy": _queue_policy(config.max_queue_size, config.timeout),
        "priority_queue_policy": {
            str(item.level): _queue_policy(
                item.max_queue_size or config.max_queue_size,
                item.timeout or config.timeout,
            )
            for item in config.priority
        },
    }


def _ensemble_step(step: Step) -> dict[str, Any]:
    return {
        "model_name": step.model,
        "model_version": step.version or -1,
        "input_map": dict(step.inputs),
        "output_map": dict(step.outputs),
    }


def _queue_policy(max_queue_size: int, timeout: float | None) -> dict[str, Any]:
    return {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": round((timeout or 0) * 1e6),
        "allow_timeout_override": True,
        "max_queue_size": max_queue_size,
    }


def index_entries(
    records: list[ModelRecord], *, ready: bool, told: Told = str
) -> list[IndexEntry]:
    """Return the repository index; with `ready`, only versions that answer."""
    entries = []
    for record in records:
        for _, version in sorted(record.versions.items()):
            status = version_status(version, told)
            entries.append(
                IndexEntry(
                    name=record.name,
                    version=status.version,
                    state=status.state,
                    reason=status.reason or None,
                )
            )
        if not record.versions:
            why = told(record.problem or record.absence)
            entries.append(
                IndexEntry(name=record.name, state=record.state.word, reason=why)
            )
    return [e for e in entries if e.state == "READY" or not ready]


def _summary(record: ModelRecord, told: Told) -> dict[str, Any]:
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
        "reason": told(reason),
        "version": None if number is None else str(number),
        "versions": [
            version_status(v, told) for _, v in sorted(record.versions.items())
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


def _config_tensor(loaded: LoadedModel, tensor: TensorSpec) -> dict[str, Any]:
    dims = shown_shape(loaded.spec, tensor)
    if loaded.spec.is_batched:
        dims = dims[1:]
    kind = _CONFIG_TYPES.get(tensor.datatype, f"TYPE_{tensor.datatype}")
    return {"name": tensor.name, "data_type": kind, "dims": dims}


def _config_input(loaded: LoadedModel, tensor: TensorSpec) -> dict[str, Any]:
    declared = _declared(loaded.source.declared.inputs, tensor)
    return {
        **_config_tensor(loaded, tensor),
        # Image clients read the position of the channels here.
        "format": (declared.format if declared else "") or "FORMAT_NONE",
        **_reshape(declared),
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": loaded.spec.optional_inputs or tensor.name in loaded.spec.defaults,
    }


def _config_output(loaded: LoadedModel, tensor: TensorSpec) -> dict[str, Any]:
    declared = _declared(loaded.source.declared.outputs, tensor)
    return {
        **_config_tensor(loaded, tensor),
        **_reshape(declared),
        "label_filename": declared.label_filename if declared else "",
        "is_shape_tensor": False,
    }


def _declared(
    tensors: Iterable[DeclaredTensor], tensor: TensorSpec
) -> DeclaredTensor | None:
    return next((d for d in tensors if d.name == tensor.name), None)


def _reshape(declared: DeclaredTensor | None) -> dict[str, Any]:
    if declared is None or declared.reshape is None:
        return {}
    return {"reshape": {"shape": list(declared.reshape)}}


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


def _version_policy(loaded: LoadedModel) -> dict[str, Any]:
    policy = loaded.config.versions
    if policy.specific:
        return {"specific": {"versions": list(policy.specific)}}
    if policy.latest:
        return {"latest": {"num_versions": policy.latest}}
    return {"all": {}}


def explain_start_failure(error: Exception) -> str:
    """Return advice for an operator whose gateway could not start."""
    if isinstance(error, NoDeviceAvailable | DeviceWaitTimeout):
        return (
            f"{error}; `popgate devices` shows which processes hold the devices, "
            "--device-wait waits for a free one, --devices selects others"
        )
    if isinstance(error, OSError):
        return f"the model repository cannot be read: {error}"
    return str(error) or type(error).__name__
