"""Parts of the API that need a header."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.api.plugin_routes import plugin_routes
from app.config.restrictions import GROUPS, Restrictions, group_of
from app.errors import HttpError
from app.http.access import Access
from app.main import ROUTERS, methods_by_path
from app.plugins import TRACERS, plugin_names
from app.settings import Settings
from tests.app import fronts
from tests.app.fronts import Client, Doubler
from tests.app.served import ServedGateway
from tests.engine import models


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("/v2", "metadata"),
        ("/v2/models/m", "metadata"),
        ("/v1/models/m/versions/1", "metadata"),
        ("/v2/models/m/ready", "health"),
        ("/v2/models/m/versions/1/ready", "health"),
        ("/v1/health/live", "health"),
        ("/v1/models/m/infer", "inference"),
        ("/v2/models/m/versions/1/generate_stream", "inference"),
        ("/v1/models/m:predict", "inference"),
        ("/v1/models/m/versions/1:predict", "inference"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/m/stats", "statistics"),
        ("/v2/models/m/config", "model-config"),
        ("/v1/models/m/load", "model-repository"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/x/models/m/load", "model-repository"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v2/cudasharedmemory/region/r/register", "shared-memory"),
        ("/docs", None),
        ("/metrics", None),
        ("/v20", None),
    ],
)
def test_groups(path: str, group: str | None) -> None:
    assert group_of(path) == group


def test_every_operation_of_the_protocol_has_a_group() -> None:
    routers = [*ROUTERS, *(one.router for one in plugin_routes(Settings()))]
    paths = [p for p in methods_by_path(routers) if p.startswith(("/v1", "/v2"))]
    # The paths of these groups are those of plugins.
    of_plugins = {"trace", "logging", "shared-memory", "model-config"}
    absent = set() if plugin_names(TRACERS) else of_plugins
    assert {group_of(path) for path in paths} | absent == set(GROUPS)


def test_the_header_opens_its_groups_only() -> None:
    rules = Restrictions(["inference,logging:A-Key=x=1", "trace:other=2"])
    assert rules.groups == ("inference", "logging", "trace")
    rules.check("/v2/logging", {b"a-key": b"x=1"})
    rules.check("/v2/trace/setting", {b"other": b"2"})
    rules.check("/v2/health/live", {})
    for headers in ({}, {b"a-key": b"x=2"}, {b"other": b"2"}, {b"a-key": b""}):
        with pytest.raises(HttpError) as caught:
            rules.check("/v2/logging", headers)
        assert caught.value.status == 403
        assert str(caught.value) == "This API is restricted, expecting header 'a-key'"


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (("logging",), "is written GROUP"),
        (("logging:a",), "is written GROUP"),
        (("logging:=b",), "is written GROUP"),
        (("logging:a b=c",), "is written GROUP"),
        (("loging:a=b",), "'loging' which is unknown"),
        (("logging:a=b", "trace,logging:c=d"), "'logging' twice"),
    ],
)
def test_settings_refuse_odd_rules(rules: tuple[str, ...], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        Settings(restricted_api=rules)  # type: ignore[arg-type]


def test_settings_do_not_show_the_values() -> None:
    settings = Settings(restricted_api=("logging:key=secret",))  # type: ignore[arg-type]
    assert "secret" not in repr(settings)
    assert settings.restrictions.groups == ("logging",)


def test_the_front_asks_before_anything_else() -> None:
    async def run() -> None:
        app = fronts.front(Doubler())
        app.access = Access(Restrictions(["inference,metadata:key=1"]))
        refused = await Client(app, "/v2/models/m/infer").run()
        assert refused.status == 403
        assert refused.json["error"].startswith("This API is restricted")
        below = await Client(app, "/b/v2/models/m/infer", root_path="/b").run()
        assert below.status == 403
        assert (await Client(app, "/v2", method="GET").run()).status == 403
        passed = await Client(app, "/v2/models/m/infer", headers={"key": "1"}).run()
        assert passed.status == 200
        assert (await Client(app, "/metrics", method="GET").run()).status == 418

    asyncio.run(run())


def test_there_is_no_way_around(tmp_path: Path) -> None:
    """Inference has a short way through the server, which asks as well."""
    models.affine(tmp_path / "affine.popef")
    rules = ("inference:key=1", "model-repository:key=2")
    options = [word for rule in rules for word in ("--restricted-api", rule)]
    body = {"inputs": {"input": [[1, 2, 3, 4]]}}
    with ServedGateway(tmp_path, *options, "--base-path", "/b") as gateway:
        gateway.wait_ready()
        post = gateway.client.post
        for path in (
            "/v1/models/affine/infer",
            "/v2/models/affine/versions/1/infer?x=/v2",
            "/v2/models/%61ffine/inf%65r",
            "/b/v2/models/affine/infer",
            "/v1/models/affine:predict",
            "/v2/models/none/infer",
            "/v1/models/affine/unload",
            "/v2/repository/models/affine/unload",
        ):
            assert post(path, json=body).status_code == 403, path
        passed = post("/b/v2/models/affine/infer", json=body, headers={"Key": "1"})
        assert passed.status_code == 200
        assert gateway.client.get("/v2/models/affine").status_code == 200
