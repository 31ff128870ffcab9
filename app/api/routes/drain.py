"""Taking a server out of service, before it is ended."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.dependencies import MANAGEMENT, GatewayOf
from app.api.schemas import Drained

router = APIRouter(prefix="/v1", tags=["health"])


@router.post("/drain", summary="Take it out of service", dependencies=MANAGEMENT)
async def drain(gateway: GatewayOf) -> Drained:
    """From now on `/v1/health/ready` is 503 and every answer its connection's last.
    Requests that come all the same are answered. Ask again to see how many are in
    flight; once there are none, the process can be ended. There is no way back.
    """
    gateway.drain()
    return Drained(draining=True, in_flight=gateway.count_unfinished())
