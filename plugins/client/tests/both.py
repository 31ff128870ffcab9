"""Both clients, over both of their ways to a server, behind one face for tests."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Self

import httpx

from popgate_client import AsyncClient, Client

WAYS = ["blocking", "asyncio", "blocking-httpx", "asyncio-httpx"]


class Driven:
    """A client whose calls return when they are done. A context manager."""

    def __init__(self, way: str, url: str, **options: Any) -> None:
        self.way = way
        self._runner = asyncio.Runner()
        self._http: Any = None
        awaited = way.startswith("asyncio")
        if way.endswith("httpx"):
            self._http = (httpx.AsyncClient if awaited else httpx.Client)(
                trust_env=False, verify=False
            )
            options["http_client"] = self._http
        self.client: Any = (AsyncClient if awaited else Client)(url, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        return lambda *args, **more: self.done(method(*args, **more))

    def done(self, result: Any) -> Any:
        """The result; of a stream, a list."""
        if inspect.isawaitable(result):
            return self._runner.run(_awaited(result))
        if inspect.isasyncgen(result):
            return self._runner.run(_collected(result))
        return list(result) if inspect.isgenerator(result) else result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.done(self.client.close())
        if self._http is not None:
            closed = self._http.aclose if self.way.startswith("a") else self._http.close
            self.done(closed())
        self._runner.close()


async def _awaited(result: Any) -> Any:
    return await result


async def _collected(result: Any) -> list[Any]:
    return [item async for item in result]
