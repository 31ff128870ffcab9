"""A server below a path of its own: its pages, and what the log says of requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.http.connection.test_protocol import Wire
from tests.app.served import ServedGateway
from tests.engine import models

SHOP = "https://shop.example"
BODY = {"inputs": {"input": [[1, 2, 3, 4]]}}
INFER = "/v1/models/affine/infer"


@pytest.fixture(scope="module", params=["1", "2"])
def below(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServedGateway]:
    root: Path = tmp_path_factory.mktemp("models")
    models.affine(root / "affine.popef")
    options = ["--base-path", "/some/pg", "--access-log", "all"]
    options += ["--allow-origin", SHOP, "--workers", request.param]
    with ServedGateway(root, *options) as served:
        yield served.wait_ready()


def test_the_path_without_its_slash_is_sent_on(below: ServedGateway) -> None:
    ask, page = below.client, {"accept": "text/html"}
    for headers in (page, {}):
        sent_on = ask.get("/some/pg", headers=headers)
        assert sent_on.status_code == 307
        assert sent_on.next_request is not None
        assert sent_on.next_request.url.path == "/some/pg/"
    assert ask.get("/some/pg?a=b", headers=page).status_code == 307
    assert "text/html" in ask.get("/some/pg/", headers=page).headers["content-type"]
    assert ask.get("/", headers=page).status_code == 200
    assert ask.get("/some/pgs").status_code == 404


def test_the_log_has_the_whole_path(below: ServedGateway) -> None:
    ask, base = below.client, "/some/pg"
    for path in (INFER, INFER):  # the second time by the known head
        assert ask.post(base + path, json=BODY).status_code == 200
    events = {"accept": "text/event-stream"}
    assert ask.post(base + INFER, json=BODY, headers=events).status_code == 200
    assert ask.post(f"{base}/v2/models/affine/generate", json={}).status_code == 400
    assert ask.post(f"{base}/v1/models/none/infer", json=BODY).status_code == 404
    assert ask.get(f"{base}/v1/health/live").status_code == 200
    assert ask.post(INFER, json=BODY).status_code == 200
    below.wait_line(f"POST {INFER} 200")
    below.wait_line(f"GET {base}/v1/health/live 200")
    below.wait_line(f"POST {base}/v1/models/none/infer 404")
    below.wait_line(f"POST {base}/v2/models/affine/generate 400")
    lines = [line for line in below.lines if f"POST {base}{INFER} 200" in line]
    assert len(lines) == 3


def test_the_terminal_shows_whole_urls(below: ServedGateway) -> None:
    url = f"{below.client.base_url}".rstrip("/") + "/some/pg"
    below.wait_line(f"affine  ready        {url}/v1/models/affine")
    below.wait_line(f"pages    {url}/")
    below.wait_line(f"docs     {url}/docs")


#: Paths of inference, and bodies of requests to them.
FORMS = {
    INFER: BODY,
    "/v1/models/affine:predict": {"instances": [[1, 2, 3, 4]]},
    "/v2/models/affine/generate": {"input": [1, 2, 3, 4]},
}


@pytest.mark.parametrize("base", ["", "/some/pg"])
@pytest.mark.parametrize("path", FORMS)
def test_answered_requests_have_their_path(
    below: ServedGateway, base: str, path: str
) -> None:
    ask, times = below.client, range(3)  # the last ones by the known head
    for number in times:
        told = {"x-request-id": f"{path}-{base}-{number}"}
        assert ask.post(base + path, json=FORMS[path], headers=told).status_code == 200
        # This path must not change the paths of the others.
        assert ask.get("/v1/health/live").status_code == 200
    for number in times:
        one = ask.get(f"/v1/requests/{path}-{base}-{number}").json()
        assert one["path"] == base + path
    failed = ask.post(base + path, json={}, headers={"x-request-id": "told"})
    assert failed.status_code == 400
    assert ask.get("/v1/requests/told").json()["path"] == base + path


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nOrigin: %b\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nOrigin: %b\r\n" + b"X: y\r\n" * 300 + b"\r\n", 431),
    ],
)
def test_pages_may_read_what_no_application_answers(
    below: ServedGateway, sent: bytes, status: int
) -> None:
    for origin, allowed in ((SHOP, SHOP), ("https://evil.example", None)):
        with Wire(below) as wire:
            wire.send(sent.replace(b"%b", origin.encode()))
            found, headers, _ = wire.answer()
            assert found == status
            assert headers.get("access-control-allow-origin") == allowed
