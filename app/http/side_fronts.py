"""The fronts beside the main one: of the management socket, and of the metrics port.

Only the user of the server can open the management socket (mode 0600). This user could
also stop the server or change its models. The metrics port may be open to a network
that must not run models, as Triton's own metrics port is.
"""

from __future__ import annotations

from dataclasses import replace

from app.errors import ErrorResponse, HttpError
from app.http.access import Access, Trust
from app.http.application import FrontOptions
from app.http.asgi import Receive, Scope, Send, send_error
from app.http.front import InferFront
from app.serving.service import Service
from app.serving.table import ModelTable

#: The paths of the metrics port.
PATHS = frozenset(
    {"/metrics"}
    | {f"/{api}/health/{what}" for api in ("v1", "v2") for what in ("live", "ready")}
    | {"/v1/health/startup"}
)


class ManagementFront(InferFront):
    """Serves the paths of `whole`, and management without a key if no keys are set."""

    def __init__(self, whole: InferFront) -> None:
        access = Access(whole.access.restrictions, whole.access.keys, Trust.SOCKET)
        options = replace(whole.options, access=access, naming=(), origins=())
        super().__init__(whole.fallback, whole.service, options)


class MetricsFront(InferFront):
    """Passes requests for `PATHS` to `whole`, and refuses all others."""

    def __init__(self, whole: InferFront) -> None:
        service, options = whole.service, whole.options
        super().__init__(
            whole.fallback,
            Service(
                ModelTable(),
                transfers=service.transfers,
                journal=service.journal,
                answers=service.answers,
            ),
            FrontOptions(
                access=options.access,
                base_path=options.base_path,
                proxies=options.proxies,
            ),
        )

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in PATHS:
            msg = "Not Found: this port serves /metrics and the health checks only"
            error = HttpError(404, msg, "not_found")
            # A body remains unread.
            is_post = scope["method"] == "POST"
            await send_error(send, ErrorResponse.of(error, close=is_post))
            return
        await super().answer(scope, receive, send)
