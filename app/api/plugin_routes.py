"""Routes that plugins add to the server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import APIRouter
from fastapi.routing import APIRoute

from app.config.keys import Group
from app.config.restrictions import group_of
from app.gateway import Gateway
from app.http.application import NamingOperation, Operation
from app.http.handlers import NothingHere
from app.plugins import ROUTES, ignore_plugin, plugins
from app.settings import Settings
from app.spec import ModelSpec


def _no_examples(spec: ModelSpec) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class PluginRoutes:
    """Routes of one plugin.

    `router` declares all operations for the documentation and answers all except
    inference. `operations` and `naming` are inference in a form of the plugin's own.
    `bodies` are the types of bodies that its operations name by `documented`
    (app/api/request_bodies.py). `tags` are names and descriptions of its own tags.
    `behind` names the paths that some of its paths follow in the documentation.
    `nothing_here` answers browsers at addresses without a route. `background` runs
    beside the requests, until it is cancelled at the shutdown.
    """

    router: APIRouter
    operations: Sequence[Operation] = ()
    naming: Sequence[NamingOperation] = ()
    examples: Callable[[ModelSpec], Mapping[str, Any]] = _no_examples
    bodies: Sequence[type] = ()
    tags: Sequence[tuple[str, str]] = ()
    behind: Mapping[str, str] = field(default_factory=dict)
    nothing_here: NothingHere | None = None
    background: Callable[[Gateway], Coroutine[Any, Any, None]] | None = None


class MakesRoutes(Protocol):
    """An object of the entry point group `popgate.routes`."""

    def __call__(self, settings: Settings) -> PluginRoutes:
        """Return the routes of a server with these settings."""


def access_groups(added: Iterable[PluginRoutes]) -> dict[str, Group]:
    """Return the groups of the paths that plugins add: inference, or metadata.

    Operations on a model's path belong to the group of its inference. The protocol's
    own paths keep their groups, because these depend on the method. Paths that the
    document omits are those of pages, which is the group of all unknown paths.
    """
    groups: dict[str, Group] = {}
    for one in added:
        for route in one.router.routes:
            if not isinstance(route, APIRoute) or group_of(route.path) is not None:
                continue
            if route.include_in_schema:
                groups[route.path] = "metadata"
        groups |= {operation.path: "infer" for operation in one.naming}
    return groups


def plugin_routes(settings: Settings) -> list[PluginRoutes]:
    """Return the routes of all plugins, in the order of their names."""
    makers: Mapping[str, MakesRoutes] = plugins(ROUTES)
    found: list[PluginRoutes] = []
    for name, make in makers.items():
        got: object
        try:
            got = make(settings)
        except Exception as error:  # such as a dependency that is missing
            got = error
        if isinstance(got, PluginRoutes):
            found.append(got)
        else:
            ignore_plugin(ROUTES, name, "a function that makes PluginRoutes", got)
    return found
