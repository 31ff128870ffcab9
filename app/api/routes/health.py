"""Liveness and readiness, in our form and in the protocol's, and the end of service."""

from __future__ import annotations

from fastapi import APIRouter, Response

from app.api.dependencies import MANAGEMENT, GatewayOf
from app.api.schemas import Drained, Live, Ready, Started

router = APIRouter(tags=["health"])

_READY: dict[int | str, dict[str, object]] = {
    503: {"model": Ready, "description": "Not ready; the body lists the reasons."}
}


@router.get("/v1/health/live", summary="Check that the process is alive")
@router.get("/v2/health/live", summary="Check that the process is alive")
async def live() -> Live:
    """Answer 200 while the server works. If this fails, restart the server."""
    return Live(live=True)


@router.get(
    "/v1/health/startup",
    summary="Check that the server has started",
    responses={503: {"model": Started, "description": "Not yet."}},
)
async def startup(gateway: GatewayOf, response: Response) -> Started:
    """Answer 503 until devices are attached and the models have been loaded once, and
    200 from then on. Check readiness only after that.
    """
    response.status_code = 200 if gateway.stage.has_started else 503
    return Started(started=gateway.stage.has_started)


@router.get(
    "/v1/health/ready",
    summary="Check that the server accepts requests",
    responses=_READY,
)
@router.get(
    "/v2/health/ready",
    summary="Check that the server accepts requests",
    responses=_READY,
)
async def ready(gateway: GatewayOf, response: Response) -> Ready:
    """Answer 200 when devices are attached and the models have been loaded, else 503.

    A model that failed to load is listed, but does not make the server unready (unless
    `--strict-readiness` is set).
    """
    now = gateway.readiness()
    response.status_code = 200 if now.ready else 503
    return Ready(
        ready=now.ready, reasons=now.reasons, loading=now.loading, failed=now.failed
    )


@router.post(
    "/v1/drain", summary="Take the server out of service", dependencies=MANAGEMENT
)
async def drain(gateway: GatewayOf) -> Drained:
    """Stop being ready: `/v1/health/ready` answers 503, and every response closes its
    connection. Requests that still arrive are answered. Call it again to see how many
    are in flight. When there are none, end the process. Only a restart brings the
    server back.
    """
    gateway.drain()
    return Drained(draining=True, in_flight=gateway.count_unfinished())
