"""A server that does what a test says, byte by byte: a wrong, slow or other one."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

from tests.support import WAIT

#: What is done with a connection on which a request has come; True keeps it.
Reply: TypeAlias = "Callable[[socket.socket], bool]"

METADATA = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}
ANSWER = {
    "model_name": "m",
    "model_version": "1",
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [3.0, 5.0]}],
}


def http(
    document: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> bytes:
    """An answer in JSON."""
    body = json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def says(data: bytes, *, keep: bool = True) -> Reply:
    """Sends these bytes, and closes unless told to keep."""

    def reply(connection: socket.socket) -> bool:
        connection.sendall(data)
        return keep

    return reply


def waits(released: threading.Event) -> Reply:
    """Says nothing until it is released, then closes."""

    def reply(_connection: socket.socket) -> bool:
        released.wait(WAIT)
        return False

    return reply


class Peer:
    """Listens on a port; inference is answered by `replies`, one after the other (the
    last again and again), questions by metadata. A context manager."""

    def __init__(self, *replies: Reply, extensions: list[str] | None = None) -> None:
        self.replies = list(replies)
        self.extensions = ["binary_tensor_data"] if extensions is None else extensions
        self.metadata: dict[str, Any] = METADATA
        self.requests: list[tuple[str, bytes, bytes]] = []  # line, head, body
        self.connections = 0
        self.released = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def inferences(self) -> list[tuple[str, bytes, bytes]]:
        return [r for r in self.requests if r[0].split(" ")[1].endswith("/infer")]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(
                target=self._serve, args=(connection,), daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as source:
            try:
                while self._one(connection, source):
                    pass
            except OSError:
                pass

    def _one(self, connection: socket.socket, source: Any) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = source.readline()
            if not line:
                return False
            head += line
        lower = head.lower()
        at = lower.find(b"\r\ncontent-length:")
        size = int(lower[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        body = source.read(size)
        line = head.split(b"\r\n", 1)[0].decode()
        self.requests.append((line, head, body))
        path = line.split(" ")[1]
        if path.endswith("/infer"):
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            return reply(connection)
        if path == "/v2":
            connection.sendall(http({"name": "peer", "extensions": self.extensions}))
        else:
            connection.sendall(http(self.metadata))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.released.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
