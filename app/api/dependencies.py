"""Dependencies of routes: the gateway, a model, permission to manage, a body."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request, Security
from fastapi.security import HTTPBearer

from app.codec.json_text import parse_json
from app.codec.shapes import check_depth, shown
from app.errors import (
    RETRY_AFTER_DEVICE_LOST,
    BodyTooLarge,
    HttpError,
    InvalidRequest,
    UnknownModel,
    VersionNotReady,
    larger_than_allowed,
)
from app.gateway import Gateway
from app.http.asgi import HOLDER
from app.limits import DEFAULT_LIMITS
from app.repository.load_overrides import LoadOverrides, parse_load_overrides
from app.repository.records import LoadedModel, ModelRecord, RepositoryError
from app.serving.keys import Key
from app.serving.timeout_policy import TimeoutPolicy

# The body of a management call holds a few options. The limit bounds the cost of any
# other body.
MAX_MANAGEMENT_BODY = 1 << 20
# Larger bodies (bytes) are parsed in a thread.
PARSED_AT_ONCE = 1 << 16


def get_gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


class Viewer:
    """The client of a request, and the limits of its key for reading.

    `owner` is the name of the key: empty without a key, None if the server has no keys.
    """

    def __init__(
        self, key: Key | None, *, has_keys: bool, anonymous: Collection[str] = ()
    ) -> None:
        self._key = key
        #: Whether it may read descriptions: without keys everybody may.
        self._reads = not has_keys or "metadata" in anonymous
        self._reads |= key is not None and key.allows("metadata")
        if key is not None:
            self.owner: str | None = key.config.name
        else:
            self.owner = "" if has_keys else None

    def sees(self, model: str) -> bool:
        """Return whether lists name this model."""
        return self._reads and self.allows(model)

    def allows(self, model: str) -> bool:
        """Return whether the key allows this model."""
        return self._key is None or self._key.allows_model(model)

    def check(self, model: str) -> None:
        """Raise `HttpError` (403) if the key does not allow this model."""
        if not self.allows(model):
            msg = f"key '{self.owner}' does not allow model '{model:.100}'"
            raise HttpError(403, msg, "key_not_allowed")

    def reason(self, gateway: Gateway, reason: str) -> str:
        """Return why a model is not served. Clients of a server with keys see the
        source only if they may manage the server.
        """
        is_manager = self._key is not None and self._key.allows("manage")
        if is_manager or self.owner is None:
            return reason
        return gateway.records.places.public(reason)

    def reads(self, owner: str) -> bool:
        """Return whether the client may read the error messages of requests sent with
        the key `owner`.

        A key that manages the server may read them all.
        """
        if self._key is not None and self._key.allows("manage"):
            return True
        return self.owner is None or (self.owner == owner and owner != "")


# Dependencies of routes are coroutines. FastAPI runs other functions in threads.


async def _get_gateway(request: Request) -> Gateway:
    return get_gateway(request)


async def _get_viewer(request: Request) -> Viewer:
    keys = get_gateway(request).keys
    has_keys = keys.path is not None
    key = request.scope.get(HOLDER) if has_keys else None
    return Viewer(key, has_keys=has_keys, anonymous=keys.table.anonymous)


KEY_SCHEME = "apiKey"
_KEY = HTTPBearer(
    scheme_name=KEY_SCHEME,
    description="A key of the server (`--keys` or `--api-key`).",
    auto_error=False,
)


GatewayOf = Annotated[Gateway, Depends(_get_gateway)]
ViewerOf = Annotated[Viewer, Depends(_get_viewer)]
#: Only for the OpenAPI document: the access control decides (app/http/access.py).
MANAGEMENT = [Security(_KEY)]


def find_model(gateway: Gateway, name: str) -> ModelRecord:
    """Return the model with that name.

    Raises `UnknownModel`, and `HTTPException` for a path that takes POST only.
    """
    record = gateway.records.get(name)
    if record is None:
        # this is the path of a POST operation, not a model's name
        if name.endswith(":predict"):
            raise HTTPException(405)
        if why := gateway.records.explain(name):  # the file may be new
            raise UnknownModel(name, why=why)
        if gateway.keys.path is not None:  # some models may be hidden from this key
            raise UnknownModel(name)
        raise UnknownModel(name, known=(r.name for r in gateway.records.all()))
    return record


def find_version(record: ModelRecord, version: str | None) -> LoadedModel | None:
    """Return the loaded version, or the default one; None if it is not loaded.

    Raises `UnknownModel` for a version that does not exist.
    """
    if version is None:
        return record.default
    for number, entry in record.versions.items():
        if str(number) == version:
            return entry.loaded
    raise UnknownModel(record.name, version)


async def find_served(
    gateway: Gateway, name: str, version: str | None = None
) -> tuple[ModelRecord, LoadedModel]:
    """Return a version that is served; load it first if models are loaded on demand.

    Raises as `find_version` does, and `VersionNotReady` if it is not loaded.
    """
    record, loaded = await find_loaded(gateway, name, version)
    if loaded is None:
        raise not_ready(gateway, name, version)
    return record, loaded


async def find_loaded(
    gateway: Gateway, name: str, version: str | None = None
) -> tuple[ModelRecord, LoadedModel | None]:
    """Do the work of `find_served`, but return None for a version that is not
    loaded.
    """
    record = find_model(gateway, name)
    policy = TimeoutPolicy(gateway.settings.request_timeout)
    await gateway.on_demand.ensure(name, version, policy)
    return record, find_version(record, version)


def not_ready(gateway: Gateway, name: str, version: str | None) -> VersionNotReady:
    """Return the error that says why a version is not loaded."""
    why = gateway.records.explain(name, version)
    return VersionNotReady(name, version, why or "the model is not loaded")


def refusal(error: RepositoryError, code: str, unknown: str = "") -> HttpError:
    """Return the answer to a failed load or unload; `unknown` is the code for a missing
    model, if it differs.
    """
    if error.passing:
        after = (b"retry-after", b"%d" % RETRY_AFTER_DEVICE_LOST)
        return HttpError(503, str(error), error.passing, (after,))
    if not error.found:
        return HttpError(404, str(error), unknown or code)
    return HttpError(400, str(error), code)


async def read_object(request: Request) -> dict[str, Any]:
    """Return the body as a JSON object, of any content type; `{}` if it is empty.

    Raises `MalformedBody`, `BodyTooLarge`, or `InvalidRequest` for any other JSON.
    """
    limit = MAX_MANAGEMENT_BODY
    body = await _read(request, limit)
    if len(body) > limit:
        raise BodyTooLarge(f"the body is larger than {limit} bytes")
    return _parse_object(body)


async def read_load_request(
    gateway: Gateway, request: Request, name: str
) -> LoadOverrides:
    """Read the options of a load of model `name`.

    The body may contain files, so it may be large.

    Raises the errors of `read_object`.
    """
    limit = gateway.settings.max_body_size
    body = await _read(request, limit)
    if len(body) > limit:
        size = request.headers.get("content-length") or f"{len(body)} or more"
        raise larger_than_allowed(size, limit, is_json=True)

    def parse() -> LoadOverrides:
        return parse_load_overrides(name, parameters_of(_parse_object(body)))

    if len(body) <= PARSED_AT_ONCE:
        return parse()
    return await gateway.pools.load.run(parse)


async def _read(request: Request, limit: int) -> bytearray:
    """Return the body, or more than `limit` bytes of it if it has more."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            break
    return body


def _parse_object(body: bytearray) -> dict[str, Any]:
    if not body:
        return {}
    document = as_object(parse_json(bytes(body), DEFAULT_LIMITS), "the body")
    check_depth(document, DEFAULT_LIMITS)
    return document


def parameters_of(document: dict[str, Any], *known: str) -> dict[str, Any]:
    """Return the `parameters` of a management call, which has no other keys.

    If parameters are `known`, there are no others. Raises `InvalidRequest`.
    """
    _check_keys(document, "parameters")
    parameters = as_object(document.get("parameters", {}), "'parameters'")
    if known:
        _check_keys(parameters, *known)
    return parameters


def _check_keys(document: dict[str, Any], *known: str) -> None:
    for key in document:
        if key not in known:
            wanted = ", ".join(map(repr, known))
            raise InvalidRequest(f"unexpected key {key[:100]!r}; known is {wanted}")


def as_object(value: Any, what: str) -> dict[str, Any]:
    """Return `value`, which must be a JSON object; `what` names it in the error."""
    if not isinstance(value, dict):
        msg = f"{what} must be a JSON object, got {shown(value)}"
        raise InvalidRequest(f"expected a JSON object: {msg}")
    return value
