"""Addresses of models: whose they are, and who may not have them."""

from __future__ import annotations

import pytest

from app.serving.route_table import ModelRoute, ModelRoutes, RouteTable

SUMMARY = ModelRoute("POST", "/v1/summaries")
ONE = ModelRoute("GET", "/v1/summaries/{name}")


def test_addresses_are_found_with_their_methods() -> None:
    table = RouteTable()
    assert table.is_empty
    table.publish("m", (SUMMARY, ONE, ModelRoute("DELETE", "/v1/summaries/{name}")))
    found = table.find("/v1/summaries/x")
    assert found is not None
    assert (found.model, set(found.methods)) == ("m", {"GET", "DELETE"})
    assert table.methods("/v1/summaries") == {"POST"}
    assert table.find("/v1/summaries/x/y") is None
    table.publish("m", ())
    assert table.is_empty


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("/a/b", "/a/b"),
        ("/a/{x}", "/a/b"),
        ("/a/b", "/a/{x}"),
        ("/a/{x}/b", "/a/b/{y}"),
        ("/a/{x:path}", "/a/b/c"),
        ("/a/b/c", "/a/{x:path}"),
        ("/a/v-{x}", "/a/b"),
    ],
)
def test_addresses_that_overlap_have_one_owner(mine: str, theirs: str) -> None:
    table = RouteTable()
    table.claim("first", (ModelRoute("GET", theirs),))
    with pytest.raises(ValueError, match="is also one of model 'first'"):
        table.claim("second", (ModelRoute("POST", mine),))
    table.claim("first", (ModelRoute("POST", mine),))
    table.publish("first", ())
    table.claim("second", (ModelRoute("POST", mine),))
    table = RouteTable()
    table.reserve([theirs])
    with pytest.raises(ValueError, match="is an address of the server"):
        table.claim("second", (ModelRoute("POST", mine),))


@pytest.mark.parametrize(
    ("mine", "theirs"), [("/a/b", "/a/c"), ("/a", "/a/{x}"), ("/a/{x}/b", "/a/{x}/c")]
)
def test_addresses_that_do_not_overlap(mine: str, theirs: str) -> None:
    table = RouteTable()
    table.claim("first", (ModelRoute("GET", theirs),))
    table.claim("second", (ModelRoute("GET", mine),))


def test_paths_of_models_are_the_servers() -> None:
    table = RouteTable()
    for path in ("/v1/models/a/b", "/v2/health", "/v2/x/{y}"):
        with pytest.raises(ValueError, match="is an address of the server"):
            table.claim("m", (ModelRoute("GET", path),))


def test_a_document_is_read() -> None:
    found = ModelRoutes.parse('{"routes": [["POST", "/v1/summaries"]], "paths": {}}')
    assert (found.routes, found.document) == ((SUMMARY,), {"paths": {}})
    assert ModelRoutes.parse("") == ModelRoutes()
