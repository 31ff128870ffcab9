"""Translate Triton's configuration into the keys of ``config.toml``.

An unsupported setting is an error if results or scheduling would be wrong without it.
Otherwise it causes a note for the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NoReturn

from app.config.config_formats import Translation
from app.config.config_keys import ModelConfigError
from app.config.model_config import ModelConfig
from popgate_triton.declarations import Declarations
from popgate_triton.reading import document_of
from popgate_triton.sequences import sequence_options
from popgate_triton.tensors import declared_states, declared_tensors

#: The backend that runs a ``model.py``.
PYTHON = "python"
# Names of backends for ONNX models. If the name is empty, Triton chooses the backend.
PLATFORMS = ("", "onnxruntime_onnx", "popgate_popef", "popgate_ensemble", "ensemble")
BACKENDS = ("", "onnxruntime", "popgate", PYTHON)
MAX_QUEUE = 65536  # more would be no limit
KEYS = frozenset(item.name for item in fields(ModelConfig))


def translate(
    message: Any, name: str, label: str = "config.pbtxt", *, partial: bool = False
) -> Translation:
    """Translate the configuration of model `name` into our keys.

    `label` is its name in errors and notes. A `partial` one changes another: fields
    that it omits stay unchanged. Raises `ModelConfigError`.
    """
    work = _Work(message, label)
    if message.name and message.name != name:
        work.refuse(f"name is {message.name!r}, but the model is called {name!r}")
    if message.platform not in PLATFORMS or message.backend not in BACKENDS:
        given = message.platform or message.backend
        work.refuse(
            f"platform or backend {given!r} is not supported; ONNX models "
            "(onnxruntime), PopEF files and Python (python) are"
        )
    if not partial:
        work.options["versions"] = {"latest": 1}  # Triton's default
    for descriptor, value in message.ListFields():
        handle = _HANDLERS.get(descriptor.name)
        if handle is not None:
            handle(work, value)
        elif descriptor.name == "parameters" and message.backend == PYTHON:
            continue  # the model reads them
        elif descriptor.name not in _READ:
            work.note(f"{descriptor.name} has no effect here")
    max_batch_size = None
    if message.HasField("max_batch_size") or (message.input and not partial):
        max_batch_size = message.max_batch_size
    states = message.sequence_batching.state
    return Translation(
        work.options,
        Declarations(
            declared_tensors(message.input, label),
            declared_tensors(message.output, label),
            max_batch_size,
            label,
            document_of(message),
            declared_states(states, "input_name", label),
            declared_states(states, "output_name", label),
        ),
        message.default_model_filename,
        tuple(work.notes),
    )


class _Work:
    """State of a translation."""

    def __init__(self, message: Any, label: str) -> None:
        self.message = message
        self.label = label
        self.options: dict[str, Any] = {}
        self.notes: list[str] = []

    def refuse(self, why: str) -> NoReturn:
        raise ModelConfigError(f"{self.label}: {why}")

    def note(self, what: str) -> None:
        self.notes.append(f"{self.label}: {what}")

    def option(self, key: str, value: Any, what: str) -> None:
        """Set the matching key of PopGate, if there is one."""
        if key in KEYS:
            self.options[key] = value
        else:
            self.note(f"{what} has no effect here")


def _max_batch_size(work: _Work, value: int) -> None:
    if value < 0:
        work.refuse(f"max_batch_size must be 0 or more, got {value}")
    work.options["max_batch_size"] = value
    work.options["max_request_rows"] = value


def _version_policy(work: _Work, policy: Any) -> None:
    choice = policy.WhichOneof("choice")
    if choice == "all":
        work.options["versions"] = "all"
    elif choice == "specific":
        work.options["versions"] = list(policy.specific.versions)
    elif choice == "latest":
        work.options["versions"] = {"latest": policy.latest.num_versions or 1}


def _outputs(work: _Work, outputs: Any) -> None:
    labels = {o.name: o.label_filename for o in outputs if o.label_filename}
    if labels:
        work.options["labels"] = labels
    _tensors(work, outputs)


def _inputs(work: _Work, inputs: Any) -> None:
    optional = [tensor.name for tensor in inputs if tensor.optional]
    if optional:
        work.options["optional_inputs"] = optional
    _tensors(work, inputs)


def _tensors(work: _Work, tensors: Any) -> None:
    for tensor in tensors:
        for name in ("is_shape_tensor", "allow_ragged_batch"):
            if getattr(tensor, name, False):
                work.refuse(f"{tensor.name!r} has {name}, which is not supported")
        if getattr(tensor, "format", 0):
            work.note(f"the format of {tensor.name!r} has no effect here")


def _instances(work: _Work, groups: Any) -> None:
    active = [group for group in groups if not group.passive]
    count = sum((g.count or 1) * max(1, len(g.gpus)) for g in active)
    if any(group.count < 0 for group in groups) or not 0 < count <= 1024:
        work.refuse(f"instance_group has {count} instances; expected 1 to 1024")
    work.options["instances"] = count
    for group in groups:
        if group.gpus:
            work.note(f"instance_group gpus only count here: {count} instances in all")
        said = [d.name for d, _ in group.ListFields() if d.name in _GROUP_WORDS]
        if said:
            work.note(
                f"instance_group {', '.join(said)} {'have' if said[1:] else 'has'} no "
                f"effect here: instances run on the attached devices (--devices, or "
                f"devices in config.toml)"
            )


def _dynamic_batching(work: _Work, batching: Any) -> None:
    # A decoupled model in Python runs one request at a time, with several responses.
    decoupled = work.message.model_transaction_policy.decoupled
    if work.message.max_batch_size > 0 and not decoupled:
        work.options["batching"] = True
    for descriptor, value in batching.ListFields():
        name = descriptor.name
        if name == "max_queue_delay_microseconds":
            work.options["max_queue_delay"] = value / 1e6
        elif name == "preferred_batch_size":
            work.option("preferred_batch_sizes", sorted(set(value)), name)
        elif name == "priority_levels":
            work.options["priority_levels"] = value
        elif name == "default_priority_level":
            work.options["default_priority"] = value
        elif name == "default_queue_policy":
            work.options.update(_queue_policy(work, value))
        elif name == "priority_queue_policy":
            work.options["priority"] = [
                {"level": level, **_queue_policy(work, policy)}
                for level, policy in sorted(value.items())
            ]
        else:
            work.note(f"dynamic_batching {name} has no effect here")


def _queue_policy(work: _Work, policy: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if policy.max_queue_size:
        found["max_queue_size"] = min(policy.max_queue_size, MAX_QUEUE)
    if policy.timeout_action:
        work.note("timeout_action DELAY has no effect here: late requests fail")
    elif policy.default_timeout_microseconds:
        found["timeout"] = policy.default_timeout_microseconds / 1e6
    return found


def _made_by_the_server(name: str) -> Callable[[_Work, Any], None]:
    """Refuse features that leave the server's work to clients."""

    def refuse(work: _Work, value: Any) -> None:
        work.refuse(f"{name} is not supported: the tensors of it are not made here")

    return refuse


