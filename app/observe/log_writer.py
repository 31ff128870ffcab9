"""The log is written by a thread: a reader that stands still holds nothing up.

What a server writes goes to a pipe, as a rule, whose reader may be slow or stuck. A
thread that writes a line itself then waits for it with the lock of the handler, and all
others that log wait with it, the event loop and the handler of SIGTERM among them.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import TextIO

from app.sizes import counted

#: Lines that wait to be written; those beyond are counted and dropped.
MOST_WAITING = 20_000
#: Seconds that the end of the process waits for what is not written yet.
PATIENCE = 1.0


class LogWriter(logging.Handler):
    """Writes records to `stream` in a thread, in the order in which they came.

    Any thread may log; what does not fit is dropped and told. Messages are made where
    they are logged, as what they speak of may change afterwards.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        self._records: queue.SimpleQueue[logging.LogRecord | threading.Event]
        self._records = queue.SimpleQueue()
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._records.qsize() >= MOST_WAITING:
            self._dropped += 1
            return
        record.msg, record.args = record.getMessage(), None
        if self._thread is None:  # most programs that set logging up log nothing
            self._thread = threading.Thread(
                target=self._run, name="popgate-log", daemon=True
            )
            self._thread.start()
        self._records.put(record)

    def _run(self) -> None:
        while True:
            record = self._records.get()
            if isinstance(record, threading.Event):
                record.set()
                continue
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = f"{counted(dropped, 'line')} could not be written in time"
                logger = logging.getLogger(__name__)
                told = logger.makeRecord(
                    logger.name, logging.WARNING, "", 0, text, (), None
                )
                self._write(told)
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        # Not by a `StreamHandler`, whose lock `logging.shutdown` would wait for.
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._stream is not None:  # it was closed before the process began
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(f"{line}\n")
                self._stream.flush()

    def flush(self) -> None:
        """Wait until all is written, for a moment at most."""
        self.is_written()

    def is_written(self) -> bool:
        """Wait until all is written, for a moment at most; whether it is."""
        if self._thread is None:
            return True
        written = threading.Event()
        self._records.put(written)
        return written.wait(PATIENCE)

    def __repr__(self) -> str:
        return f"<LogWriter, {self._records.qsize()} waiting>"
