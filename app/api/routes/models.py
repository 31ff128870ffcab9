"""Models in our form of the API: list, describe, count, load, unload."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from app.api.client_code import client_code
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
from app.api.describe import (
    gives_several,
    model_details,
    model_summary,
    statistics_of,
)
from app.api.examples import example_parameters
from app.api.request_bodies import LoadRequest, documented
from app.api.schemas import (
    DeviceList,
    DeviceStatus,
    ModelDetails,
    ModelList,
    ModelState,
    StatisticsList,
)
from app.errors import HttpError
from app.gateway import Gateway
from app.repository.model_record import ModelRecord, RepositoryError
from app.serving.timeout_policy import TimeoutPolicy

router = APIRouter(prefix="/v1")
_TAGS: list[str | Enum] = ["models"]


@router.get("/models", summary="List the models", tags=_TAGS)
async def list_models(gateway: GatewayOf, viewer: ViewerOf) -> ModelList:
    """List every model of the repository, ready or not, with the reason if it
    is not.
    """
    records, told = gateway.records.all(), partial(viewer.reason, gateway)
    return ModelList(
        models=[model_summary(r, told) for r in records if viewer.sees(r.name)]
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
    told = partial(viewer.reason, gateway)
    details = model_details(record, find_version(record, version), told)
    url = details.url.replace("/infer", f"/versions/{version}/infer")
    return details.model_copy(update={"version": version, "url": url})


@router.get(
    "/models/{name}/client.py",
    summary="A Python program that calls a model",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/x-python": {"schema": {"type": "string"}}}}},
    tags=_TAGS,
)
async def get_client(
    gateway: GatewayOf, request: Request, name: ModelName
) -> PlainTextResponse:
    """Return a program ready to run, with the model's inputs and this
    server's address.
    """
    return await _program(gateway, request, name)


@router.get(
    "/models/{name}/versions/{version}/client.py",
    summary="A Python program that calls a version",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/x-python": {"schema": {"type": "string"}}}}},
    tags=_TAGS,
)
async def get_version_client(
    gateway: GatewayOf, request: Request, name: ModelName, version: Version
) -> PlainTextResponse:
    """Return a Python program that calls one version."""
    return await _program(gateway, request, name, version)


async def _program(
    gateway: Gateway, request: Request, name: str, version: str | None = None
) -> PlainTextResponse:
    """Return the program; load the model first if requests are to load it."""
    record = find_model(gateway, name)
    policy = TimeoutPolicy(gateway.settings.request_timeout)
    await gateway.on_demand.ensure(name, version, policy)
    loaded = find_version(record, version)
    if loaded is None:
        raise HttpError(
            503,
            "the model is not loaded, so its inputs are unknown; load it first",
            "model_not_ready",
        )
    text = client_code(
        loaded.spec,
        loaded.example,
        loaded.fill,
        url=_address(gateway, request),
        version=version or "",
        asks_key=gateway.settings.keys is not None or bool(gateway.settings.api_key),
        sequence=example_parameters(loaded).get("sequence_id"),
        streams=gives_several(loaded),
    )
    return PlainTextResponse(text, media_type="text/x-python; charset=utf-8")


def _address(gateway: Gateway, request: Request) -> str:
    """Return the server's address in the form of `Client`: its URL with the base path,
    or its socket.
    """
    base = gateway.settings.base_path.rstrip("/")
    uds = gateway.settings.uds
    server = request.scope.get("server")
    is_socket = not server or server[1] is None
    # A proxy in front of the socket names the host that its clients know.
    if uds and is_socket and request.url.netloc == "localhost":
        path = str(Path(uds).absolute())
        return f"unix:{path}:{base}" if base else f"unix:{path}"
    return str(request.base_url).rstrip("/") + base


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
