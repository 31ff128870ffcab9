"""`StandIn`: accepts a worker's connections while the worker does not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

#: Seconds between checks for connections that a worker does not accept.
_ACCEPT_TICK = 0.01


class StandIn:
    """Lets other workers serve the connections on one worker's socket.

    `hand_over` passes a connection to another worker. It returns whether there is one.
    Before the worker's first start no other worker replaces it.
    """

    def __init__(
        self, listener: socket.socket, hand_over: Callable[[socket.socket], bool]
    ) -> None:
        self._listener = listener
        self._hand_over = hand_over
        #: Whether the worker accepts its connections itself.
        self._accepts = True
        self._task: asyncio.Task[None] | None = None

    @property
    def is_needed(self) -> bool:
        return not self._accepts

    def begin(self) -> None:
        """Let other workers accept the connections, until `end`."""
        self._accepts = False
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._accept())

    def end(self) -> None:
        """Note that the worker accepts its connections again."""
        self._accepts = True

    async def _accept(self) -> None:
        """Accept the connections, which would wait until the worker is back."""
        waiting: socket.socket | None = None
        try:
            while self._listener.fileno() >= 0 and (waiting or self.is_needed):
                if waiting is None:
                    with contextlib.suppress(OSError):  # no client waits
                        waiting = self._listener.accept()[0]
                if waiting is not None and self._hand_over(waiting):
                    waiting.close()
                    waiting = None
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(_ACCEPT_TICK)
        finally:
            if waiting is not None:
                waiting.close()

    def __repr__(self) -> str:
        return f"<StandIn {'at work' if self.is_needed else 'not needed'}>"
