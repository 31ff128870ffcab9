"""`OpenConnections`: the connections of a server, and their requests without an answer.

It exists before the server and the gateway, which both use it.
"""

from __future__ import annotations

import resource
from typing import Any

from uvicorn.server import ServerState

from app.http.connection.cycle import AsgiCycle


class OpenConnections:
    """The open connections of one process. Belongs to the event loop's thread.

    `state` is uvicorn's: the connections, and the tasks of the requests through ASGI.
    `most` is the limit of connections (0: three quarters of the allowed descriptors).
    """

    def __init__(self, most: int = 0) -> None:
        self.state = ServerState()
        self._most = most

    def unfinished(self) -> int:
        """Return the number of requests without an answer."""
        connections: set[Any] = self.state.connections
        cycles = [connection.cycle for connection in connections]
        # Requests through ASGI are among the tasks.
        direct = sum(
            not (cycle is None or cycle.response_complete)
            and not isinstance(cycle, AsgiCycle)
            for cycle in cycles
        )
        return len(self.state.tasks) + direct

    def count(self) -> tuple[int, int]:
        """Return the number of connections of this process, and their limit."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return len(self.state.connections), self._most or descriptors * 3 // 4

    def __repr__(self) -> str:
        open_, most = self.count()
        return f"<OpenConnections {open_} of {most}, {self.unfinished()} requests>"
