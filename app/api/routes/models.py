"""Models in our form of the API: list, describe, count, load, unload."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from functools import partial

from fastapi import APIRouter, Request

from app.api.delegation import ModelName, Version
from app.api.dependencies import (
    MANAGEMENT,
    GatewayOf,
    ViewerOf,
    find_model,
    find_version,
    read_load_request,
    refusal,
)
from app.api.describe import model_details, model_summary, statistics_of
from app.api.request_bodies import LoadRequest, documented
from app.api.schemas import (
    DeviceList,
    DeviceStatus,
    ModelDetails,
    ModelList,
    ModelState,
    StatisticsList,
)
from app.repository.records import ModelRecord, RepositoryError

router = APIRouter(prefix="/v1")
_TAGS: list[str | Enum] = ["models"]


@router.get("/models", summary="List the models", tags=_TAGS)
async def list_models(gateway: GatewayOf, viewer: ViewerOf) -> ModelList:
    """List every model of the repository, ready or not, with the reason if it
    is not.
    """
    records, redact = gateway.records.all(), partial(viewer.reason, gateway)
    return ModelList(
        models=[model_summary(r, redact) for r in records if viewer.sees(r.name)]
    )


@router.get("/models/{name}", summary="Describe a model", tags=_TAGS)
async def get_model(
    gateway: GatewayOf, viewer: ViewerOf, name: ModelName
) -> ModelDetails:
    """Show the inputs, outputs and configuration of a model, and a request that it
    answers.
    """
    record = find_model(gateway, name)
    return model_details(record, record.default, partial(viewer.reason, gateway))


@router.get(
    "/models/{name}/versions/{version}", summary="Describe a version", tags=_TAGS
)
async def get_version(
    gateway: GatewayOf, viewer: ViewerOf, name: ModelName, version: Version
) -> ModelDetails:
    """Show one version of a model."""
    record = find_model(gateway, name)
    redact = partial(viewer.reason, gateway)
    details = model_details(record, find_version(record, version), redact)
    url = details.url.replace("/infer", f"/versions/{version}/infer")
    return details.model_copy(update={"version": version, "url": url})


@router.get("/models/{name}/stats", summary="Statistics of a model", tags=_TAGS)
async def get_stats(gateway: GatewayOf, name: ModelName) -> StatisticsList:
    """Return cumulative counts and durations of every version that is served."""
    return statistics_of(gateway.metrics, [find_model(gateway, name)], name)


@router.post(
    "/models/{name}/load",
    summary="Load a model",
    dependencies=MANAGEMENT,
    tags=_TAGS,
    openapi_extra=documented(LoadRequest),
)
async def load(gateway: GatewayOf, request: Request, name: ModelName) -> ModelState:
    """Load the present files of the model in the repository.

    The body is optional. It may contain a configuration and files, in the form of the
    protocol's load request.

    New and changed versions are loaded beside the ones that serve and replace them when
    they are ready; if that fails, nothing changes. The call returns when the load has
    ended.
    """
    wanted = await read_load_request(gateway, request, name)
    try:
        return _state(await gateway.control.load(name, wanted))
    except RepositoryError as e:
        raise refusal(e, "load_failed", "unknown_model") from None


@router.post(
    "/models/{name}/unload",
    summary="Unload a model",
    dependencies=MANAGEMENT,
    tags=_TAGS,
)
async def unload(gateway: GatewayOf, name: ModelName) -> ModelState:
    """Stop serving the model. Requests in flight are answered first."""
    find_model(gateway, name)
    return _state(await gateway.control.unload(name))


@router.get("/devices", summary="List the devices", tags=["devices"])
async def list_devices(gateway: GatewayOf) -> DeviceList:
    """List the devices that this gateway has attached, with their state."""
    return DeviceList(
        devices=[DeviceStatus(**asdict(d)) for d in gateway.devices.summaries()]
    )


def _state(record: ModelRecord) -> ModelState:
    number = record.default_version
    return ModelState(
        name=record.name,
        state=record.state.word,
        version=None if number is None else str(number),
    )