def _sequences(work: _Work, sequences: Any) -> None:
    if work.message.max_batch_size > 0:
        work.options["batching"] = True
    try:
        options, notes = sequence_options(sequences)
    except ValueError as e:
        work.refuse(str(e))
    work.options |= options
    work.notes += [f"{work.label}: {note}" for note in notes]


def _ensemble(work: _Work, ensemble: Any) -> None:
    for key in ("max_batch_size", "batching", "instances"):
        work.options.pop(key, None)
    work.options["ensemble"] = {
        "inputs": [tensor.name for tensor in work.message.input],
        "outputs": [tensor.name for tensor in work.message.output],
        "step": [
            {
                "model": step.model_name,
                **({"version": step.model_version} if step.model_version > 0 else {}),
                "inputs": dict(step.input_map),
                "outputs": dict(step.output_map),
            }
            for step in ensemble.step
        ],
    }


def _warmup(work: _Work, samples: Any) -> None:
    work.options["warmup"] = {"samples": [_sample(work, s) for s in samples]}


def _sample(work: _Work, sample: Any) -> dict[str, Any]:
    return {
        "name": sample.name,
        "batch_size": sample.batch_size,
        "count": sample.count or 1,
        "inputs": {name: _sample_input(v) for name, v in sample.inputs.items()},
    }


def _sample_input(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"shape": list(value.dims)}
    if value.WhichOneof("source") == "input_data_file":
        found["file"] = value.input_data_file
    else:
        found["data"] = "random" if value.random_data else "zeros"
    return found


def _decoupled(work: _Work, policy: Any) -> None:
    if policy.decoupled and work.message.backend != PYTHON:
        work.note(
            "decoupled has no effect: for several responses, set [responses] in "
            "config.toml"
        )


def _cache(work: _Work, cache: Any) -> None:
    if cache.enable:
        work.note(
            "response_cache has no effect here: the gateway does not cache responses"
        )


_GROUP_WORDS = frozenset(
    {"kind", "rate_limiter", "secondary_devices", "profile", "host_policy"}
)
_HANDLERS: Mapping[str, Callable[[_Work, Any], None]] = {
    "max_batch_size": _max_batch_size,
    "version_policy": _version_policy,
    "input": _inputs,
    "output": _outputs,
    "batch_input": _made_by_the_server("batch_input"),
    "batch_output": _made_by_the_server("batch_output"),
    "instance_group": _instances,
    "dynamic_batching": _dynamic_batching,
    "sequence_batching": _sequences,
    "ensemble_scheduling": _ensemble,
    "model_warmup": _warmup,
    "model_transaction_policy": _decoupled,
    "response_cache": _cache,
}
# Fields that `translate` has read already.
_READ = frozenset({"name", "platform", "backend", "default_model_filename"})
