"""Logging set up once, for people (text) or for log systems (JSON lines).

`LogControl` changes it while the server runs, in the words of the protocol's logging
extension.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from app.observe.log_text import escaped, escaped_lines
from app.observe.log_writer import LogWriter

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_CHATTY = ("uvicorn", "uvicorn.error", "uvicorn.access")
_CLIENTS = ("httpx", "httpcore", "asyncio")
_RETOLD = ("engine.devices.device", "engine.runner.replica_set")

# The attributes of every logging record. Any other was given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (ISO 8601, UTC), level, logger, message, extras."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _iso_8601(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        extras = vars(record).items()
        line.update({key: value for key, value in extras if key not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            text = orjson.dumps(line, default=str).decode()
        except TypeError:  # half of a surrogate pair, for example in a path
            text = json.dumps(line, default=str)
        # Such characters occur in strings only, where JSON has the same escapes.
        return text if text.isprintable() else escaped(text, "\\u{:04x}")


class TextFormatter(logging.Formatter):
    """Text for people.

    A message cannot end its line: further lines are indented, and control characters of
    terminals are escaped.
    """

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if text.isprintable() else escaped_lines(text)


class IsoFormatter(TextFormatter):
    """Text for people, with times in ISO 8601 and UTC."""

    def formatTime(  # noqa: N802
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        return _iso_8601(record)


def _iso_8601(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def set_up_logging(level: str, style: str = "text") -> None:
    """Send every logger's records to standard error, in one style, by a thread.

    uvicorn's messages about its own start and end appear only at `debug`: `popgate
    serve` prints the facts that people need.
    """
    handler = LogWriter(sys.stderr)
    handler.setFormatter(_formatter(style))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CHATTY:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    _set_chatter(verbose=level == "debug")


def lines_dropped() -> int:
    """Return how many lines this process could not write in time."""
    writers = [h for h in logging.getLogger().handlers if isinstance(h, LogWriter)]
    return sum(writer.all_dropped for writer in writers)


def last_lines(most: int) -> list[str]:
    """Return the last lines that this process has written, the oldest first."""
    writers = [h for h in logging.getLogger().handlers if isinstance(h, LogWriter)]
    return [line for writer in writers for line in list(writer.last)[-most:]]


def is_written() -> bool:
    """Return whether all logged records are written, after a short wait at most.

    False means that no program reads the log, and a thread holds the lock of standard
    error.
    """
    writers = [h for h in logging.getLogger().handlers if isinstance(h, LogWriter)]
    return all(writer.is_written() for writer in writers)


def _formatter(style: str) -> logging.Formatter:
    return JsonFormatter() if style == "json" else TextFormatter()


def _set_chatter(*, verbose: bool) -> None:
    level = logging.DEBUG if verbose else logging.WARNING
    for name in _CHATTY:
        logging.getLogger(name).setLevel(level)
    # The gateway logs devices and models in its own words, unless the environment sets
    # the engine's level (docs/how-to/observe.md).
    if logging.getLogger("engine").level == logging.NOTSET:
        for name in _RETOLD:
            logging.getLogger(name).setLevel(level)
    # Files that are written for temporary models need no line.
    if logging.getLogger("popef_io").level == logging.NOTSET:
        logging.getLogger("popef_io.writer").setLevel(level)
    # HTTP clients log each request, which does not belong in our log.
    for name in _CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of the log (Triton's logging extension, without its file).

    `verbose_level` above 0 shows debugging records. `format` is ``default`` (the format
    at the start) or ``ISO8601`` (text with times in UTC). JSON lines always have such
    times and stay unchanged.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: str = "default"

    @classmethod
    def of_level(cls, level: str) -> LogSettings:
        """Return the settings that show what a logging level does, for example
        ``info``.
        """
        number = logging.getLevelNamesMapping()[level.upper()]
        return cls(
            info=number <= logging.INFO,
            warning=number <= logging.WARNING,
            error=number <= logging.ERROR,
            verbose_level=int(number <= logging.DEBUG),
        )

    def shows(self, level: int) -> bool:
        """Return whether records of a level are written. Critical ones always are."""
        if level >= logging.CRITICAL:
            return True
        if level >= logging.ERROR:
            return self.error
        if level >= logging.WARNING:
            return self.warning
        return self.info if level >= logging.INFO else self.verbose_level > 0


class LogControl(logging.Filter):
    """Changes the records and the form that the root logger's handlers write.

    It changes nothing before the first `apply`. `on_change` is called after each
    `apply`. For one thread at a time.
    """

    def __init__(
        self,
        level: str,
        style: str = "text",
        on_change: Callable[[LogSettings], None] = lambda settings: None,
    ) -> None:
        super().__init__()
        self.settings = LogSettings.of_level(level)
        self._on_change = on_change
        self._style = style

    def apply(self, settings: LogSettings) -> None:
        """Apply `settings` to the log."""
        self.settings = settings
        root = logging.getLogger()
        iso = settings.format == "ISO8601" and self._style != "json"
        for handler in root.handlers:
            handler.addFilter(self)  # added only once
            handler.setFormatter(IsoFormatter() if iso else _formatter(self._style))
        levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
        shown = (level for level in levels if settings.shows(level))
        root.setLevel(next(shown, logging.CRITICAL))
        _set_chatter(verbose=settings.verbose_level > 0)
        self._on_change(settings)

    def filter(self, record: logging.LogRecord) -> bool:
        # Audit lines ignore levels (app/observe/audit.py).
        return record.name == "app.audit" or self.settings.shows(record.levelno)

    def __repr__(self) -> str:
        return f"<LogControl {self.settings}>"
