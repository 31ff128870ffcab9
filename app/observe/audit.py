"""One line for each call that manages the server: the caller, the call, and the
outcome.

The lines are records of the logger ``app.audit``, their fields as `extra`. No level and
no `--access-log` leaves them out.
"""

from __future__ import annotations

import logging

from app.errors import help_address
from app.observe.journal import Asked
from app.observe.log_text import quoted

logger = logging.getLogger("app.audit")


def log_management(asked: Asked, status: int, code: str, why: str) -> None:
    """Log a call that was answered, or that ended without an answer (499)."""
    fields = {
        "request_id": asked.request_id.decode(),
        "method": asked.method,
        "path": asked.path,
        "status": status,
        "client": asked.client,
        "key": asked.key,
        "code": code,
        "error": why,
        "help": help_address(code) if code else "",
    }
    known = {name: value for name, value in fields.items() if value != ""}
    outcome = "done" if status < 400 else "refused" if status < 500 else "failed"
    words = " ".join(f"{name}={quoted(value)}" for name, value in known.items())
    text = f"management call {outcome}: {words}"
    # This does the work of `logger.info`, but at any level.
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None)
    vars(record).update({**known, "outcome": outcome})
    logger.handle(record)
