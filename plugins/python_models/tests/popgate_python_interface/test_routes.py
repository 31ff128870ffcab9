"""Routes of Python models: addresses of their own, under the rules of inference.

Covers: plugins/python_models/src/popgate_python_interface/route.py,
    plugins/python_models/src/popgate_python_interface/routes.py,
engine/programs/python_tensors.py, app/serving/route_form.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgpack
import pytest

from popgate_python_interface import failed_answer
from tests.app.served import ServedGateway, add
from tests.support import until

MODEL = """
from __future__ import annotations

import os
import threading
import time

import numpy as np
from fastapi import Header, HTTPException, Response
from pydantic import BaseModel, Field

from popgate import route


class Text(BaseModel):
    text: str = Field(max_length=1000)
    words: int = 1


class Summary(BaseModel):
    summary: str
    by: str


class Model:
    inputs = {"text": "BYTES[-1]"}
    outputs = {"length": "INT64[-1]"}
    batching = BATCHING

    def load(self, context):
        self.context, self.by = context, context.config.get("by", "v1")
        self.thread = threading.get_ident()
        self.cancelled = 0

    def __call__(self, text):
        return {"length": np.array([len(each) for each in text])}

    @route.post("/v1/NAME/summaries", summary="Shorten a text")
    def summarise(self, body: Text) -> Summary:
        words = body.text.split()[: body.words]
        return Summary(summary=" ".join(words), by=self.by)

    @route.get("/v1/NAME/summaries/{name}")
    def one(self, name: str, limit: int = 3, authorization: str | None = Header(None)):
        if name == "none":
            raise HTTPException(404, "no such summary")
        same = threading.get_ident() == self.thread
        ids = list(self.context.request_ids)
        return [name, limit, authorization, same, ids, self.cancelled]

    @route.put("/v1/NAME/bytes")
    def raw(self):
        return Response(b"\\x00\\x01\\x00", media_type="image/png")

    @route.post("/v1/NAME/wait")
    async def wait(self, path: str):
        import asyncio

        open(path, "x").close()
        try:
            while os.path.exists(path):
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @route.post("/v1/NAME/wrong")
    def wrong(self):
        return {}["x"]

    @route.post("/v1/NAME/header")
    def header(self):
        response = Response(b"x")
        response.raw_headers.append((b"x-bad", b"a\\r\\nx-injected: yes"))
        return response

    @route.delete("/v1/NAME/process")
    def end(self):
        os._exit(3)
"""
KEYS = """
[[key]]
name = "shop"
sha256 = "{shop}"
groups = ["infer"]
models = ["rows"]

