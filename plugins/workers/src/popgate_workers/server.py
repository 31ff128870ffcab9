"""The supervisor's server: its own sockets, and the workers beside it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

from app.http.front import InferFront
from app.http.server import LAST_ANSWERS, TICK, GatewayServer
from popgate_workers.messages import Files
from popgate_workers.supervisor import Workers


class SupervisorServer(GatewayServer):
    """Lives until the last worker has ended, and answers relayed requests."""

    def __init__(
        self,
        app: InferFront,
        workers: Workers,
        *,
        on_drain: Callable[[], None],
        **options: Any,
    ) -> None:
        def drain() -> None:
            on_drain()
            workers.begin_drain()

        super().__init__(app, on_drain=drain, **options)
        self._workers = workers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        await self._workers.start(self._app, self._files)

    def _files(self) -> Files:
        certificate = self._certificate
        contents = () if certificate is None else certificate.contents
        return Files(self._app.access.keys.config, contents)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._workers.close_listeners()
        try:
            await super().shutdown(sockets)
        finally:
            await self._workers.stop()

    async def _finish(self, deadline: float) -> bool:
        # Workers have the same deadline, after which they fail their requests.
        until = deadline + LAST_ANSWERS
        while self._workers.are_alive and time.monotonic() < until:
            if self.force_exit:
                return False
            await asyncio.sleep(TICK)
        return await super()._finish(deadline)
