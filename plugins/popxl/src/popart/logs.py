"""Logging by the original's environment variables.

POPART_LOG_LEVEL, POPART_LOG_DEST, POPART_LOG_CONFIG and POPART_LOG_FORMAT are read at
every log call, so a running process may set them.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime

LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERR", "CRITICAL", "OFF")
_DEFAULT = "WARN"
_FORMAT = "[%Y-%m-%d %H:%M:%S.%e] [%n] [%L] %v"


def _rank(level: str) -> int:
    name = {"WARNING": "WARN", "ERROR": "ERR"}.get(level.upper(), level.upper())
    return LEVELS.index(name) if name in LEVELS else LEVELS.index(_DEFAULT)


def _level_of(module: str) -> int:
    path = os.environ.get("POPART_LOG_CONFIG")
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                given = json.load(file)
            if isinstance(given, dict):
                found = given.get(module, given.get("all"))
                if isinstance(found, str):
                    return _rank(found)
        except (OSError, ValueError):
            pass  # ignore an invalid file
    return _rank(os.environ.get("POPART_LOG_LEVEL", _DEFAULT))


def _set_level(module: str) -> int:
    """Return the level that the program set for the module, else the environment's."""
    for name in (module, "all"):
        logger = _loggers.get(name)
        if logger is not None and logger.level is not None:
            return _rank(logger.level)
    return _level_of(module)


def log(module: str, level: str, text: str, least: str | None = None) -> None:
    """Write `text` if the environment allows this level of this module.

    least: the level set for the logger; it overrides the environment's.
    """
    if _rank(level) < (_set_level(module) if least is None else _rank(least)):
        return
    now = datetime.now()
    line = os.environ.get("POPART_LOG_FORMAT", _FORMAT)
    for mark, value in (
        ("%Y", f"{now:%Y}"),
        ("%m", f"{now:%m}"),
        ("%d", f"{now:%d}"),
        ("%H", f"{now:%H}"),
        ("%M", f"{now:%M}"),
        ("%S", f"{now:%S}"),
        ("%e", f"{now.microsecond // 1000:03}"),
        ("%n", f"popart:{module}"),
        ("%l", level.lower()),
        ("%L", level[0]),
        ("%^", ""),
        ("%$", ""),
        ("%v", text),
    ):
        line = line.replace(mark, value)
    _write(f"{line}\n")


def _write(line: str) -> None:
    where = os.environ.get("POPART_LOG_DEST", "stderr")
    if where in ("stdout", "stderr"):
        stream = sys.stdout if where == "stdout" else sys.stderr
        stream.write(line)
        stream.flush()
        return
    try:
        with open(where, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError:
        sys.stderr.write(line)


class Logger:
    """Writes lines of one module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.level: str | None = None

    def setLevel(self, level: str) -> None:  # noqa: N802 - the original's name
        """Omit lines of lower levels, regardless of the environment.

        The logger `all` sets it for all modules that have no level of their own.
        """
        self.level = level

    def debug(self, text: str) -> None:
        """Write a line for debugging."""
        log(self._name, "DEBUG", text, self.level)

    def info(self, text: str) -> None:
        """Write a line of information."""
        log(self._name, "INFO", text, self.level)

    def warn(self, text: str) -> None:
        """Write a warning."""
        log(self._name, "WARN", text, self.level)

    def error(self, text: str) -> None:
        """Write a line about an error."""
        log(self._name, "ERR", text, self.level)


_loggers: dict[str, Logger] = {}


def getLogger(name: str = "all") -> Logger:  # noqa: N802 - the original's name
    """Return the logger of a module. Each module has one."""
    return _loggers.setdefault(name, Logger(name))
