"""The file of log settings (``--log-config``), which is read again on SIGHUP::

    log_level = "debug"       # as --log-level
    access_log = "0.01"       # as --access-log

What it does not name is as the options say.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from app.config.config_keys import KeyProblem, read_section, section

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
_LARGEST_FILE = 1 << 16
_ACCESS = r"^(off|errors|all|0(\.\d+)?|1(\.0+)?)$"


@section
@dataclass(frozen=True, slots=True)
class LogConfig:
    """None is what the options say."""

    log_level: LogLevel | None = None
    access_log: Annotated[str, Field(pattern=_ACCESS)] | None = None


def read_log_config(path: Path) -> LogConfig:
    """Raises `KeyProblem` for what it cannot be, and OSError."""
    with path.open("rb") as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        msg = f"more than {_LARGEST_FILE} bytes"
        raise KeyProblem(msg)
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as e:  # TOMLDecodeError, UnicodeDecodeError
        msg = f"not TOML: {e}"
        raise KeyProblem(msg) from None
    return read_section(LogConfig, document)
