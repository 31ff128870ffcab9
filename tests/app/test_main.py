"""The application in this process, without a server.

Covers: app/gateway.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import app
from app.gateway import Gateway
from app.http.front import InferFront
from app.main import create_app
from app.settings import Settings
from tests.engine import models

BODY = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}
DEVICES = "cpu:41-41"


@asynccontextmanager
async def started(repository: Path) -> AsyncIterator[tuple[InferFront, FastAPI]]:
    """An application whose models are loaded, and what stands behind its front."""
    gateway = Gateway(Settings(model_repository=repository, devices=DEVICES))
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


def test_a_bad_specification_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="devices"):
        create_app(Settings(devices="what"))


def test_with_and_without_the_front(tmp_path: Path) -> None:
    """The declared operation answers as the front does."""
    models.affine(tmp_path / "affine.popef")

    async def ask() -> None:
        async with started(tmp_path) as (front, api):
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

    asyncio.run(ask())


def test_one_after_the_other_in_one_process(tmp_path: Path) -> None:
    """Ending frees the device: the next application gets it."""
    models.affine(tmp_path / "affine.popef")

    async def ask() -> None:
        for _ in range(2):
            async with started(tmp_path) as (front, _), client_of(front) as client:
                ready = await client.get("/v1/health/ready")
                assert ready.json()["ready"] is True, ready.text

    asyncio.run(ask())
