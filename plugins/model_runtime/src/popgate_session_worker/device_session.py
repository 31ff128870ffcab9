"""The device's end of a session: loads a model and runs programs for the host.

A session has its own connection, and its programs run in the thread of that connection,
beside the replicas of model runners. So a run that waits for data delays neither a ping
nor another model. A session ends with its connection.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Sequence

from engine.errors import Cancelled, EngineError, ExecutionFailed
from engine.model.model_file import receive_model
from engine.programs.executor import make_executor
from engine.programs.model_data import ModelData
from engine.transport.error_report import ErrorReport
from engine.transport.messages import close_all
from popef_io import PopefError
from popgate_session_messages import (
    BETWEEN_RUNS,
    MOST_TEXT,
    SESSION_MODEL,
    Run,
    RunEnded,
    RunFailed,
)
from popgate_session_worker.host_streams import HostStreams
from popgate_session_worker.prefetch import upcoming_reads

#: Seconds that `end` waits for the run; a single step of a graph cannot be ended.
_END_TIMEOUT = 1.0

logger = logging.getLogger("engine.session.device_session")


class DeviceSession:
    """One session in a device process; made by its `OpenSession` message."""

    def __init__(
        self, number: int, sock: socket.socket, content: bytes, fds: Sequence[int]
    ) -> None:
        """Load the model. Raises the errors of loading."""
        self.number = number
        self._sock = sock
        #: Set when the session has released everything.
        self.over = threading.Event()
        told = SESSION_MODEL.decode(content)
        model = receive_model(told.sources, fds, told.executable)
        self._executor = make_executor(
            model, told.threads, told.providers, told.check_package_hash
        )
        self._options = self._executor.new_options()
        self._streams = HostStreams(
            sock, model.metadata.anchors, ModelData(model, {}), told.look_ahead
        )
        self._name = model.metadata.executable

    def serve(self) -> None:
        """Run the host's commands until it, or `end`, closes the connection."""
        try:
            # Cancelled: the session ended before it could report the outcome of a run.
            with contextlib.suppress(OSError, EOFError, Cancelled):
                while True:
                    message, fds = BETWEEN_RUNS.receive(self._sock)
                    close_all(fds)
                    # Ignore answers to a run that has failed meanwhile.
                    if isinstance(message, Run):
                        self._run(message)
        finally:
            self._executor.close()

    def end(self) -> None:
        """End the connection and the run; from any thread.

        Waits shortly for the end, so that its memory is free when a caller goes on.
        """
        self._options.terminate = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.over.wait(_END_TIMEOUT)

    def _run(self, message: Run) -> None:
        programs = message.programs
        try:
            if message.binding is not None:
                self._streams.bind(message.binding)
            if not message.resume:
                self._prepare(programs)
            for data in message.data:
                self._streams.store(data)
            self._executor.run(programs, self._streams, self._options)
            # Usually the next run has the same programs.
            self._prepare(programs)
        except Exception as error:
            self._streams.send(_failed(error))
        else:
            self._streams.send(RunEnded(self._streams.prefetches()))

    def _prepare(self, programs: Sequence[int]) -> None:
        """Prepare for a run of these programs."""
        streams = self._streams
        executable = self._executor.executable
        streams.begin(upcoming_reads(executable, programs, streams.foreseeable()))

    def __repr__(self) -> str:
        return f"<DeviceSession {self.number} of {self._name!r}, {self._streams!r}>"


def _failed(error: Exception) -> RunFailed:
    if not isinstance(error, EngineError | PopefError):
        logger.error("programs of a session failed", exc_info=error)
    blame = isinstance(error, ExecutionFailed) and error.callers_fault
    report = ErrorReport.of(error)
    return RunFailed(ErrorReport(report.error, report.message[:MOST_TEXT]), blame)
