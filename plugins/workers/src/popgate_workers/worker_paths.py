"""`WorkerPaths`: the infer paths of the models that a worker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from app.http.connection.exchange import Exchange
from app.serving.keys import Keys
from app.serving.table import ModelEntry, ModelTable

#: Seconds between checks whether awaited bodies have arrived.
LINGER_TICK = 0.01


class WorkerPaths:
    """The requests that a worker takes. For its event loop's thread.

    `connections` are its open connections. Paths of removed models stay in the table
    for requests whose bodies are arriving, `drain_timeout` seconds at most.
    """

    def __init__(
        self,
        table: ModelTable,
        keys: Keys,
        connections: Collection[Any],
        drain_timeout: float,
    ) -> None:
        self._table = table
        self._keys = keys
        self._connections = connections
        self._drain_timeout = drain_timeout
        #: Infer paths that new requests may use. The table also has the paths of
        #: requests whose bodies are still arriving.
        self.usable: dict[str, ModelEntry] = {}
        #: The infer paths among them for requests without ASGI
        #: (app/http/connection/protocol.py).
        self.short: dict[str, ModelEntry] = {}
        #: The infer paths of requests through ASGI.
        self.local: dict[object, str] = {}

    def publish(
        self, name: str, entries: Collection[ModelEntry], default: str
    ) -> dict[str, ModelEntry]:
        """Publish the versions of a model that can run now.

        Return, by path, the versions that no longer run but may have requests. They
        remain in the table until `linger` ends.
        """
        before = {p: e for p, e in self._table.paths.items() if e.spec.name == name}
        self._table.publish(name, entries, default=default)
        paths = self._table.paths
        now = {path: e for path, e in paths.items() if e in entries}
        for path in before:
            self.usable.pop(path, None)
        self.usable.update(now)
        self.renew_short()
        left = {path: e for path, e in before.items() if path not in now}
        paths.update(left)
        return left

    async def linger(self, left: Mapping[str, ModelEntry]) -> None:
        """Keep removed models for requests whose bodies are still being received."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._drain_timeout
        while self._is_awaited(left):
            if loop.time() > until:
                break
            await asyncio.sleep(LINGER_TICK)
        for path, entry in left.items():
            if self._table.paths.get(path) is entry and path not in self.usable:
                del self._table.paths[path]

    def _is_awaited(self, paths: Collection[str]) -> bool:
        """Return whether requests to these paths are arriving."""
        if not paths:
            return False
        cycles = (connection.cycle for connection in self._connections)
        return any(path in paths for path in self.local.values()) or any(
            isinstance(cycle, Exchange)
            and cycle.entry is None
            and cycle.path in paths
            and not cycle.response_complete
            for cycle in cycles
        )

    def renew_short(self) -> None:
        """Choose the direct path for requests, unless keys must be counted for all
        workers.
        """
        self.short.clear()
        if not any(key.is_limited for key in self._keys.table.keys):
            self.short.update(self.usable)
