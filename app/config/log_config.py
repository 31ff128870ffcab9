"""The file of log settings (``--log-config``), which is read again on SIGHUP::

    log_level = "debug"       # as --log-level
    access_log = "0.01"       # as --access-log

For settings that it does not name, the options apply.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from app.config.config_keys import checked, read_bounded, read_document, section
from app.sizes import parse_ratio

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
_LARGEST_FILE = 1 << 16


def _access(value: object) -> str:
    text = value.strip().lower() if isinstance(value, str) else ""
    with suppress(ValueError):
        parse_ratio(text)
        return text
    raise ValueError('"off", "errors", "all" or a share between 0 and 1, as in "0.01"')


@section
@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of the file; None if the option's value applies."""

    log_level: LogLevel | None = None
    access_log: Annotated[str, checked(_access)] | None = None


def read_log_config(path: Path) -> LogConfig:
    """Raise `KeyProblem` for invalid content, and OSError."""
    return read_document(LogConfig, read_bounded(path, _LARGEST_FILE))
