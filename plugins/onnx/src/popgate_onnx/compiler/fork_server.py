"""A process that has imported the compiler and forks a process for each job.

Compiling needs numpy, onnx and ONNX Runtime. Importing them takes a quarter of a second
of processor time, more than compiling most models takes. So one process imports them
once, and forks for each job. It runs no part of a model itself and has one thread, so a
forked process is as good as a new one.

`ForkServer` is the owner's side. The process ends when the owner closes its end of the
socket.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence

from engine.owner import environment, leave_ending_to_owner, starting
from engine.transport.messages import Message, Receiver, close_all, send

# Not `-m`, because this module's own package imports it.
_START = f"import sys; from {__name__} import main; main(sys.argv[1:])"
#: The most bytes of a message.
_MOST = 64


class Fork(Message, frozen=True):
    """Asks for a new process. Beside it are the descriptors of the job."""

    def descriptors(self) -> int:
        return 3


class Wait(Message, frozen=True):
    """Asks for the exit code of a process, after it has ended."""

    process: int


class ForkReply(Message, frozen=True):
    """The number of a new process, or the exit code of one that has ended."""

    number: int


QUESTIONS = Receiver[Fork | Wait](Fork, Wait, most=_MOST)
ANSWERS = Receiver[ForkReply](ForkReply, most=_MOST)


class ForkServer:
    """Starts processes by forking. Thread-safe. Its owner closes it.

    Each process calls `function(stdin, stdout, owner)` of `module`, with three
    descriptors, and ends. `imports` are modules that it finds imported.
    """

    def __init__(self, module: str, function: str, imports: Sequence[str]) -> None:
        # Threads hold this lock from sending a message until they have its answer.
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, starting():
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-c", _START, str(theirs.fileno())),
                    *(module, function, *imports),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # A thread pool would not survive the fork.
                env=environment() | {"OPENBLAS_NUM_THREADS": "1"},
            )
        self._socket = ours
        self._process = process
        self.close = weakref.finalize(self, _end, process, ours)
        """End the process. The forked processes go on. Callable from any thread."""

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended, whether or not `close` was called."""
        return self._process.poll() is not None

    def fork(self, stdin: int, stdout: int, owner: int) -> int:
        """Fork the server. Return the number of the new process. Raises OSError if the
        server is gone.
        """
        return self._ask(Fork(), [stdin, stdout, owner])

    def wait(self, number: int) -> int:
        """Wait for a process and return its exit code, or the negative number of the
        signal that ended it. Call it once for each process. Raises OSError if the
        server is gone.
        """
        return self._ask(Wait(number))

    def _ask(self, question: Fork | Wait, fds: Sequence[int] = ()) -> int:
        with self._lock:
            send(self._socket, question, fds)
            try:
                answer, _ = ANSWERS.receive(self._socket)
            except EOFError:
                raise ConnectionResetError("the fork server has ended") from None
        return answer.number


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    # This ends the wait of a thread that waits for an answer.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    process.kill()
    process.wait()
    connection.close()


# -- in the process


def main(arguments: list[str]) -> None:
    """Serve until the owner is gone. Never returns."""
    leave_ending_to_owner()
    number, module, function, *imports = arguments
    job = getattr(importlib.import_module(module), function)
    for name in imports:
        importlib.import_module(name)
    with socket.socket(fileno=int(number)) as connection:
        while _serve(connection, job):
            pass
    os._exit(0)


def _serve(connection: socket.socket, job: Callable[[int, int, int], None]) -> bool:
    """Handle one message. Return False if none follows."""
    try:
        message, descriptors = QUESTIONS.receive(connection)
    except EOFError:
        return False
    if isinstance(message, Wait):
        _, status = os.waitpid(message.process, 0)
        answer = os.waitstatus_to_exitcode(status)
    else:
        answer = os.fork()
        if answer == 0:
            connection.close()
            stdin, stdout, owner = descriptors
            job(stdin, stdout, owner)
            sys.stderr.flush()
            os._exit(0)  # threads of a model may still run
        close_all(descriptors)
    try:
        send(connection, ForkReply(answer))
    except OSError:
        return False
    return True