[[key]]
name = "reader"
sha256 = "{reader}"
groups = ["metadata"]
"""


def write(
    root: Path, name: str, text: str = MODEL, config: str = "", batching: bool = True
) -> Path:
    folder = root / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (root / name / "config.toml").write_text(config)
    new = root / ".new"
    text = text.replace("NAME", name).replace("BATCHING", str(batching))
    new.write_text(textwrap.dedent(text))
    return new.rename(folder / "model.py")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write(root, "rows")
    write(root, "single", batching=False)
    call = 'return {"length": np.array([len(each) for each in text])}'
    each = """for one in text:
            yield {"length": np.array([len(one)])}"""
    write(root, "stream", MODEL.replace(call, each), batching=False)
    return root


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[ServedGateway]:
    options = ("--allow-python", "--trust-loopback", "--max-body-size", "100000")
    with ServedGateway(root, *options) as gateway:
        yield gateway.wait_ready()


@pytest.mark.parametrize("name", ["rows", "single"])
def test_a_route_answers_beside_the_tensors(served: ServedGateway, name: str) -> None:
    client = served.client
    body = {"text": "one two three", "words": 2}
    answer = client.post(f"/v1/{name}/summaries", json=body)
    assert (answer.status_code, answer.json()) == (
        200,
        {"summary": "one two", "by": "v1"},
    )
    found = client.get(
        f"/v1/{name}/summaries/a%20b?limit=5", headers={"x-request-id": "me"}
    )
    assert found.json() == ["a b", 5, None, True, ["me"], 0]
    kept = client.get("/v1/requests/me").json()
    assert (kept["model"], kept["path"]) == (name, f"/v1/{name}/summaries/a b")
    raw = client.put(f"/v1/{name}/bytes")
    assert raw.content == b"\x00\x01\x00"
    assert raw.headers["content-type"] == "image/png"
    assert served.infer(name, text=["a", "bcd"]) == {"length": [1, 3]}


@pytest.mark.parametrize("name", ["rows", "single"])
def test_what_is_wrong_is_said(served: ServedGateway, name: str) -> None:
    client = served.client
    wrong = client.post(f"/v1/{name}/summaries", json={"text": 3})
    assert wrong.status_code == 422
    assert wrong.json()["detail"][0]["loc"] == ["body", "text"]
    missing = client.get(f"/v1/{name}/summaries/none")
    assert (missing.status_code, missing.json()["detail"]) == (404, "no such summary")
    failed = client.post(f"/v1/{name}/wrong")
    assert failed.status_code == 500
    assert failed.json()["error"].startswith("KeyError: 'x'; model.py, line ")
    other = client.delete(f"/v1/{name}/summaries")
    assert other.status_code == 405
    assert other.headers["allow"] == "OPTIONS, POST"
    options = client.options(f"/v1/{name}/summaries")
    assert (options.status_code, options.headers["allow"]) == (204, "OPTIONS, POST")
    assert client.head(f"/v1/{name}/summaries/x").status_code == 200
    injected = client.post(f"/v1/{name}/header")
    assert injected.status_code == 500
    assert "x-injected" not in injected.headers


def test_the_text_of_a_failure_may_have_lone_surrogates() -> None:
    head, body = failed_answer("bad \ud800 text")
    assert (msgpack.unpackb(head), body) == ({"error": "bad ? text"}, b"")


def test_a_generator_has_routes_too(served: ServedGateway) -> None:
    client = served.client
    body = {"inputs": {"text": ["a", "bcd"]}}
    headers = {"accept": "text/event-stream"}
    path = "/v1/models/stream/infer"
    events = client.post(path, json=body, headers=headers).text
    found = [json.loads(line[6:]) for line in events.splitlines() if line]
    assert [e["outputs"][0]["data"] for e in found] == [[1], [3]], events
    answer = client.post("/v1/stream/summaries", json={"text": "a b"})
    assert answer.json()["summary"] == "a"
    assert client.post("/v1/models/stream/infer", json=body).status_code == 400


def test_requests_to_routes_and_tensors_are_not_mixed(served: ServedGateway) -> None:
    def ask(number: int) -> Any:
        if number % 2:
            return served.infer("rows", text=["x" * number])["length"]
        body = {"text": "y " * number, "words": number}
        answer = served.client.post("/v1/rows/summaries", json=body)
        return answer.json()["summary"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(1, 200)))
    expected = [[n] if n % 2 else ("y " * n).strip() for n in range(1, 200)]
    assert answers == expected


def test_bodies_are_bounded_before_they_are_read(served: ServedGateway) -> None:
    text = "x" * 200_000
    answer = served.client.post("/v1/rows/summaries", json={"text": text})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


def test_a_deadline_ends_the_route(served: ServedGateway, tmp_path: Path) -> None:
    path = tmp_path / "held"
    late = served.client.post(
        "/v1/single/wait",
        params={"path": str(path)},
        headers={"x-request-timeout": "0.5"},
    )
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    cancelled = served.client.get("/v1/single/summaries/x").json()[-1]
    path.unlink()
    assert cancelled == 1


def test_a_client_that_leaves_cancels_the_route(
    served: ServedGateway, tmp_path: Path
) -> None:
    path = tmp_path / "held"
    before = served.client.get("/v1/rows/summaries/x").json()[-1]
    url = httpx.URL(served.url)
    with socket.create_connection((url.host, url.port or 0)) as sock:
        query = quote(str(path), safe="")
        head = f"POST /v1/rows/wait?path={query} HTTP/1.1\r\nhost: x\r\n"
        sock.sendall(f"{head}content-length: 0\r\n\r\n".encode())
        until(path.exists)
    until(lambda: served.client.get("/v1/rows/summaries/x").json()[-1] == before + 1)
    path.unlink()


def test_the_numbers_are_those_of_inference(served: ServedGateway) -> None:
    def numbers() -> tuple[float, float]:
        stats = served.client.get("/v2/models/single/stats").json()["model_stats"][0]
        text = served.client.get("/metrics").text
        line = 'popgate_http_responses_total{route="infer",status="422"} '
        found = [one for one in text.splitlines() if one.startswith(line)]
        count = float(found[0].removeprefix(line)) if found else 0.0
        return stats["inference_stats"]["success"]["count"], count

    before = numbers()
    served.client.post("/v1/single/summaries", json={"text": 1})
    after = numbers()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)


def test_the_document_describes_routes(served: ServedGateway) -> None:
    document = served.client.get("/openapi.json").json()
    operation = document["paths"]["/v1/rows/summaries"]["post"]
    assert operation["summary"] == "Shorten a text"
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/rows.Text"}
    assert document["components"]["schemas"]["rows.Text"]["required"] == ["text"]
    assert "/v1/single/summaries/{name}" in document["paths"]
    about = served.client.get("/v1/models/rows").json()
    assert [tensor["name"] for tensor in about["inputs"]] == ["text"]
    assert "routes" not in about["properties"]


def test_a_route_is_back_after_its_process_has_died(served: ServedGateway) -> None:
    lost = served.client.delete("/v1/single/process")
    assert (lost.status_code, lost.json()["code"]) == (503, "device_lost")

    def is_back() -> bool:
        answer = served.client.post("/v1/single/summaries", json={"text": "a b"})
        return answer.status_code == 200

    until(is_back)


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ("/v1/models/other/infer", "is an address of the server"),
        ("/v1/{any}/live", "is an address of the server"),
        ("/metrics", "is an address of the server (/metrics)"),
        ("/{rest:path}", "is an address of the server"),
        ("/v1/rows/{what}", "is also one of model 'rows'"),
        ("no slash", "expected an address"),
        ("/v1/{name", "expected an address"),
    ],
)
def test_addresses_that_are_taken_are_refused(
    served: ServedGateway, root: Path, route: str, words: str
) -> None:
    text = f"""
    from popgate import route

    class Model:
        inputs = {{"x": "FP32[-1]"}}
        outputs = {{"y": "FP32[-1]"}}

        def __call__(self, x):
            return x

        @route.post({route!r})
        def answer(self, {"any: str" if "{any}" in route else ""}):
            return 1
    """
    write(root, "taken", text)
    served.client.post("/v1/models/taken/load")
    about = served.client.get("/v1/models/taken").json()
    assert about["state"] == "UNAVAILABLE", about
    assert words in about["versions"][0]["reason"]


def test_keys_bound_routes_as_inference(root: Path, tmp_path: Path) -> None:
    names = {name: sha256(name.encode()).hexdigest() for name in ("shop", "reader")}
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS.format(**names))
    (tmp_path / "models").mkdir()
    write(tmp_path / "models", "rows")
    write(tmp_path / "models", "other")

    def ask(gateway: ServedGateway, key: str, name: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return gateway.client.get(f"/v1/{name}/summaries/x", headers=headers)

    options = ("--allow-python", "--keys", str(keys))
    with ServedGateway(tmp_path / "models", *options) as gateway:
        gateway.wait_ready()
        found = [
            ask(gateway, key, name).status_code
            for key, name in (
                ("", "rows"),
                ("wrong", "rows"),
                ("reader", "rows"),
                ("shop", "other"),
                ("shop", "rows"),
            )
        ]
        assert found == [401, 401, 403, 403, 200]
        assert ask(gateway, "shop", "rows").json()[2] is None  # the key is not shown


def test_models_on_demand_answer_once_they_were_loaded(tmp_path: Path) -> None:
    write(tmp_path, "rows")
    with ServedGateway(tmp_path, "--allow-python", "--lazy") as gateway:
        gateway.wait_ready()
        path, body = "/v1/rows/summaries", {"text": "a b"}
        assert gateway.client.post(path, json=body).status_code == 404
        assert gateway.infer("rows", text=["a"]) == {"length": [1]}
        assert gateway.client.post(path, json=body).json()["summary"] == "a"


def test_workers_and_reloads(tmp_path: Path) -> None:
    file = write(tmp_path, "rows", config="parameters = {by = 'v1'}")
    add(tmp_path, "onnx")
    options = ("--allow-python", "--workers", "2", "--reload")
    with ServedGateway(tmp_path, *options) as gateway:
        gateway.wait_ready()

        def by() -> str:
            with httpx.Client(base_url=gateway.url, timeout=30) as client:
                answer = client.post("/v1/rows/summaries", json={"text": "a"})
                assert answer.status_code == 200, answer.text
                return str(answer.json()["by"])

        assert {by() for _ in range(8)} == {"v1"}
        new = file.with_name(".new")
        new.write_text(
            file.read_text().replace(
                'self.context, self.by = context, context.config.get("by", "v1")',
                'self.context, self.by = context, "v2"',
            )
        )
        os.replace(new, file)
        until(lambda: by() == "v2")
        text = gateway.client.get("/metrics").text
        assert 'popgate_http_responses_total{route="infer",status="200"}' in text
        assert gateway.stop(signal.SIGTERM) == 0
