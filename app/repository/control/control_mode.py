"""Modes of `--model-control-mode`: when models are loaded, and by whom.

- ``managed``: all at the start, then by request.
- ``none``: all at the start, and nothing after that.
- ``poll``: the content of the folder, scanned repeatedly.
- ``explicit``: those named by `--load-model`, then by request.

The last three are Triton's. Polling uses a change only if two scans in a row find the
same content, so it skips files that are still being written. Files that are renamed
into place are complete in any case.
"""

from __future__ import annotations

from enum import Enum

from app.errors import HttpError
from app.repository.records import NEVER_LOADED


class ControlMode(Enum):
    """The modes, as they are written."""

    MANAGED = "managed"
    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"

    @property
    def takes_requests(self) -> bool:
        return self in (ControlMode.MANAGED, ControlMode.EXPLICIT)

    @property
    def not_loaded_message(self) -> str:
        """Return the message for a model added after the start; `{}` is its name."""
        if self.takes_requests:
            return NEVER_LOADED
        if self is ControlMode.POLL:
            return (
                "the model is not loaded yet; the next scan of the repository loads it"
            )
        return (
            "the model is not loaded; with --model-control-mode none only a restart "
            "loads it"
        )


class ControlRefused(HttpError):
    """Clients may not load and unload models here. The message is Triton's."""

    def __init__(self, verb: str, name: str, mode: ControlMode) -> None:
        super().__init__(
            503,
            f"failed to {verb} '{name}', explicit model load / unload is not allowed "
            f"if polling is enabled or with --model-control-mode={mode.value}; "
            f"use managed or explicit",
            "model_control",
        )
