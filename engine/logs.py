"""Logging of the engine and its device processes, as environment variables set it.

The variables are `MODEL_RUNTIME_LOG_LEVEL` and `MODEL_RUNTIME_LOG_DEST`, see
`popef_io.logs`. Device processes inherit them and write to the same place. Each line
has the name of its process.
"""

from __future__ import annotations

import logging
import os

from popef_io import configure_logging

#: Replaces a line end within a record of a device process if the owner logs that
#: record.
LINE_END = "\x1e"
_LOGGERS = {
    "MODEL_RUNTIME": ("engine", "model_runtime"),
    "POPEF": ("popef_io", "popef"),
}

configure_logging("MODEL_RUNTIME", _LOGGERS["MODEL_RUNTIME"])


class OneLine(logging.Formatter):
    """Writes a record as one line, with `LINE_END` for its line ends."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", LINE_END)


def label_process(label: str) -> None:
    """Put the name of this process into every line of the log that the environment sets
    up.
    """
    for prefix, names in _LOGGERS.items():
        configure_logging(prefix, names, label)


def standard_output_is_wanted() -> bool:
    """Return whether a device process logs to standard output. Only then does it
    inherit standard output.
    """
    return any(
        os.environ.get(f"{prefix}_LOG_LEVEL")
        and os.environ.get(f"{prefix}_LOG_DEST", "").strip().lower() == "stdout"
        for prefix in _LOGGERS
    )
