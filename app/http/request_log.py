"""The log of a request over ASGI: its id in the answer, and a line at its end.

A `Call` logs its own request, because it knows more.
"""

from __future__ import annotations

import time
from typing import Any

from app.config.restrictions import group_of
from app.errors import current_request, row_of
from app.http.access import key_group
from app.http.answer_watch import AnswerWatch, read_error
from app.http.asgi import BASE, Message, Scope, Send
from app.http.proxies import TrustedProxies
from app.observe.audit import log_management
from app.observe.journal import Asked, Failed, Journal, Wire
from app.observe.request_ids import HEADER, id_of
from engine import Cancelled

#: Bytes of the body of an error that are kept for the log.
_MOST_TEXT = 2000
#: The key of a scope for its `RequestLog`.
KEY = "popgate.log"


class RequestLog:
    """One request, from its head to its answer.

    Use `scope` and `send` instead of the server's, then call `end`. `is_done` is true
    once a call logs the request.
    """

    def __init__(
        self,
        scope: Scope,
        send: Send,
        journal: Journal,
        watch: AnswerWatch | None = None,
        proxies: TrustedProxies | None = None,
    ) -> None:
        headers = dict(scope["headers"])
        self.request_id = id_of(headers)
        rest = [header for header in scope["headers"] if header[0] != HEADER]
        self.scope: Scope = {**scope, "headers": [*rest, (HEADER, self.request_id)]}
        self.scope[KEY] = self
        self.is_done = False
        #: The name of the request's key, even if the key does not allow the request.
        self.key = ""
        peer: Any = self.scope.get("client")
        self.client = str(peer[0]) if peer else ""
        if proxies is not None and proxies.are_there:
            self.client = proxies.client_of(self.client, headers)
        self._trace = headers.get(b"traceparent", b"")
        self._send = send
        self._journal = journal
        self._watch = watch
        self._began = time.monotonic_ns()
        self._status = 0
        self._text = b""
        current_request.set(self.request_id)

    @property
    def path(self) -> str:
        """Return the path of the URL, including the base path."""
        return str(self.scope.get(BASE, "") + self.scope["path"])

    async def send(self, message: Message) -> None:
        if self._watch is not None:
            self._watch.see(message)
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = [*message.get("headers", ()), (HEADER, self.request_id)]
            message = {**message, "headers": headers}
        elif self._status >= 400 and not self.is_done:
            self._text = (self._text + message.get("body", b""))[:_MOST_TEXT]
        await self._send(message)

    def finish(self) -> None:
        """Log the request at its end, unless a call does."""
        if self._watch is not None:
            self._watch.finish()
        scope = self.scope
        # The two refer to each other, and the garbage collector runs rarely.
        scope.pop(KEY, None)
        if self.is_done:
            return
        asked = Asked(
            self.request_id,
            scope["method"],
            self.path,
            self.client,
            self._trace,
            self.key,
        )
        if self._journal.spans is not None:
            scheme, version = scope.get("scheme"), scope.get("http_version")
            headers = dict(scope["headers"])
            wire = Wire.of(scheme or "http", version or "1.1", headers)
            asked = asked._replace(wire=wire)
        ended = time.monotonic_ns()
        seconds = (ended - self._began) / 1e9
        # "Not ready" is a valid answer to a probe, not a failure. Hundreds of probes
        # must not use up the lines for failures.
        is_answer = self._status == 503 and group_of(scope["path"]) == "health"
        if 0 < self._status < 400 or is_answer:
            self._audit(asked, self._status)
            self._journal.log_without_model(asked, self._status, seconds)
            return
        status = self._status
        code, why = read_error(self._text)
        if not status:
            gone = Cancelled("the client has disconnected")
            row = row_of(gone)
            status, code, why = row.status, row.code, str(gone)
        failed = Failed(asked, None, status, code, why, ended, seconds)
        self._audit(asked, status, code, why)
        self._journal.fail(failed)

    def _audit(self, asked: Asked, status: int, code: str = "", why: str = "") -> None:
        """Log a call that changes the server, with its outcome."""
        path = self.scope["path"]
        if asked.method == "POST" and key_group(path, "POST") == "manage":
            log_management(asked, status, code, why)
