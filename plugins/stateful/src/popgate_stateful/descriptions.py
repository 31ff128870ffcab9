"""Descriptions of sequences, for the server's documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.config.sequence_config import SequenceConfig

#: The parameters of a request that starts a sequence and ends it.
SEQUENCE: Mapping[str, Any] = {
    "sequence_id": 1,
    "sequence_start": True,
    "sequence_end": True,
}
#: The same, if the identifier must be a string.
NAMED_SEQUENCE: Mapping[str, Any] = {**SEQUENCE, "sequence_id": "example"}

_CONTROL_KINDS = {"correlation_id": "CORRID"}


def sequence_batching(config: SequenceConfig) -> dict[str, Any]:
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
