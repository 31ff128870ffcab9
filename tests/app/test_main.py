"""The application in this process, without a server.

Covers: app/gateway.py, app/assembly.py.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

import app
from app.api.plugin_routes import plugin_routes
from app.assembly import gateway_of
from app.http.front import InferFront
from app.main import ROUTERS, create_api, create_app
from app.settings import Settings
from tests.app.served import add
from tests.engine import models
from tests.support import FOR_EVER, WAIT

BODY = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}
DEVICES = "cpu:41-41"


@asynccontextmanager
async def started(
    repository: Path, **options: Any
) -> AsyncIterator[tuple[InferFront, FastAPI]]:
    """An application whose models are loaded, and what stands behind its front."""
    settings = Settings(model_repository=repository, devices=DEVICES, **options)
    gateway = gateway_of(settings)
    front = create_app(gateway=gateway)
    api = front.fallback
    assert isinstance(api, FastAPI)
    async with api.router.lifespan_context(api):
        await gateway.wait_started()
        yield front, api


def client_of(application: InferFront | FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(application)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def test_the_root_package_has_it() -> None:
    assert app.create_app is create_app
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        app.nothing  # noqa: B018


def test_routes_are_made_once() -> None:
    settings = Settings(devices=DEVICES)
    added = plugin_routes(settings)
    api = create_api(gateway_of(settings), added)
    for router in (*ROUTERS, *(one.router for one in added)):
        assert all(route in api.routes for route in router.routes)


def test_no_route_needs_a_thread() -> None:
    """FastAPI runs endpoints and dependencies that are no coroutines in threads."""
    settings = Settings(devices=DEVICES)
    api = create_api(gateway_of(settings), plugin_routes(settings))
    left = [route.dependant for route in api.routes if isinstance(route, APIRoute)]
    assert len(left) > len(ROUTERS)
    while left:
        one = left.pop()
        left += one.dependencies
        call = one.call if inspect.isroutine(one.call) else type(one.call).__call__
        assert inspect.iscoroutinefunction(call), one.call


def test_a_bad_specification_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="devices"):
        create_app(Settings(devices="what"))


def test_with_and_without_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The declared operation answers as the front does; what is logged late is not lost
    at the end."""
    models.affine(tmp_path / "affine.popef")
    monkeypatch.setattr("app.observe.journal.GATHERED_FOR", 10 * WAIT)
    caplog.set_level(logging.INFO, "app.access")

    async def ask() -> None:
        async with started(tmp_path, access_log="all") as (front, api):
            for application in (front, api):
                async with client_of(application) as client:
                    answer = await client.post("/v1/models/affine/infer", json=BODY)
                    assert answer.status_code == 200, answer.text
                    (output,) = answer.json()["outputs"]
                    assert output["data"] == [3.0, 5.0, 7.0, 9.0]
                    path = "/v2/models/affine/versions/1/infer"
                    assert (await client.post(path, json=BODY)).status_code == 200
                    missing = await client.post("/v1/models/x/infer", json=BODY)
                    assert missing.status_code == 404
                    assert missing.json()["code"] == "unknown_model"
            async with client_of(front) as client:
                await client.post("/v1/models/affine/infer", json=BODY)
                logged = [vars(record).get("status") for record in caplog.records]
                assert logged.count(200) == 4
        logged = [vars(record).get("status") for record in caplog.records]
        assert logged.count(200) == 5

    asyncio.run(ask())


def test_without_plugins_there_are_no_pages(tmp_path: Path) -> None:
    settings = Settings(model_repository=tmp_path, devices=DEVICES)
    api = create_api(gateway_of(settings))

    async def ask() -> None:
        async with client_of(api) as client:
            for path in ("/", "/docs", "/openapi.json", "/v1/requests"):
                answer = await client.get(path)
                assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
                assert answer.json()["error"] == (
                    f"Not Found: there is nothing at {path}; no plugin with pages and "
                    "their documentation (/docs) is installed"
                )
            assert (await client.get("/v1/models")).json() == {"models": []}

    asyncio.run(ask())


def test_a_load_that_finds_no_room_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in use keeps its memory; the load waits for it and then says so."""
    monkeypatch.setattr("app.repository.loading.eviction.EVICTION_TIMEOUT", 0.0)
    add(tmp_path, "slow", models.slow, config="memory = 1")
    add(tmp_path, "other", config="memory = 1")
    options = {"model_memory": 1, "lazy": True}

    async def ask() -> None:
        async with started(tmp_path, **options) as (front, _), client_of(front) as http:
            assert (await http.post("/v1/models/slow/load")).status_code == 200
            body = {"inputs": {"count": FOR_EVER}}
            busy = asyncio.create_task(http.post("/v1/models/slow/infer", json=body))
            shown = 'popgate_requests_in_flight{model="slow",version="1"} 1'
            while shown not in (await http.get("/metrics")).text:
                assert not busy.done()
            answer = await http.post("/v1/models/other/load")
            assert (answer.status_code, answer.json()["code"]) == (
                503,
                "model_memory_full",
            )
            assert answer.headers["retry-after"] == "1"
            assert "models in use hold 1 B of 1 B" in answer.json()["error"]
            answer = await http.post("/v2/repository/models/other/load", json={})
            assert answer.status_code == 503
            busy.cancel()
            while True:  # the next load waits no longer than this one
                answer = await http.post("/v1/models/other/load")
                if answer.status_code == 200:
                    break
                assert answer.json()["code"] == "model_memory_full"
            answer = await http.post("/v1/models/other/infer", json=BODY)
            assert answer.status_code == 200

    asyncio.run(ask())


def test_an_immediate_exit_waits_for_no_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a second signal, while a model does not end."""

    async def cancel() -> None:
        gateway = gateway_of(Settings(model_repository=tmp_path, devices=DEVICES))
        stop = gateway.stop

        async def stuck() -> None:
            await stop()
            await asyncio.Event().wait()

        monkeypatch.setattr(gateway, "stop", stuck)
        api, began = create_api(gateway), asyncio.Event()

        async def live() -> None:
            async with api.router.lifespan_context(api):
                await gateway.wait_started()
                began.set()
                await asyncio.Event().wait()

        living = asyncio.create_task(live())
        await began.wait()
        living.cancel()
        await asyncio.wait({living}, timeout=WAIT)
        assert living.cancelled()

    asyncio.run(cancel())


def test_one_after_the_other_in_one_process(tmp_path: Path) -> None:
    """Ending frees the device: the next application gets it."""
    models.affine(tmp_path / "affine.popef")

    async def ask() -> None:
        for _ in range(2):
            async with started(tmp_path) as (front, _), client_of(front) as client:
                ready = await client.get("/v1/health/ready")
                assert ready.json()["ready"] is True, ready.text

    asyncio.run(ask())
