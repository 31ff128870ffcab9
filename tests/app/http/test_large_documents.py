"""Documents that take long to decode do so in a thread, on every way in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.plugins import ROUTES, plugin_names
from tests.app.http.connection.test_protocol import Wire
from tests.app.served import Serve, ServedGateway
from tests.engine import models

ROWS = 60_000
MATRIX = [[0.125, 1.25, 2.5, 3.75]] * ROWS
TEXTS = ["abcdefgh"] * 150_000


def fill(root: Path) -> None:
    models.affine(root / "affine.popef")
    models.text(root / "text.popef")


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    # Without checks of the device, which may take a thread more while a run is long.
    return serve(fill, "--device-timeout", "0")


def threads(gateway: ServedGateway) -> int:
    found = re.search(
        r"^process_threads (\d+)", gateway.client.get("/metrics").text, re.MULTILINE
    )
    assert found is not None
    return int(found[1])


def test_every_way_in_decodes_large_documents_in_one_thread(
    gateway: ServedGateway,
) -> None:
    client = gateway.client
    client.post("/v1/models/affine/infer", json={"inputs": {"input": [[1.0] * 4]}})
    threads(gateway)
    before = threads(gateway)
    body = {"inputs": {"input": MATRIX}}
    answer = client.post("/v1/models/affine/infer", json=body)
    assert answer.status_code == 200, answer.text
    data = answer.json()["outputs"][0]["data"]
    assert (len(data), data[-1]) == (4 * ROWS, 8.5)
    events = {"accept": "text/event-stream"}
    answer = client.post("/v1/models/affine/infer", json=body, headers=events)
    assert answer.status_code == 200
    assert answer.text.count("8.5") == ROWS
    chunks = (json.dumps(body).encode(), b" ")
    answer = client.post("/v1/models/affine/infer", content=iter(chunks))
    assert answer.json()["outputs"][0]["data"][-1] == 8.5
    if plugin_names(ROUTES):  # forms of plugins
        answer = client.post("/v1/models/text:predict", json={"inputs": TEXTS})
        assert len(answer.json()["outputs"]) == len(TEXTS)
        answer = client.post("/v2/models/text/generate", json={"input": TEXTS})
        assert len(answer.json()["output"]) == len(TEXTS)
    assert threads(gateway) == before + 1


@pytest.mark.parametrize("kind", ["keys", "shape"])
def test_what_is_wrong_with_a_large_document_is_said(
    gateway: ServedGateway, kind: str
) -> None:
    text = b'{"a":1' + b',"a":1' * 2_100_000 + b"}"
    if kind == "shape":
        text = json.dumps({"inputs": {"input": [row[:3] for row in MATRIX]}}).encode()
    before = gateway.client.get("/v1/models/affine/stats").json()
    for _ in range(2):
        answer = gateway.client.post("/v1/models/affine/infer", content=text)
        assert answer.status_code == 400
        assert answer.json()["code"] in ("invalid_request", "invalid_input")
    assert gateway.client.get("/v1/models/affine/stats").json() != before
    assert gateway.infer("affine", input=[[1.0] * 4])["output"] == [3.0] * 4


def test_a_client_may_leave_while_its_document_is_decoded(
    gateway: ServedGateway,
) -> None:
    text = json.dumps({"inputs": {"input": MATRIX}}).encode()
    head = b"POST /v1/models/affine/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
    for _ in range(5):
        with Wire(gateway) as wire:
            wire.send(head % len(text), b"\r\n", text)
    pending = 'popgate_requests_in_flight{model="affine",version="1"} 0'
    for _ in range(1000):
        if pending in gateway.client.get("/metrics").text:
            break
    else:
        raise AssertionError("requests of clients that have gone are still pending")
    assert gateway.infer("affine", input=[[1.0] * 4])["output"] == [3.0] * 4


def test_a_model_may_be_replaced_while_documents_are_decoded(
    gateway: ServedGateway,
) -> None:
    text = json.dumps({"inputs": {"input": MATRIX}}).encode()
    head = b"POST /v1/models/affine/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
    load = b"POST /v2/repository/models/affine/load HTTP/1.1\r\nHost: localhost\r\n"
    for _ in range(3):
        with Wire(gateway) as first, Wire(gateway) as second, Wire(gateway) as other:
            other.send(load, b"Content-Length: 0\r\n\r\n")
            for wire in (first, second):
                wire.send(head % len(text), b"\r\n", text)
            assert other.answer()[0] == 200
            for wire in (first, second):
                assert wire.output()[-1] == 8.5
