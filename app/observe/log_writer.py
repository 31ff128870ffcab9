"""The log is written by a thread, so a stalled reader delays nothing.

A server usually writes to a pipe, whose reader may be slow or stuck. A thread that
wrote its lines itself would then wait, holding the lock of the handler. All other
threads that log would wait too, including the event loop and the handler of SIGTERM.

Waking a thread takes the interpreter from the event loop twice, which takes ten times
as long as the line. So the first line is written immediately, and further lines wait
for the next write.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from select import PIPE_BUF
from typing import TextIO

from app.sizes import counted

#: The most lines that wait to be written. Further ones are counted and dropped. A
#: message waits as if all before it were as long: each is one more line for each
#: `LONGEST_KEPT` characters.
MOST_WAITING = 20_000
#: The number of lines kept in memory, and the most characters of each.
MOST_KEPT = 500
LONGEST_KEPT = 2000
#: Seconds for which lines are gathered, unless one is an error.
GATHERED_FOR = 0.1
#: Seconds for which the exit of the process waits for unwritten lines.
PATIENCE = 1.0


class LogWriter(logging.Handler):
    """Writes records to `stream` in a thread, in the order of their arrival.

    Any thread may log. The writer drops records beyond its limit and logs their number.
    The logging thread formats each message, because its arguments may change later.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        #: None ends the thread.
        self._records: queue.SimpleQueue[logging.LogRecord | threading.Event | None]
        self._records = queue.SimpleQueue()
        self._at_once: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._dropped = 0
        #: The number of lines dropped since the process began.
        self.all_dropped = 0
        #: The last lines, as they were written.
        self.last: deque[str] = deque(maxlen=MOST_KEPT)
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if self._records.qsize() * (1 + len(message) // LONGEST_KEPT) >= MOST_WAITING:
            self._dropped += 1
            self.all_dropped += 1
            return
        record.msg, record.args = message, None
        self._records.put(record)
        if self._thread is None:  # started late: most programs log nothing
            thread = threading.Thread(target=self._run, name="popgate-log", daemon=True)
            with contextlib.suppress(RuntimeError):  # none is left; the next line tries
                thread.start()
                self._thread = thread
        if record.levelno >= logging.ERROR and self._at_once.empty():
            self._at_once.put(None)

    def _run(self) -> None:
        while True:
            items = [self._records.get()]
            while not self._records.empty():
                items.append(self._records.get())
            self._write([item for item in items if item is not None])
            if None in items:
                return
            with contextlib.suppress(queue.Empty):
                self._at_once.get(timeout=GATHERED_FOR)

    def _write(self, items: Iterable[logging.LogRecord | threading.Event]) -> None:
        """Write records, and set the events of waiting threads."""
        dropped, self._dropped = self._dropped, 0
        piece: list[str] = []
        size = 0
        if dropped:
            text = (
                f"{counted(dropped, 'line')} could not be written in time and were "
                "dropped"
            )
            logger = logging.getLogger(__name__)
            items = [
                logger.makeRecord(logger.name, logging.WARNING, "", 0, text, (), None),
                *items,
            ]
        waiting = []
        for item in items:
            if isinstance(item, threading.Event):
                waiting.append(item)
                continue
            try:
                line = f"{self.format(item)}\n"
            except Exception:
                self.handleError(item)
                continue
            self.last.append(line[:LONGEST_KEPT].rstrip("\n"))
            more = len(line) if line.isascii() else 4 * len(line)
            if size + more > PIPE_BUF:
                self._put_out(piece)
                piece, size = [], 0
            piece.append(line)
            size += more
        self._put_out(piece)
        for event in waiting:
            event.set()

    def _put_out(self, lines: Sequence[str]) -> None:
        """Write lines in one system call, so that other processes' lines on the same
        pipe do not split them.
        """
        # A `StreamHandler` does not fit: `logging.shutdown` would wait for its lock.
        if lines and self._stream is not None:  # None if it was closed before the start
            try:
                self._stream.write("".join(lines))
                self._stream.flush()
            except (OSError, ValueError):  # the disk is full, the reader has gone
                self.all_dropped += len(lines)

    def flush(self) -> None:
        """Wait until all is written, for a moment at most."""
        self.is_written()

    def close(self) -> None:
        """End the thread, once all is written. A later record starts another."""
        super().close()
        if self._thread is not None:
            self._thread = None
            self._records.put(None)
            self._at_once.put(None)

    def is_written(self) -> bool:
        """Wait until all is written, for a moment at most. Return whether it is."""
        if self._thread is None:
            return True
        written = threading.Event()
        self._records.put(written)
        self._at_once.put(None)
        return written.wait(PATIENCE)

    def __repr__(self) -> str:
        return f"<LogWriter, {self._records.qsize()} waiting>"
