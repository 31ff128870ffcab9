"""The file of log settings (``--log-config``), which is read again on SIGHUP::

    log_level = "debug"       # as --log-level
    access_log = "0.01"       # as --access-log

For settings that it does not name, the options apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from app.config.config_keys import read_bounded, read_document, section

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
_LARGEST_FILE = 1 << 16
_ACCESS = r"^(off|errors|all|0(\.\d+)?|1(\.0+)?)$"


@section
@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of the file; None if the option's value applies."""

    log_level: LogLevel | None = None
    access_log: Annotated[str, Field(pattern=_ACCESS)] | None = None


def read_log_config(path: Path) -> LogConfig:
    """Raise `KeyProblem` for invalid content, and OSError."""
    return read_document(LogConfig, read_bounded(path, _LARGEST_FILE))
