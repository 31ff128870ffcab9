"""Answers of the management socket: all paths, and management without a key.

Only the user of the server can open the socket (mode 0600). This user could also stop
the server or change its models.
"""

from __future__ import annotations

from app.http.access import Access, Trust
from app.http.front import InferFront


class ManagementFront(InferFront):
    """Serves the paths of `whole`, and management without a key if no keys are set."""

    def __init__(self, whole: InferFront) -> None:
        access = whole.access
        super().__init__(
            whole.fallback,
            whole.service,
            operations=whole.operations,
            compress_responses=whole.compress_responses,
            base_path=whole.base_path.decode(),
            proxies=whole.proxies,
            access=Access(access.restrictions, access.keys, Trust.SOCKET),
            methods_of=whole.methods_of,
        )
