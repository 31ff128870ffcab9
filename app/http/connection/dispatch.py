"""`Dispatch`: turns the head of a request into an exchange or an ASGI scope.

An inference whose body has a length becomes an `Exchange`. It needs no ASGI task,
future or message, which halves the cost of a small request (bench/LOG.md). Any other
request becomes a scope for the application. So does an unusual inference: its body has
no length, is too long or is compressed, or it uses Expect, events or HTTP/1.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic_ns
from typing import Any, Final
from urllib.parse import unquote

import httptools

from app.codec.model import ALL_AT_ONCE
from app.errors import HttpError
from app.http.access import key_group
from app.http.application import Application
from app.http.asgi import BARE, BASE, CONNECTION, NAMES, Scope
from app.http.asgi_call import wants_events
from app.http.connection.cycle import AsgiCycle
from app.http.connection.ends import Peer
from app.http.connection.exchange import Exchange, ExchangeConnection
from app.http.connection.framing import Head, bad_http
from app.http.connection.known_head import LARGEST_BODY, KnownHead
from app.http.connection_limit import Entry

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


class Dispatch:
    """Handles the heads of all connections of a listener."""

    def __init__(self, front: Application) -> None:
        self.front = front
        self.service = front.service
        self.access = front.access
        #: The paths of requests that can become exchanges.
        self.short = front.short
        # Clients usually repeat the same URL.
        self._last_url = b""
        self._last_path = ""

    def exchange(
        self, head: Head, connection: ExchangeConnection, names: tuple[str, ...]
    ) -> Exchange | None:
        """Return the exchange for a head; None if the application must answer it."""
        if head.method != b"POST" or head.version != "1.1":
            return None
        path = self._path(head.target)
        if path not in self.short:
            return None
        front, access = self.front, self.access
        headers = dict(head.headers)
        if len(headers) < len(head.headers):
            access.check_once(head.headers)
        if (
            not 0 <= head.length <= self.service.limits.max_body_bytes
            or b"content-encoding" in headers
            or b"expect" in headers
            or (b"accept" in headers and wants_events(headers))
            or (b"accept-encoding" in headers and front.coding_for(headers) is not None)
            or (front.origins and b"origin" in headers)
        ):
            return None
        exchange = Exchange(
            self.service,
            path,
            connection.base + path,
            headers,
            connection,
            head.keep_alive,
        )
        if access.guards_inference:
            exchange.key = access.check_inference(path, headers, names)
        exchange.is_large = head.length > ALL_AT_ONCE
        exchange.arrived = monotonic_ns()
        return exchange

    def _path(self, url: bytes) -> str:
        if url != self._last_url:
            path = url.partition(b"?")[0].decode("latin-1")
            self._last_path = unquote(path) if "%" in path else path
            self._last_url = url
        return self._last_path

    def known(self, data: bytes, begun: Exchange) -> KnownHead | None:
        """Return the head of an exchange, to recognise the next request that begins
        alike.
        """
        return KnownHead.of(
            data,
            begun.path,
            begun.url_path,
            begun.headers,
            begun.key,
            self.access.rules,
            min(self.service.limits.max_body_bytes, LARGEST_BODY),
            self.access.restrictions.header_names,
        )

    def target(self, url: bytes) -> tuple[bytes, str, bool]:
        """Return the URL without the base path, the base path, and whether the URL was
        the base path alone.
        """
        base = self.front.base_path
        if not base or not url.startswith(base):
            return url, "", False
        rest = url[len(base) :]
        if rest[:1] not in (b"/", b"?", b""):
            return url, "", False
        is_bare = rest[:1] != b"/"
        return (b"/" + rest if is_bare else rest), base.decode(), is_bare

    def run(
        self, cycle: AsgiCycle, loop: asyncio.AbstractEventLoop, tasks: set[Any]
    ) -> None:
        """Let the application answer a request, in a task that is one of `tasks`."""
        task = loop.create_task(cycle.run(self.front))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def scope(
        self, head: Head, peer: Peer, ending: object, state: Mapping[str, Any]
    ) -> Scope:
        """Return the scope of a request. Raises `HttpError` if its URL is invalid.

        `ending` is the `Ending` of its connection.
        """
        try:
            # Declared as Any, because httptools' types do not say that the path may be
            # missing.
            url: Any = httptools.parse_url(head.target)
        except httptools.HttpParserInvalidURLError:
            raise bad_http("") from None
        path: str = url.path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "server": peer.ends.server,
            "client": peer.ends.client,
            "scheme": peer.ends.scheme,
            "method": head.method.decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": head.headers,
            "state": dict(state),
            CONNECTION: ending,
        }
        if peer.base:
            scope[BASE] = peer.base
            if peer.is_bare:
                scope[BARE] = True
        if peer.ends.names:
            scope[NAMES] = peer.ends.names
        return scope


def check_extra(head: Head, entry: Entry) -> None:
    """Raise for requests that a connection beyond the limit may not make."""
    path = unquote(head.target.partition(b"?")[0].decode("latin-1"))
    group = key_group(path, head.method.decode())
    if group is None or group == "manage":
        return
    msg = "the server has reached its maximum number of connections (--max-connections)"
    if entry is Entry.EXTRA_OF_ADDRESS:
        msg = (
            "this address has reached its maximum number of connections "
            "(--max-connections-per-address)"
        )
    raise HttpError(503, msg, "too_many_connections", ((b"retry-after", b"1"),))
