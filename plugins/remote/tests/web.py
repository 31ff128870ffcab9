"""A server of files over HTTP on a real socket, which can be told to misbehave."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = 1 << 16


@dataclass
class Answer:
    """What a path answers. `cuts` are the bytes after which the connection is lost, one
    for each of the next answers; `gate` is waited for after half of the body."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    etag: str | None = None
    takes_ranges: bool = True
    says_length: bool = True
    cuts: list[int] = field(default_factory=list)
    gate: threading.Event | None = None

    def __post_init__(self) -> None:
        if self.etag is None:
            self.etag = f'"{hashlib.sha256(self.body).hexdigest()[:16]}"'


class Web:
    """The answers by path, and what was asked: method, path, its Range."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.authorizations: list[str] = []
        #: Called with path and Authorization before an answer; may give another one.
        self.check: Callable[[str, str], Answer | None] = lambda path, key: None
        self.sent = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.host = self.url.removeprefix("http://")

    def put(self, path: str, body: bytes) -> Answer:
        self.answers[path] = Answer(body)
        return self.answers[path]

    def ranges(self) -> list[str]:
        return [asked for _, _, asked in self.asked if asked]

    def start(self) -> None:
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving() -> Iterator[Web]:
    web = Web()
    web.start()
    try:
        yield web
    finally:
        web.stop()


def _cut(answer: Answer, asked: str) -> tuple[bytes, int, int]:
    """What goes out of the body, and from which byte on."""
    body, status = answer.body, answer.status
    if not (asked and answer.takes_ranges and status == 200):
        return body, status, 0
    first = int(asked.removeprefix("bytes=").partition("-")[0])
    return (body, 206, first) if first < len(body) else (b"", 416, 0)


def _headers(answer: Answer, body: bytes, status: int, first: int) -> dict[str, str]:
    headers = {"ETag": answer.etag or ""} if answer.etag else {}
    if status == 206:
        headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
    if answer.says_length:
        headers["Content-Length"] = str(len(body) - first)
    else:
        headers["Connection"] = "close"
    return headers | answer.headers


def _handler(web: Web) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            asked = self.headers.get("range", "")
            key = self.headers.get("authorization", "")
            web.asked.append((self.command, self.path, asked))
            web.authorizations.append(key)
            path = self.path.partition("?")[0]
            answer = (
                web.check(path, key)
                or web.answers.get(self.path)
                or web.answers.get(path)
                or Answer(status=404)
            )
            body, status, first = _cut(answer, asked)
            self.send_response(status)
            for name, value in _headers(answer, body, status, first).items():
                self.send_header(name, value)
            self.close_connection = not answer.says_length
            self.end_headers()
            if self.command == "HEAD":
                return
            end = min([len(body), *answer.cuts[:1]])
            self._send(answer, body, first, end)

        def _send(self, answer: Answer, body: bytes, first: int, end: int) -> None:
            for begin in range(first, end, BLOCK):
                if answer.gate is not None and begin >= len(body) // 2:
                    self.wfile.flush()
                    answer.gate.wait()
                part = body[begin : min(begin + BLOCK, end)]
                try:
                    self.wfile.write(part)
                except OSError:
                    return
                web.sent += len(part)
            if end < len(body):
                answer.cuts.pop(0)
                self.wfile.flush()
                self.close_connection = True

    return Handler
