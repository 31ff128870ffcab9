"""Answers of the metrics port: only `/metrics` and health.

It may be open to a network that must not run models, as Triton's own metrics port is.
"""

from __future__ import annotations

from app.errors import ErrorResponse, HttpError
from app.http.asgi import Receive, Scope, Send, send_error
from app.http.front import InferFront
from app.serving.service import Service
from app.serving.table import ModelTable

PATHS = frozenset(
    {"/metrics"}
    | {f"/{api}/health/{what}" for api in ("v1", "v2") for what in ("live", "ready")}
    | {"/v1/health/startup"}
)


class MetricsFront(InferFront):
    """Passes requests for `PATHS` to `whole`, and refuses all others."""

    def __init__(self, whole: InferFront) -> None:
        super().__init__(
            whole.fallback,
            Service(
                ModelTable(),
                transfers=whole.service.transfers,
                journal=whole.service.journal,
                answers=whole.service.answers,
            ),
            base_path=whole.base_path.decode(),
            proxies=whole.proxies,
            access=whole.access,
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
