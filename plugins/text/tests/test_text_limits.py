"""Limits of text models: who is refused, with which status, and until when.

Covers: plugins/text/src/popgate_text/admission.py,
plugins/text/src/popgate_text/token_routes.py,
plugins/text/src/popgate_text/bodies.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.app.api.test_server_metrics import value
from tests.app.served import ServedGateway
from tests.support import until

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from engine import QueueFull
from plugins.text.tests.folders import embedding_folder
from popgate_text.admission import TextAdmission

EMBEDDINGS = "/openai/v1/embeddings"
#: A model that takes 4 texts of a request, and 6 of all requests.
LIMITED = """
max_queue_delay = 60.0
[text]
max_texts = 4
max_concurrent_texts = 6
max_request_tokens = 40
truncate = false
token_input = true
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    (root / "limited").mkdir()
    (root / "limited" / "config.toml").write_text(LIMITED)
    embedding_folder(root / "limited" / "1")
    options = ("--devices", "cpu:1", "--cache-dir", str(root.parent / "cache"))
    more = ("--tei", "limited", "--max-body-size", "4096")
    with ServedGateway(root, *options, *more) as gateway:
        yield gateway.wait_ready()


def embed(gateway: ServedGateway, texts: list[Any]) -> httpx.Response:
    body = {"model": "limited", "input": texts}
    return gateway.client.post(EMBEDDINGS, json=body)


@pytest.mark.parametrize(
    ("texts", "status", "why"),
    [
        (["a"] * 5, 400, "at most 4 texts, got 5 (max_texts and max_con"),
        (["a cat " * 40], 400, "has 82 tokens, but the model takes at most 64"),
        (["a cat " * 7] * 3, 400, "has more than 40 tokens"),
        (["a" * 5000], 413, "4096"),
    ],
)
def test_what_is_too_much_is_refused_in_each_form(
    served: ServedGateway, texts: list[str], status: int, why: str
) -> None:
    answer = embed(served, texts)
    assert answer.status_code == status, answer.text
    assert why in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    answer = served.client.post("/embed", json={"inputs": texts})
    # As the server of that protocol answers, not as its document says.
    assert answer.status_code == {400: 422}.get(status, status), answer.text
    assert why in answer.json()["error"]
    assert answer.json()["error_type"] == "Validation"


def test_tokens_count_as_the_memory_that_they_take(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Texts of 65 KB become tokens of 1.6 MB, and a vector for each takes more."""
    root = tmp_path_factory.mktemp("models")
    embedding_folder(root / "unit" / "1")
    options = ("--devices", "cpu:1", "--transfer-memory", "1500KiB")
    with ServedGateway(root, *options).wait_ready() as gateway:
        for path, count, status in (
            ("embed", 512, 503), ("embed", 256, 200), ("embed_all", 256, 503),
        ):  # fmt: skip
            body = {"inputs": ["a " * 63] * count}
            answer = gateway.client.post(f"/v1/models/unit/{path}", json=body)
            assert answer.status_code == status, (path, count, answer.text)
            assert status == 200 or "--transfer-memory" in answer.json()["error"]
        until(lambda: value(gateway, "popgate_transfer_memory_bytes") == 0)


def test_token_ids_have_the_same_limits(served: ServedGateway) -> None:
    for ids, why in (
        ([[5] * 20] * 3, "the request has more than 40 tokens"),
        ([[1 << 20] * 65], "expected 1 to 64 token ids, got 65"),
        ([[1 << 20]], "token id 1048576 is outside the vocabulary"),
    ):
        answer = embed(served, ids)
        assert answer.status_code == 400, answer.text
        assert why in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/tokenize", {"inputs": ["a"] * 5}, 422, "Validation"),
        ("/tokenize", {"inputs": 3}, 422, "Validation"),
        ("/decode", {"ids": [[5]] * 5}, 422, "Validation"),
        ("/decode", {"ids": [1 << 20]}, 422, "Validation"),
        ("/v1/models/nix/tokenize", {"inputs": "a"}, 404, "Backend"),
    ],
)
def test_routes_without_a_run_refuse_as_tei_does(
    served: ServedGateway, path: str, body: Any, status: int, kind: str
) -> None:
    answer = served.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error_type"] == kind


def test_info_has_the_limits(served: ServedGateway) -> None:
    info = served.client.get("/info").json()
    assert info["max_client_batch_size"] == 4
    assert info["max_concurrent_requests"] == 6
    assert info["max_batch_tokens"] == 40
    assert info["auto_truncate"] is False


def in_flight(served: ServedGateway) -> int:
    name = 'popgate_requests_in_flight{model="limited",version="1"} '
    text = served.client.get("/metrics").text
    return int(text.partition(f"\n{name}")[2].partition("\n")[0])


def hold(served: ServedGateway, texts: list[str]) -> socket.socket:
    """Send a request, and return the connection that waits for its answer."""
    url = served.client.base_url
    connection = socket.create_connection((url.host, url.port or 80))
    body = json.dumps({"model": "limited", "input": texts}).encode()
    head = f"POST {EMBEDDINGS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + body)
    return connection


def test_texts_beyond_the_limit_are_refused_until_others_have_ended(
    served: ServedGateway,
) -> None:
    # Their batch waits for more rows, so they stay in flight.
    with hold(served, ["a"] * 3):
        until(lambda: in_flight(served) == 1)
        refused = embed(served, ["a"] * 4)
        assert refused.status_code == 429, refused.text
        error = refused.json()["error"]
        why = "3 texts are in flight and the request has 4; the limit is 6"
        assert why in error["message"]
        assert error["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1
        assert int(refused.headers["retry-after-ms"]) >= 1
        assert "x-should-retry" not in refused.headers
        answer = served.client.post("/embed", json={"inputs": ["a"] * 4})
        assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
        assert "retry-after" in answer.headers
        with hold(served, ["a"] * 3):  # there is room for three
            until(lambda: in_flight(served) == 2)
    until(lambda: in_flight(served) == 0)
    with hold(served, ["a"] * 4):  # and for four when the others have ended
        until(lambda: in_flight(served) == 1)
    until(lambda: in_flight(served) == 0)


def test_a_refusal_says_how_long_the_texts_in_flight_take() -> None:
    now = [100.0]
    admission = TextAdmission(10, lambda: now[0])
    admission.acquire(6)
    now[0] += 3.0
    admission.release(6, answered=True)  # half a second a text
    admission.acquire(8)
    with pytest.raises(QueueFull) as refused:
        admission.acquire(5)  # three too many
    assert refused.value.retry_after == pytest.approx(1.5)
    assert admission.held == 8
    now[0] += 1.0
    admission.release(8, answered=False)  # given up: says nothing of the speed
    admission.acquire(10)
    with pytest.raises(QueueFull) as refused:
        admission.acquire(1)
    assert refused.value.retry_after == pytest.approx(0.5)


def test_requests_with_many_texts_leave_room_to_small_ones() -> None:
    admission = TextAdmission(160)
    admission.acquire(100)
    with pytest.raises(QueueFull, match="has 41; the limit is 140"):
        admission.acquire(41)
    admission.acquire(40)
    for _ in range(20):
        admission.acquire(1)
    with pytest.raises(QueueFull, match="the limit is 160"):
        admission.acquire(1)
    alone = TextAdmission(160)
    alone.acquire(160)
