"""Bodies of management calls, for documentation: the routes read them themselves.

Stock clients send these without a content type, or with a wrong one, so no route takes
them as a typed parameter (`app/api/dependencies.py`).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from app.api.schemas import REFERENCE

# The largest number in a setting: every JSON parser keeps integers up to here exactly.
MOST = (1 << 53) - 1
_NO_MORE = ConfigDict(extra="forbid")


class IndexRequest(TypedDict, total=False):
    ready: Annotated[bool, Field(description="List only models that accept requests.")]


@with_config(ConfigDict(extra="allow"))
class LoadParameters(TypedDict, total=False):
    """`config`, and files as `file:<version>/<name>` with their content in base64."""

    config: Annotated[
        str | None, Field(description="A model configuration, as JSON text.")
    ]


@with_config(_NO_MORE)
class LoadRequest(TypedDict, total=False):
    parameters: LoadParameters


@with_config(_NO_MORE)
class UnloadParameters(TypedDict, total=False):
    unload_dependents: bool


@with_config(_NO_MORE)
class UnloadRequest(TypedDict, total=False):
    parameters: UnloadParameters


REQUEST_BODIES: tuple[type, ...] = (IndexRequest, LoadRequest, UnloadRequest)


def documented(model: type, *, required: bool = False) -> dict[str, Any]:
    """Return the addition to a route's OpenAPI operation for a body like this."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": required, "content": content}}
