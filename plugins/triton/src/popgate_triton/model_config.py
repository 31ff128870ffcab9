"""Triton's model configuration document of a loaded model, as far as it applies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.api.describe import gives_several, memory_kind, platform_of
from app.api.examples import shown_shape
from app.config.declared import DeclaredTensor
from app.config.stateful_config import SequenceConfig
from app.repository.records import LoadedModel
from app.serving.ensemble import Ensemble, Step
from app.spec import TensorSpec

# The backend that runs each platform.
_BACKENDS = {
    "ensemble": "",
    "onnxruntime_onnx": "onnxruntime",
    "popgate_popef": "popgate",
    "popgate_python": "python",
}
# The protocol's datatypes in the words of Triton's model configuration.
_CONFIG_TYPES = {"BYTES": "TYPE_STRING"}
# The roles of control inputs that Triton names in another way.
_CONTROL_KINDS = {"correlation_id": "CORRID"}


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
    if isinstance(loaded.runner, Ensemble):
        document["ensemble_scheduling"] = {
            "step": [_ensemble_step(step) for step in loaded.runner.steps]
        }
    elif config.sequence is not None:
        document["sequence_batching"] = _sequence_batching(config.sequence)
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


def _version_policy(loaded: LoadedModel) -> dict[str, Any]:
    policy = loaded.config.versions
    if policy.specific:
        return {"specific": {"versions": list(policy.specific)}}
    if policy.latest:
        return {"latest": {"num_versions": policy.latest}}
    return {"all": {}}


def _sequence_batching(config: SequenceConfig) -> dict[str, Any]:
    """Return the sequences of a model, in Triton's words."""
    return {
        "max_sequence_idle_microseconds": round(config.max_idle * 1e6),
        "oldest": {
            "max_candidate_sequences": config.max_active or config.max_sequences
        },
        "control_input": [
            {
                "name": name,
                "control": [
                    {
                        "kind": "CONTROL_SEQUENCE_"
                        + _CONTROL_KINDS.get(role, role.upper())
                    }
                ],
            }
            for role, name in config.controls.items()
        ],
        "state": [
            {"input_name": state.input, "output_name": state.output}
            for state in config.state
        ],
    }
