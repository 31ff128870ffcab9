"""Triton's ``sequence_batching`` as the section ``[sequence]`` of ``config.toml``."""

from __future__ import annotations

from typing import Any

_ROLES = ("start", "ready", "end", "correlation_id")  # by the number of the kind


def sequence_section(message: Any) -> tuple[dict[str, Any], list[str]]:
    """The section, and notes on what of the message has no effect.

    Raises ValueError for what would make results wrong.
    """
    section: dict[str, Any] = {}
    notes: list[str] = []
    if message.max_sequence_idle_microseconds:
        section["max_idle"] = message.max_sequence_idle_microseconds / 1e6
    if message.oldest.max_candidate_sequences > 0:
        section["max_sequences"] = message.oldest.max_candidate_sequences
    for control_input in message.control_input:
        for control in control_input.control:
            section[_ROLES[control.kind]] = control_input.name
            _check_values(control_input.name, control)
    states = [_state(state) for state in message.state]
    if states:
        section["state"] = states
    if message.iterative_sequence or message.generative_sequence:
        notes.append("iterative_sequence has no effect here")
    return section, notes


def _check_values(name: str, control: Any) -> None:
    """Controls are 0 and 1 here; others would be given to the model in vain."""
    for word in ("int32_false_true", "fp32_false_true", "bool_false_true"):
        values = list(getattr(control, word))
        if values and [float(v) for v in values] != [0.0, 1.0]:
            msg = (
                f"sequence_batching: {word} of '{name}' must be [0, 1] here, "
                f"got {values}"
            )
            raise ValueError(msg)


def _state(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"input": state.input_name, "output": state.output_name}
    for initial in state.initial_state:
        if initial.WhichOneof("state_data") == "data_file":
            msg = (
                f"sequence_batching: initial_state of '{state.input_name}' comes from "
                f"a file of raw bytes; give an .npy file as `initial` in config.toml"
            )
            raise ValueError(msg)
        found["shape"] = list(initial.dims)
    return found
