"""Taking a server out of service, before it is ended."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.dependencies import MANAGEMENT, GatewayOf
from app.api.schemas import Drained

router = APIRouter(prefix="/v1", tags=["health"])


@router.post(
    "/drain", summary="Take the server out of service", dependencies=MANAGEMENT
)
async def drain(gateway: GatewayOf) -> Drained:
    """Stop being ready: `/v1/health/ready` answers 503, and every response closes its
    connection. Requests that still arrive are answered. Call it again to see how many
    are in flight. When there are none, end the process. Only a restart brings the
    server back.
    """
    gateway.drain()
    return Drained(draining=True, in_flight=gateway.count_unfinished())
