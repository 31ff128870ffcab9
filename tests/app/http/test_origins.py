"""Pages of other origins, HEAD and OPTIONS, and paths with a slash too many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.served import ServedGateway
from tests.engine import models

SHOP, ANY = "https://shop.example", "*"
BODY = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}
INFER = "/v1/models/affine/infer"


@pytest.fixture(scope="module")
def open_to_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    models.affine(root / "affine.popef")
    options = ["--allow-origin", SHOP, "--allow-origin", "http://localhost:3000"]
    rule = "model-repository:admin-key=secret"
    with ServedGateway(root, *options, "--restricted-api", rule) as served:
        yield served.wait_ready()


def test_pages_of_named_origins_may_ask(open_to_pages: ServedGateway) -> None:
    ask = open_to_pages.client
    wanted = {
        "origin": SHOP,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,admin-key",
    }
    # Also where a header will be needed, which browsers do not send here yet.
    for path in (INFER, "/v2/models/affine/infer", "/v2/repository/index"):
        allowed = ask.options(path, headers=wanted)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == SHOP
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert "content-type" in allowed.headers["access-control-allow-headers"]
    for origin in (SHOP, "http://localhost:3000"):
        for path, status in ((INFER, 200), ("/v1/models/no/infer", 404)):
            answer = ask.post(path, json=BODY, headers={"origin": origin})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["access-control-expose-headers"] == "*"
    answer = ask.get("/v1/models", headers={"origin": SHOP})
    assert answer.headers["access-control-allow-origin"] == SHOP


def test_pages_of_others_may_not(
    open_to_pages: ServedGateway, gateway: ServedGateway
) -> None:
    for served, origin in ((open_to_pages, "https://evil.example"), (gateway, SHOP)):
        answer = served.client.post(INFER, json=BODY, headers={"origin": origin})
        assert answer.status_code == 200  # browsers keep it from the page
        assert "access-control-allow-origin" not in answer.headers
    answer = open_to_pages.client.post(INFER, json=BODY)  # no page at all
    assert "access-control-allow-origin" not in answer.headers


def test_the_log_says_which_option_a_page_lacks(open_to_pages: ServedGateway) -> None:
    wanted = {"origin": "https://a.example", "access-control-request-method": "POST"}
    refused = open_to_pages.client.options(INFER, headers=wanted)
    assert refused.status_code == 400
    line = open_to_pages.wait_line(refused.headers["x-request-id"])
    assert "error='Disallowed CORS origin (--allow-origin)'" in line
    assert "help=" not in line  # there is no code whose address it could be
    wanted = {"origin": SHOP, "access-control-request-method": "DELETE"}
    refused = open_to_pages.client.options(INFER, headers=wanted)
    line = open_to_pages.wait_line(refused.headers["x-request-id"])
    assert "error='Disallowed CORS method'" in line


def test_all_origins(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    with ServedGateway(tmp_path, "--allow-origin", ANY) as served:
        served.wait_ready()
        answer = served.client.post(INFER, json=BODY, headers={"origin": SHOP})
        assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/metrics", "/v1/health/ready", "/v2", "/v1/models/affine"]
)
def test_head_is_get_without_the_body(gateway: ServedGateway, path: str) -> None:
    whole, head = gateway.client.get(path), gateway.client.head(path)
    assert head.status_code == whole.status_code
    assert head.content == b""
    assert head.headers.get("content-type") == whole.headers.get("content-type")
    assert gateway.client.get(path).status_code == whole.status_code  # same connection


def test_options_says_which_methods_there_are(gateway: ServedGateway) -> None:
    for path, allowed in (
        (INFER, "OPTIONS, POST"),
        ("/v1/models", "GET, HEAD, OPTIONS"),
    ):
        answer = gateway.client.options(path)
        assert (answer.status_code, answer.headers["allow"]) == (204, allowed)
        refused = gateway.client.delete(path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
    assert gateway.client.options("/nothing").status_code in (404, 405)
    assert gateway.client.head(INFER).status_code == 405


def test_a_slash_too_many(gateway: ServedGateway) -> None:
    ask = gateway.client
    for path in ("/v2/", "/v1/models/", "/v1/health/ready/", "/metrics/"):
        assert ask.get(path).status_code == 200, path
    assert ask.post(f"{INFER}/", json=BODY).status_code == 200


def test_a_name_that_is_almost_right(gateway: ServedGateway) -> None:
    model = "/v1/models/afine"
    for method, path in (("POST", f"{model}/infer"), ("GET", model)):
        answer = gateway.client.request(method, path, json=BODY)
        assert answer.status_code == 404
        assert answer.json()["error"].endswith("not found; did you mean 'affine'?")
    long = gateway.client.get(f"/v1/models/{'a' * 8000}")
    assert long.json()["error"].endswith("is not found")
