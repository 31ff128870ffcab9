"""The protocol's shared memory extensions: system memory, and CUDA memory, which is not
supported.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from app.api.dependencies import MANAGEMENT, GatewayOf, Viewer, ViewerOf, read_object
from app.api.request_bodies import documented
from app.api.schemas import error_response
from app.codec.request_options import not_allowed
from app.errors import HttpError, InvalidRequest
from app.gateway import Gateway
from popgate_triton.schemas import (
    CudaRegion,
    RegisterRequest,
    SystemRegion,
    whole_number,
)
from popgate_triton.shared_memory import RegionStatus, RegionTable

router = APIRouter(
    prefix="/v2", tags=["open inference protocol"], dependencies=MANAGEMENT
)

_SYSTEM = "/systemsharedmemory"
_CUDA = "/cudasharedmemory"
_REGION = "/region/{region}"
_LARGEST = (1 << 64) - 1
REFUSED = error_response("The region cannot be registered.")
UNKNOWN = error_response("The region does not exist.")

RegionName = Annotated[
    str, Path(description="The name under which the region is registered.")
]


@router.get(f"{_SYSTEM}/status", summary="List the registered shared memory")
async def system_status(gateway: GatewayOf, viewer: ViewerOf) -> list[SystemRegion]:
    """Return the registered regions; none if shared memory is not allowed."""
    return _status(gateway, viewer, None)


@router.get(
    f"{_SYSTEM}{_REGION}/status",
    summary="Show a shared memory region",
    responses={404: UNKNOWN},
)
async def system_region_status(
    gateway: GatewayOf, viewer: ViewerOf, region: RegionName
) -> list[SystemRegion]:
    """Return a list with this region. Answers 404 if it does not exist."""
    return _status(gateway, viewer, region)


@router.post(
    f"{_SYSTEM}{_REGION}/register",
    summary="Register shared memory",
    response_class=Response,
    openapi_extra=documented(RegisterRequest, required=True),
    responses={501: REFUSED},
)
async def register_system(
    gateway: GatewayOf, viewer: ViewerOf, request: Request, region: RegionName
) -> Response:
    """Let requests name a part of a POSIX segment of this machine.

    The body has `key` (the segment's name), `offset` and `byte_size`. Answers 501
    unless the server was started with `--allow-shared-memory`. If the server has keys,
    only requests with the same key may use, see and unregister the region.
    """
    table = _allowed(gateway)
    document = await read_object(request)
    key = document.get("key")
    if not isinstance(key, str):
        msg = f"Unable to parse 'key': expected a string, got {key!r:.80}"
        raise InvalidRequest(msg)
    offset = _size(document, "offset", default=0)
    status = RegionStatus(region, key, offset, _size(document, "byte_size"))
    table.register(status, viewer.owner)
    return Response(status_code=200)


@router.post(
    f"{_SYSTEM}/unregister",
    summary="Unregister all shared memory",
    response_class=Response,
)
async def unregister_all_system(gateway: GatewayOf, viewer: ViewerOf) -> Response:
    """Unregister all regions. Succeeds even if there is none, because clients call it
    before they begin.
    """
    return _unregister(gateway, viewer, None)


@router.post(
    f"{_SYSTEM}{_REGION}/unregister",
    summary="Unregister shared memory",
    response_class=Response,
)
async def unregister_system(
    gateway: GatewayOf, viewer: ViewerOf, region: RegionName
) -> Response:
    """Unregister a region. It stays usable until its last request has ended."""
    return _unregister(gateway, viewer, region)


@router.get(f"{_CUDA}/status", summary="List the registered CUDA memory")
async def cuda_status() -> list[CudaRegion]:
    """Return an empty list."""
    return []


@router.get(f"{_CUDA}{_REGION}/status", summary="Show a CUDA memory region")
async def cuda_region_status(region: RegionName) -> list[CudaRegion]:
    """Return an empty list."""
    return []


@router.post(
    f"{_CUDA}{_REGION}/register",
    summary="Register CUDA memory",
    response_class=Response,
    responses={400: REFUSED},
)
async def register_cuda(request: Request, region: RegionName) -> Response:
    """Refuse always: tensors of devices are not shared with clients."""
    # A client that is still sending would not see the answer.
    await read_object(request)
    msg = (
        f"failed to register CUDA shared memory region: '{region:.100}', "
        "GPUs not supported"
    )
    raise HttpError(400, msg, "unsupported")


@router.post(
    f"{_CUDA}/unregister", summary="Unregister all CUDA memory", response_class=Response
)
async def unregister_all_cuda() -> Response:
    """Do nothing: CUDA memory cannot be registered, and clients call this before they
    begin.
    """
    return Response(status_code=200)


@router.post(
    f"{_CUDA}{_REGION}/unregister",
    summary="Unregister CUDA memory",
    response_class=Response,
)
async def unregister_cuda(region: RegionName) -> Response:
    """Do nothing: CUDA memory cannot be registered, and clients call this before they
    begin.
    """
    return Response(status_code=200)


def _allowed(gateway: Gateway) -> RegionTable:
    table = _table(gateway)
    if table is None:
        raise not_allowed()
    return table


def _table(gateway: Gateway) -> RegionTable | None:
    table = gateway.table.regions
    return table if isinstance(table, RegionTable) else None


def _status(gateway: Gateway, viewer: Viewer, region: str | None) -> list[SystemRegion]:
    table = _table(gateway)
    if table is None:
        return []
    found = table.status(region, viewer.owner)
    return [SystemRegion(**asdict(status)) for status in found]


def _unregister(gateway: Gateway, viewer: Viewer, region: str | None) -> Response:
    table = _table(gateway)
    if table is not None:
        table.unregister(region, viewer.owner)
    return Response(status_code=200)


def _size(document: dict[str, Any], key: str, default: int | None = None) -> int:
    value = document.get(key, default)
    size = whole_number(value)
    if size is None or not 0 <= size <= _LARGEST:
        msg = (
            f"Unable to parse '{key}': attempt to access JSON non-unsigned-integer as "
            f"unsigned-integer, got {value!r:.80}"
        )
        raise InvalidRequest(msg)
    return size
