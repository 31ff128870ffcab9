"""The gateway over HTTP: `create_app` makes the ASGI application, `app.cli` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.propagators import import_propagators

if TYPE_CHECKING:
    from app.main import create_app

# This must run before anything imports FastAPI.
import_propagators()

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    # The import is lazy: `popgate --help` imports this package too, but needs no
    # gateway.
    if name == "create_app":
        from app.main import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
