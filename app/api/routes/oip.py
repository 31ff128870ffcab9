"""The Open Inference Protocol's metadata, statistics and repository.

The content type of bodies is ignored: stock clients send none or a wrong one.
"""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from app.about import VERSION
from app.api.delegation import ModelName, Version
from app.api.dependencies import (
    MANAGEMENT,
    GatewayOf,
    ViewerOf,
    find_model,
    find_served,
    find_version,
    not_ready,
    parameters_of,
    read_load_request,
    read_object,
    refusal,
)
from app.api.describe import (
    index_entries,
    is_serving,
    model_metadata,
    statistics_of,
    why_not_serving,
)
from app.api.request_bodies import IndexRequest, LoadRequest, UnloadRequest, documented
from app.api.schemas import (
    IndexEntry,
    ModelMetadata,
    ModelNames,
    ModelReady,
    ServerMetadata,
    StatisticsList,
)
from app.codec.shapes import shown
from app.config.extensions import listed_extensions
from app.errors import (
    HttpError,
    InvalidRequest,
    ModelNotReady,
    NestedTooDeep,
    VersionNotReady,
)
from app.gateway import Gateway
from app.repository.model_life import State
from app.repository.records import RepositoryError, ready_version

router = APIRouter(prefix="/v2", tags=["open inference protocol"])

_MODEL = "/models/{name}"
_VERSION = "/models/{name}/versions/{version}"


@router.get("", summary="Describe the server")
async def server_metadata(gateway: GatewayOf) -> ServerMetadata:
    settings = gateway.settings
    return ServerMetadata(
        name=settings.server_name,
        version=settings.server_version or VERSION,
        extensions=listed_extensions(
            settings.server_extensions, shared_memory=gateway.table.regions is not None
        ),
    )


@router.get("/models", summary="List the models that are ready")
async def model_names(gateway: GatewayOf, viewer: ViewerOf) -> ModelNames:
    names = gateway.records.names_in(State.READY, State.ON_DEMAND)
    return ModelNames(models=[name for name in names if viewer.sees(name)])


# These routes precede the routes of a model, so no model with this name can be
# described.
@router.get("/models/stats", summary="Statistics of all models")
async def all_statistics(gateway: GatewayOf, viewer: ViewerOf) -> StatisticsList:
    records = [r for r in gateway.records.all() if viewer.sees(r.name)]
    return statistics_of(gateway.metrics, records)


@router.get(_MODEL, summary="Describe a model")
async def metadata(gateway: GatewayOf, name: ModelName) -> ModelMetadata:
    record, loaded = await find_served(gateway, name)
    return model_metadata(record, loaded)


@router.get(_VERSION, summary="Describe a version")
async def version_metadata(
    gateway: GatewayOf, name: ModelName, version: Version
) -> ModelMetadata:
    record, loaded = await find_served(gateway, name, version)
    return model_metadata(record, loaded)


@router.get(f"{_MODEL}/ready", summary="Check that a model is ready")
async def model_ready(gateway: GatewayOf, name: ModelName) -> ModelReady:
    """Answer 200 if the model accepts requests, else 503 (404 if it does not exist)."""
    return _ready(gateway, name)


@router.get(f"{_VERSION}/ready", summary="Check that a version is ready")
async def version_ready(
    gateway: GatewayOf, name: ModelName, version: Version
) -> ModelReady:
    return _ready(gateway, name, version)


@router.get(f"{_MODEL}/stats", summary="Statistics of a model")
async def model_statistics(gateway: GatewayOf, name: ModelName) -> StatisticsList:
    return statistics_of(gateway.metrics, [find_model(gateway, name)], name)


@router.get(f"{_VERSION}/stats", summary="Statistics of a version")
async def version_statistics(
    gateway: GatewayOf, name: ModelName, version: Version
) -> StatisticsList:
    records = [find_model(gateway, name)]
    return statistics_of(gateway.metrics, records, name, version)


@router.post(
    "/repository/index",
    summary="List the repository",
    response_model_exclude_none=True,
    openapi_extra=documented(IndexRequest),
)
async def repository_index(
    gateway: GatewayOf, viewer: ViewerOf, request: Request
) -> list[IndexEntry]:
    """List every version of every model with its state; `{"ready": true}` filters."""
    msg = "Invalid value for 'ready': expected a boolean"
    try:
        ready = (await read_object(request)).get("ready", False)
    except NestedTooDeep as e:  # the document has no other keys
        raise InvalidRequest(f"{msg}: {e}") from None
    if not isinstance(ready, bool):
        raise InvalidRequest(f"{msg}, got {shown(ready)}")
    await gateway.control.discover()
    records = [r for r in gateway.records.all() if viewer.sees(r.name)]
    redact = partial(viewer.reason, gateway)
    return index_entries(records, ready=ready, redact=redact)


@router.post(
    "/repository/models/{name}/load",
    summary="Load a model",
    dependencies=MANAGEMENT,
    response_class=Response,
    openapi_extra=documented(LoadRequest),
)
async def load(gateway: GatewayOf, request: Request, name: ModelName) -> Response:
    """Load the model's files in the repository, or those in the request.

    The parameter `config` (a model configuration, as JSON text) overrides all others;
    `file:<version>/<name>` are files in base64 that replace the repository's. The
    answer has no body.
    """
    wanted = await read_load_request(gateway, request, name)
    try:
        await gateway.control.load(name, wanted)
    except RepositoryError as e:
        raise refusal(e, "load_failed") from None
    return Response(status_code=200)


@router.post(
    "/repository/models/{name}/unload",
    summary="Unload a model",
    dependencies=MANAGEMENT,
    response_class=Response,
    openapi_extra=documented(UnloadRequest),
)
async def unload(
    gateway: GatewayOf, viewer: ViewerOf, request: Request, name: ModelName
) -> Response:
    """Stop serving the model after its last request. The answer has no body.

    If the parameter `unload_dependents` is true, the member models of an ensemble are
    unloaded with it, if the key allows them.
    """
    parameters = parameters_of(await read_object(request), "unload_dependents")
    dependents = parameters.get("unload_dependents", False)
    if not isinstance(dependents, bool):
        msg = f"'unload_dependents' must be true or false, got {shown(dependents)}"
        raise InvalidRequest(msg)
    try:
        await gateway.control.unload(name, viewer.allows if dependents else None)
    except RepositoryError as e:
        raise refusal(e, "unload_failed") from None
    return Response(status_code=200)


@router.post("/repository/{repository}/index", include_in_schema=False)
@router.post(
    "/repository/{repository}/models/{name}/{verb:path}", include_in_schema=False
)
async def named_repository(repository: str) -> Response:
    """Refuse the name of a repository: the protocol has a name here, but the server has
    only one repository.
    """
    msg = (
        f"repository '{repository:.100}' cannot be selected: this server has one "
        "repository; leave the name out"
    )
    raise HttpError(501, msg, "unsupported")


def _ready(gateway: Gateway, name: str, version: str | None = None) -> ModelReady:
    record = find_model(gateway, name)
    find_version(record, version)  # raises if there is none
    entry = ready_version(record, version)
    if entry is not None and (entry.loaded is None or is_serving(entry.loaded)):
        return ModelReady(name=name, ready=True)
    if gateway.keys.path is not None:  # this request needs no key
        raise VersionNotReady(name, version, "GET /v1/models gives the reason")
    if entry is None or entry.loaded is None:
        raise not_ready(gateway, name, version)
    raise ModelNotReady(name, why_not_serving(entry.loaded))
