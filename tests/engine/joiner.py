"""A process that joins a device: `python -m tests.engine.joiner FD` obeys what comes
over the socket, until its other end is closed. `Joiner` is that end."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from engine import (
    Device,
    JoinedDevice,
    JoinedRunner,
    ModelRunner,
    Request,
    RunnerDescription,
    Tensor,
)
from engine.owner import environment
from engine.transport import control
from engine.transport.error_report import ErrorReport
from engine.transport.messages import Message, Receiver, send
from tests.support import WAIT


class Document(Message, frozen=True):
    """What a test asks or answers, and how many descriptors are beside it."""

    content: dict[str, Any]
    fds: int = 0

    def descriptors(self) -> int:
        return self.fds


DOCUMENT = Receiver[Document](Document)


class Joiner:
    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid = pid
        self._sock = sock

    def ask(self, op: str, fds: tuple[int, ...] = (), **message: Any) -> Any:
        """Raises what the other side raises, as an engine error."""
        question = Document({"op": op, **message}, len(fds))
        answer, _ = control.ask(self._sock, question, Document, fds)
        return answer.content["answer"]

    def join(self, device: Device, runner: ModelRunner) -> None:
        door = device.invite()
        description = runner.description.to_message()
        with door:
            self.ask("join", (door.fileno(),), id=device.id, runner=description)


@contextmanager
def joiner() -> Iterator[Joiner]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", "-m", "tests.engine.joiner", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment())
    theirs.close()
    mine.settimeout(WAIT)
    try:
        with mine:
            yield Joiner(mine, process.pid)
    finally:
        process.wait(WAIT)


def main(sock: socket.socket) -> None:
    devices: dict[str, JoinedDevice] = {}
    runners: list[JoinedRunner] = []
    requests: list[Request] = []

    def obey(message: dict[str, Any], fds: list[int]) -> Any:
        match message["op"]:
            case "join":
                name = message["id"]
                devices[name] = JoinedDevice(name, socket.socket(fileno=fds[0]))
                description = RunnerDescription.from_message(message["runner"])
                runners.append(JoinedRunner(description, devices))
                return None
            case "submit":
                array = np.array(message["rows"], message.get("dtype", "f4"))
                feed = {message["input"]: Tensor.from_numpy(array)}
                requests.append(runners[-1].submit(feed))
                return None
            case "collect":
                found: list[Any] = []
                for request in requests:
                    assert request.wait(WAIT)
                    if request.error is not None:
                        found.append(type(request.error).__name__)
                    else:
                        (output,) = request.outputs.values()
                        found.append([output.numpy().tolist(), request.batch_rows])
                requests.clear()
                return found
            case other:
                raise AssertionError(other)

    while True:
        try:
            message, fds = DOCUMENT.receive(sock)
        except EOFError:
            return
        try:
            send(sock, Document({"answer": obey(message.content, fds)}))
        except Exception as error:
            send(sock, ErrorReport.of(error))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
