"""Logging from environment variables, for users of a program that they did not write.

`POPEF_LOG_LEVEL` (OFF, ERR, WARN, INFO, DEBUG, TRACE) and `POPEF_LOG_DEST` (stdout,
stderr or the name of a file) follow the PopEF User Guide (7.1, 7.2). The same two
variables exist for other prefixes. If no level is set, this module sets nothing up. The
loggers belong to the standard `logging` module, so the program then decides. See
docs/how-to/observe.md.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable

#: A level below DEBUG, for single blobs and single runs.
TRACE = 5
logging.addLevelName(TRACE, "TRACE")

OFF = logging.CRITICAL + 10
LEVELS = {
    "OFF": OFF,
    "ERR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}
_LETTER = {logging.ERROR: "E", logging.WARNING: "W", logging.INFO: "I"} | {
    logging.CRITICAL: "E",
    logging.DEBUG: "D",
    TRACE: "T",
}


class _Formatter(logging.Formatter):
    """`2026-11-21 14:03:07.123 I 4711 popgate-cpu:0 engine.worker.loading: message`."""

    default_msec_format = "%s.%03d"

    def __init__(self, label: str) -> None:
        where = f"%(process)d {label}" if label else "%(process)d"
        super().__init__(f"%(asctime)s %(letter)s {where} %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.letter = _LETTER.get(record.levelno, "-")
        return super().format(record)


def configure_logging(prefix: str, loggers: Iterable[str], label: str = "") -> bool:
    """Set up `loggers` according to `{prefix}_LOG_LEVEL` and `{prefix}_LOG_DEST`.

    Return whether there is something to log. If not, the loggers are untouched, or
    silent if the level is OFF. Otherwise their records go only to the destination.
    `label` distinguishes processes. Invalid values cause a warning in the log and no
    error, because they must not keep a program from running. May be called again.
    """
    wanted = os.environ.get(f"{prefix}_LOG_LEVEL", "").strip()
    if not wanted:
        return False
    level = LEVELS.get(wanted.upper(), logging.WARNING)
    complaints = []
    if wanted.upper() not in LEVELS:
        known = ", ".join(LEVELS)
        complaints.append(
            f"{prefix}_LOG_LEVEL must be one of {known}; got {wanted!r}, so the level "
            "is WARN"
        )
    names = list(loggers)
    if level == OFF:
        for name in names:
            logging.getLogger(name).setLevel(OFF)
        return False
    handler, complaint = _handler(os.environ.get(f"{prefix}_LOG_DEST", "").strip())
    complaints += [f"{prefix}_LOG_DEST: {complaint}"] if complaint else []
    handler.setFormatter(_Formatter(label))
    for name in names:
        logger = logging.getLogger(name)
        for old in logger.handlers:
            old.close()
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level)
    for complaint in complaints:
        logging.getLogger(names[0]).warning("%s", complaint)
    return True


def _handler(destination: str) -> tuple[logging.Handler, str]:
    """Return a handler for the destination, and what is wrong with the destination."""
    if destination.lower() in ("", "stderr"):
        return logging.StreamHandler(sys.stderr), ""
    if destination.lower() == "stdout":
        return logging.StreamHandler(sys.stdout), ""
    try:
        # Append, because the device processes write to the same file.
        return logging.FileHandler(destination, encoding="utf-8"), ""
    except OSError as error:
        reason = (
            f"cannot write to {destination!r}: {error.strerror or error}; the log goes "
            "to stderr"
        )
        return logging.StreamHandler(sys.stderr), reason
