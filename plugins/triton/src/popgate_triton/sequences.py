"""Triton's ``sequence_batching`` as the section ``[sequence]`` of ``config.toml``."""

from __future__ import annotations

from typing import Any

_ROLES = ("start", "ready", "end", "correlation_id")  # by the number of the kind


def sequence_options(message: Any) -> tuple[dict[str, Any], list[str]]:
    """Return keys of a ``config.toml``, and notes on parts of the message without
    effect.

    Raises ValueError for parts that would make results wrong.
    """
    section: dict[str, Any] = {}
    options: dict[str, Any] = {"sequence": section}
    notes: list[str] = []
    if message.max_sequence_idle_microseconds:
        section["max_idle"] = message.max_sequence_idle_microseconds / 1e6
    oldest = message.oldest
    if oldest.max_candidate_sequences > 0:
        section["max_active"] = oldest.max_candidate_sequences
    if oldest.preferred_batch_size:
        options["preferred_batch_sizes"] = sorted(set(oldest.preferred_batch_size))
    if oldest.max_queue_delay_microseconds:
        options["max_queue_delay"] = oldest.max_queue_delay_microseconds / 1e6
    if oldest.preserve_ordering:
        notes.append("sequence_batching preserve_ordering has no effect here")
    for descriptor, _ in message.direct.ListFields():
        notes.append(
            f"sequence_batching direct {descriptor.name} has no effect here: "
            "sequences have no slots of their own"
        )
    for control_input in message.control_input:
        for control in control_input.control:
            role = _ROLES[control.kind]
            if role in section:
                msg = (
                    f"sequence_batching: '{section[role]}' and '{control_input.name}' "
                    f"are both the input for {role}"
                )
                raise ValueError(msg)
            section[role] = control_input.name
            _check_values(control_input.name, control)
    states = [_state(state) for state in message.state]
    if states:
        section["state"] = states
    if message.iterative_sequence or message.generative_sequence:
        notes.append("iterative_sequence has no effect here")
    return options, notes


def _check_values(name: str, control: Any) -> None:
    """Check that controls are 0 and 1; the model would receive no other values."""
    for word in ("int32_false_true", "fp32_false_true", "bool_false_true"):
        values = list(getattr(control, word))
        if values and [float(v) for v in values] != [0.0, 1.0]:
            msg = (
                f"sequence_batching: {word} of '{name}' must be [0, 1] here, "
                f"got {values}"
            )
            raise ValueError(msg)


def _state(state: Any) -> dict[str, Any]:
    """Return the state with its first value: zeros, or the content of a file."""
    found: dict[str, Any] = {"input": state.input_name, "output": state.output_name}
    if len(state.initial_state) > 1:
        msg = f"sequence_batching: '{state.input_name}' has several initial states"
        raise ValueError(msg)
    if state.dims:
        found["shape"] = [max(1, dim) for dim in state.dims]
    for initial in state.initial_state:
        if initial.dims:
            found["shape"] = list(initial.dims)
        if initial.WhichOneof("state_data") == "data_file":
            found["data_file"] = initial.data_file
    return found
