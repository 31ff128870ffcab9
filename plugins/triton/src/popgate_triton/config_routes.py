"""The protocol's model configuration extension."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.delegation import ModelName, Version
from app.api.dependencies import GatewayOf, find_served
from popgate_triton.model_config import model_config

router = APIRouter(prefix="/v2", tags=["open inference protocol"])
#: The paths that these follow in the documentation.
BEHIND = {
    "/v2/models/{name}/config": "/v2/models/{name}/versions/{version}/ready",
    "/v2/models/{name}/versions/{version}/config": "/v2/models/{name}/config",
}


@router.get("/models/{name}/config", summary="Show a model's configuration")
async def config(gateway: GatewayOf, name: ModelName) -> dict[str, Any]:
    return model_config((await find_served(gateway, name))[1])


@router.get(
    "/models/{name}/versions/{version}/config", summary="Show a version's configuration"
)
async def version_config(
    gateway: GatewayOf, name: ModelName, version: Version
) -> dict[str, Any]:
    return model_config((await find_served(gateway, name, version))[1])
