"""Logging set up once, for people (text) or for log systems (JSON lines)."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import orjson

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

# What logging puts on every record: anything else was given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (ISO 8601, UTC), level, logger, message, extras."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        extras = vars(record).items()
        line.update({key: value for key, value in extras if key not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up_logging(level: str, style: str = "text") -> None:
    """Sends every logger's records to standard error, in one style.

    uvicorn's chatter about its own start and end is shown from `debug` on only:
    `popgate serve` prints what a person wants to know.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter() if style == "json" else logging.Formatter(_TEXT)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    chatter = logging.DEBUG if level == "debug" else logging.WARNING
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(chatter)
    # A client without credentials of ours: its requests are not our log's business.
    for name in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(max(chatter, logging.WARNING))
