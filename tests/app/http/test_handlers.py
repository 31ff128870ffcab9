"""Errors of routes: one form, and nothing of our inside."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi import HTTPException as FastAPIException
from starlette.exceptions import HTTPException

from app.errors import UnknownModel
from app.http.handlers import AllowedMethods, install_error_handlers
from engine import DeviceLost


def make_app() -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)
    failures: dict[str, Exception] = {
        "ours": UnknownModel("x"),
        "engine": DeviceLost("device cpu:0 was lost"),
        "http": HTTPException(418, "short and stout", {"X-Pot": "tea"}),
        "missing": HTTPException(404, 'no scale "x"; send {"scale": "y"}'),
        "braces": HTTPException(400, 'send {"scale": "y"}'),
        "details": FastAPIException(400, {"field": "x", "limits": [1, None]}),
        "bug": RuntimeError("password=hunter2"),
    }

    @app.get("/fail/{kind}")
    async def fail(kind: str) -> None:
        raise failures[kind]

    @app.get("/number/{value}")
    async def number(value: int) -> int:
        return value

    return app


def ask(path: str, method: str = "GET") -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(), raise_app_exceptions=True)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://t"
        ) as client:
            return await client.request(method, path)

    return asyncio.run(call())


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/fail/ours", 404, "unknown_model"),
        ("/fail/engine", 503, "device_lost"),
        ("/fail/http", 418, "error"),
        ("/fail/bug", 500, "internal_error"),
        ("/fail/missing", 404, "not_found"),
        ("/fail/braces", 400, "error"),
        ("/fail/details", 400, "error"),
        ("/none", 404, "not_found"),
        ("/number/x", 400, "invalid_request"),
    ],
)
def test_one_form(path: str, status: int, code: str) -> None:
    response = ask(path)
    body: Any = response.json()
    assert (response.status_code, body["code"]) == (status, code)
    assert set(body) - {"request_id"} == {"error", "code", "help"}
    assert response.headers["content-type"] == "application/json"


def test_headers_of_errors_are_kept() -> None:
    assert ask("/fail/http").headers["x-pot"] == "tea"
    assert ask("/fail/engine").headers["retry-after"] == "1"
    response = ask("/fail/ours", "DELETE")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


def test_an_error_has_the_words_of_its_route_or_says_what_a_path_takes() -> None:
    assert ask("/fail/missing").json()["error"] == 'no scale "x"; send {"scale": "y"}'
    assert ask("/fail/braces").json()["error"] == 'send {"scale": "y"}'
    said = ask("/fail/details").json()["error"]
    assert json.loads(said) == {"field": "x", "limits": [1, None]}
    assert ask("/none").json()["error"].startswith("Not Found: there is nothing at")
    said = ask("/fail/ours", "DELETE").json()["error"]
    assert said.endswith("/fail/ours does not take DELETE; it takes GET, HEAD, OPTIONS")


def test_a_bug_says_nothing_of_our_inside() -> None:
    assert "hunter2" not in ask("/fail/bug").text


def test_the_most_specific_path_says_what_is_allowed() -> None:
    allowed = AllowedMethods(
        {
            "/models/{name}": {"get": {}},
            "/models/{name}:predict": {"post": {}},
            "/models/stats": {"get": {}, "put": {}},
        }
    )
    assert allowed.of("/models/m") == {"GET"}
    assert allowed.of("/models/m:predict") == {"POST"}
    assert allowed.of("/models/stats") == {"GET", "PUT"}
    assert allowed.of("/models") == set()
