"""Routes of Python models: the model that answers at each address.

A model claims its addresses when it is loaded, so two models never have the same one,
and none has an address of the server. Threads that load models claim addresses;
everything else belongs to the event loop's thread.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.routing import compile_path

#: Every address below these is the server's.
_RESERVED = ("/v1/models/{rest:path}", "/v2/{rest:path}")
_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A method and an address; parts of it in braces are parameters."""

    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """The routes of a model; `document` holds the `paths` and `components` of OpenAPI
    that describe them.
    """

    routes: tuple[ModelRoute, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> ModelRoutes:
        """Read a model's description of its routes; an empty string means none."""
        if not text:
            return cls()
        document = orjson.loads(text)
        routes = tuple(ModelRoute(*pair) for pair in document.pop("routes"))
        return cls(routes, document)


@dataclass(frozen=True, slots=True)
class FoundRoutes:
    """The model that answers at an address, and the methods that it takes."""

    model: str
    methods: frozenset[str]


class RouteTable:
    """The addresses of all models."""

    def __init__(self) -> None:
        self._own: list[str] = list(_RESERVED)
        self._claims: dict[str, tuple[ModelRoute, ...]] = {}
        self._lock = threading.Lock()
        self._served: dict[str, list[tuple[re.Pattern[str], str]]] = {}

    def reserve(self, paths: Iterable[str]) -> None:
        """Keep the addresses of the server from models."""
        self._own += paths

    def is_reserved(self, path: str) -> bool:
        """Return whether the server has an address of its own."""
        return path in self._own

    def claim(self, model: str, routes: Sequence[ModelRoute]) -> None:
        """Claim the addresses of a model that is being loaded, besides its present
        ones.

        Raises ValueError if the server or another model has one of them.
        """
        with self._lock:
            for route in routes:
                for path in self._own:
                    if _overlap(route.path, path):
                        msg = f"route {route} is an address of the server ({path})"
                        raise ValueError(f"{msg}: give it another one")
                for name, others in self._claims.items():
                    taken = (o for o in others if _overlap(route.path, o.path))
                    other = None if name == model else next(taken, None)
                    if other is not None:
                        msg = f"route {route} is also one of model '{name}' ({other})"
                        raise ValueError(f"{msg}: give it another one")
            both = (*self._claims.get(model, ()), *routes)
            if both:
                self._claims[model] = tuple(dict.fromkeys(both))

    def publish(self, model: str, routes: Sequence[ModelRoute]) -> None:
        """Make `routes` the only addresses of the model."""
        with self._lock:
            self._claims.pop(model, None)
            if routes:
                self._claims[model] = tuple(routes)
        self._served.pop(model, None)
        if routes:
            self._served[model] = [
                (compile_path(route.path)[0], route.method) for route in routes
            ]

    @property
    def is_empty(self) -> bool:
        return not self._served

    def find(self, path: str) -> FoundRoutes | None:
        """Return the model that answers at `path`; None if none does."""
        for model, routes in self._served.items():
            methods = {method for pattern, method in routes if pattern.match(path)}
            if methods:
                return FoundRoutes(model, frozenset(methods))
        return None

    def methods(self, path: str) -> set[str]:
        """Return the methods that an address takes; empty if no model has it."""
        found = self.find(path)
        return set() if found is None else set(found.methods)

    def __repr__(self) -> str:
        return f"<RouteTable of {list(self._served)}>"


def _overlap(one: str, other: str) -> bool:
    """Return whether some address matches both paths."""
    left, right = one.split("/")[1:], other.split("/")[1:]
    for mine, theirs in zip(left, right, strict=False):
        if _is_rest(mine) or _is_rest(theirs):
            return True
        if not (_is_open(mine) or _is_open(theirs) or mine == theirs):
            return False
    return len(left) == len(right)


def _is_open(part: str) -> bool:
    return _PARAMETER.search(part) is not None


def _is_rest(part: str) -> bool:
    """Return whether a part stands for any number of parts."""
    return any(found[2] == "path" for found in _PARAMETER.finditer(part))
