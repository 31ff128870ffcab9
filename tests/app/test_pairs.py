"""What a server can do, behind each kind of front: with keys, TLS, workers, on demand.

Covers nothing of its own: the cells of tests/matrix name these tests for many pairs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
import trustme

from app.config.keys import digest_of
from popgate_client import AsyncClient, Client
from tests.app.python_sources import COUNT, write
from tests.app.served import POPGATE, ROOT, ServedGateway, add
from tests.app.serving.test_keys_apart import SEQUENCE, SUM
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from plugins.text.tests.folders import embedding_folder

ROW = [[1.0, 2.0, 3.0, 4.0]]
AFFINE = [3.0, 5.0, 7.0, 9.0]
TWICE = [7.0, 11.0, 15.0, 19.0]
MEMORY = 'memory = "100MiB"\n'
CHAIN = """
[[ensemble.step]]
model = "affine"
outputs = { output = "between" }
[[ensemble.step]]
model = "affine"
inputs = { input = "between" }
"""
KEYS = f"""
[[key]]
name = "me"
sha256 = "{digest_of(b"secret").hex()}"
models = ["*"]
groups = ["infer", "metadata", "manage", "metrics", "pages"]
"""

#: Takes a file.
READER = """
class Reader:
    inputs = {"file": "BYTES[1]"}
    outputs = {"bytes": "INT64[1]", "start": "BYTES[1]"}
    def __call__(self, file):
        return {"bytes": [len(file[0])], "start": [file[0][:4]]}
"""
FILE_CHAIN = """
[[ensemble.step]]
model = "reader"
"""
FILE = b"GIF8" + bytes(range(256)) * 8

#: Gives its second response when a file is there.
GATE = """
import os, time

class Gate:
    inputs = {"path": "BYTES[1]"}
    outputs = {"i": "INT32[1]"}
    def __call__(self, path):
        yield {"i": [0]}
        while not os.path.exists(path[0]):
            time.sleep(0.01)
        yield {"i": [1]}
        yield {"i": [2]}
"""


@dataclass
class Front:
    """A server, and what its clients need to know."""

    gateway: ServedGateway
    kind: str
    authority: Path
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        return {
            "POPGATE_URL": self.gateway.url,
            "POPGATE_KEY": "secret",
            "SSL_CERT_FILE": str(self.authority),
        }

    @property
    def verify(self) -> Any:
        return ssl.create_default_context(cafile=str(self.authority))

    def connect(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.gateway.url, timeout=WAIT, trust_env=False,
            verify=self.verify,
            headers={"x-api-key": "secret"},
        )  # fmt: skip

    def post(self, path: str, **document: Any) -> httpx.Response:
        with self.connect() as client:
            return client.post(path, json=document)

    def get(self, path: str, **headers: str) -> httpx.Response:
        with self.connect() as client:
            return client.get(path, headers=headers)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*POPGATE, *arguments], cwd=ROOT, env={**os.environ, **self.variables},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=["keys", "tls", "workers", "memory"])
def front(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    root = folder / "models"
    root.mkdir()
    add(root, "affine", config=MEMORY)
    add(root, "other", config=MEMORY)
    add(root, "slow", models.slow, config=MEMORY + "max_queue_size = 1\n")
    write(root, "count", COUNT, MEMORY)
    write(root, "sum", SUM, MEMORY + SEQUENCE)
    (root / "chain").mkdir()
    (root / "chain" / "config.toml").write_text(CHAIN)
    write(root, "reader", READER, MEMORY)
    (root / "file_chain").mkdir()
    (root / "file_chain" / "config.toml").write_text(FILE_CHAIN)
    embedding_folder(root / "unit")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    (folder / "keys.toml").write_text(KEYS)
    (folder / "keys.toml").chmod(0o600)
    kind = str(request.param)
    options = {
        "keys": ["--keys", f"{folder}/keys.toml"],
        "tls": ["--tls-cert", f"{folder}/server.pem"],
        "workers": ["--workers", "2"],
        "memory": ["--lazy", "--model-memory", "300MiB"],
    }[kind]
    if kind != "keys":
        options += ["--trust-loopback"]
    options += ["--allow-python", "--allow-shared-memory", "--run-timeout", "0"]
    options += ["--cache-dir", f"{folder}/cache"]
    with ServedGateway(root, *options) as gateway:
        found = Front(gateway, kind, folder / "authority.pem", folder)
        until(lambda: found.get("/v1/health/ready").status_code == 200)
        yield found


def outputs(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return {out["name"]: out["data"] for out in response.json()["outputs"]}


def infer(front: Front, model: str, **inputs: Any) -> dict[str, Any]:
    return outputs(front.post(f"/v1/models/{model}/infer", inputs=inputs))


def test_python_models_and_ensembles(front: Front) -> None:
    assert infer(front, "count", n=[1], text=["a"]) == {"i": [0], "word": ["a"]}
    assert infer(front, "chain", input=ROW) == {"output": TWICE}
    # An ensemble leaves with its members, and comes with them.
    assert infer(front, "other", input=ROW) == {"output": AFFINE}
    assert infer(front, "chain", input=ROW) == {"output": TWICE}


def test_sequences(front: Front) -> None:
    def step(x: int, flags: str = "") -> int:
        flag = {"sequence_start": "s" in flags, "sequence_end": "e" in flags}
        parameters = {"sequence_id": 42, **flag}
        path = "/v1/models/sum/infer"
        answer = front.post(path, inputs={"x": [x]}, parameters=parameters)
        return int(outputs(answer)["y"][0])

    assert [step(1, "s"), step(2), step(3, "e")] == [1, 3, 6]


def test_streams(front: Front) -> None:
    body = {"n": 5, "text": "a"}
    path = "/v2/models/count/generate_stream"
    with front.connect() as client, client.stream("POST", path, json=body) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert [json.loads(line[6:])["i"] for line in lines] == list(range(5))


def test_a_client_that_leaves_its_stream(front: Front) -> None:
    def ended() -> int:
        return sum("closed hang" in line for line in front.gateway.lines)

    before, body = ended(), {"n": 1, "text": "hang"}
    path = "/v2/models/count/generate_stream"
    with front.connect() as client, pytest.raises(httpx.ReadTimeout):
        client.post(path, json=body, timeout=0.5)
    until(lambda: ended() == before + 1)


def test_a_queue_that_is_full_and_a_deadline(front: Front) -> None:
    path = "/v1/models/slow/infer"
    work = {"inputs": {"count": FOR_EVER}}
    with front.connect() as client:
        late = client.post(path, json={**work, "parameters": {"timeout": 200_000}})
        assert late.status_code == 504, late.text
        # Its place in the queue is free once the device has ended its run.
        short = {"inputs": {"count": 1}}
        until(lambda: client.post(path, json=short).status_code == 200)

    async def crowd() -> list[httpx.Response]:
        body = {**work, "parameters": {"timeout": 3_000_000}}
        async with httpx.AsyncClient(
            base_url=front.gateway.url, timeout=WAIT, trust_env=False,
            verify=front.verify,
            headers={"x-api-key": "secret"},
        ) as client:  # fmt: skip
            asked = [client.post(path, json=body) for _ in range(12)]
            return list(await asyncio.gather(*asked))

    answers = asyncio.run(crowd())
    codes = {answer.status_code for answer in answers}
    assert codes == {429, 504}, [answer.text for answer in answers]
    for answer in answers:
        assert answer.status_code != 429 or "retry-after" in answer.headers


def test_shared_memory(front: Front) -> None:
    name = f"popgate-pairs-{os.getpid()}"
    segment = Path("/dev/shm") / name
    segment.write_bytes(np.array(ROW, np.float32).tobytes())
    region = "/v2/systemsharedmemory/region/pairs"
    place = {"shared_memory_region": "pairs", "shared_memory_byte_size": 16}
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 4], "parameters": place}
    try:
        done = front.post(f"{region}/register", key=name, offset=0, byte_size=16)
        assert done.status_code == 200, done.text
        for model, expected in (("affine", AFFINE), ("chain", TWICE)):
            answer = front.post(f"/v2/models/{model}/infer", inputs=[tensor])
            assert outputs(answer) == {"output": expected}
        assert front.post(f"{region}/unregister").status_code == 200
    finally:
        segment.unlink()


def test_encodings(front: Front) -> None:
    sent = {"inputs": {"input": ROW}}
    with front.connect() as client:
        packed = client.post(
            "/v1/models/affine/infer",
            content=msgpack.packb(sent),
            headers={
                "content-type": "application/msgpack",
                "accept": "application/json",
            },
        )
        assert outputs(packed) == {"output": AFFINE}
    for encoding in ("json", "msgpack", "binary", "npy"):
        shown = front.run(
            "infer", "affine", "-i", f"input={ROW}", "--encoding", encoding
        )
        assert "9" in shown


def test_protocols(front: Front) -> None:
    predicted = front.post("/v1/models/affine:predict", instances=ROW)
    assert predicted.json() == {"predictions": [AFFINE]}
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 4], "data": ROW}
    answer = front.post("/v2/models/affine/infer", inputs=[tensor])
    assert outputs(answer) == {"output": AFFINE}
    made = front.post("/v2/models/count/generate", n=1, text="a")
    assert made.json()["i"] == 0, made.text


@pytest.mark.parametrize("model", ["reader", "file_chain"])
def test_files_and_forms(front: Front, model: str) -> None:
    path, expected = (
        f"/v1/models/{model}/infer",
        {"bytes": [len(FILE)], "start": ["GIF8"]},
    )
    with front.connect() as client:
        for answer in (
            client.post(path, content=FILE, headers={"content-type": "image/gif"}),
            client.post(path, content=FILE),
            client.post(path, files={"file": ("a.gif", FILE, "image/gif")}),
        ):
            assert outputs(answer) == expected
    key: Any = {"api_key": "secret", "verify": front.verify}
    with Client(front.gateway.url, **key) as ours:
        assert ours.infer(model, FILE)["bytes"].tolist() == [len(FILE)]


def test_a_form_asks_any_model(front: Front) -> None:
    """A sequence, a stream and a model of texts, whose inputs are parts of a form."""
    flags = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    stream = {"accept": "text/event-stream"}
    with front.connect() as client:
        form: Any = {"x": (None, "5"), "parameters": (None, json.dumps(flags))}
        answer = client.post("/v1/models/sum/infer", files=form)
        assert outputs(answer)["y"] == [5]
        form = {"n": (None, "3"), "text": (None, "a")}
        found = client.post("/v1/models/count/infer", files=form, headers=stream)
        assert found.status_code == 200, found.text
        assert found.text.count("data: ") == 3
        said = {"content-type": "text/plain"}
        answer = client.post("/v1/models/unit/infer", content=b"the cat", headers=said)
        (vector,) = outputs(answer).values()
        assert len(vector) > 1


def test_invocations(front: Front) -> None:
    for model, row in (("affine", AFFINE), ("chain", TWICE)):
        path = f"/v1/models/{model}/invocations"
        for body in ({"instances": ROW}, {"dataframe_split": {"data": ROW}}):
            answer = front.post(path, **body)
            assert answer.json() == {"predictions": [row]}, answer.text
    flags = {"sequence_id": 8, "sequence_start": True, "sequence_end": True}
    answer = front.post("/v1/models/sum/invocations", inputs={"x": [5]}, params=flags)
    assert answer.json() == {"predictions": [5]}, answer.text
    inputs = {"n": [2], "text": ["a"]}
    answer = front.post("/v1/models/count/invocations", inputs=inputs)
    assert "must return exactly 1 response" in answer.json()["error"]
    with front.connect() as client:
        answer = client.post("/v1/models/reader/invocations", content=b"GIF8")
    assert answer.status_code == 400
    assert "expected CSV, or a JSON object" in answer.json()["error"]


def test_every_error_names_its_entry(front: Front) -> None:
    """Whichever route refuses: the address leads to an entry of the page."""
    page = (ROOT / "docs/reference/errors.md").read_text()
    infer_path, image = "/v1/models/affine/infer", {"content-type": "image/gif"}
    with front.connect() as client:
        for status, answer in (
            (415, client.post(infer_path, content=FILE, headers=image)),
            (404, client.post("/v1/models/none/infer", content=FILE)),
            (400, client.post("/v1/models/affine/invocations", json={"a": 1})),
            (400, client.post("/v1/models/affine:predict", json={"instances": 1})),
            (400, client.post("/v2/models/count/generate", json={"n": "x"})),
            (400, client.post("/openai/v1/embeddings", json={"model": "unit"})),
            (404, client.get("/v1/nothing")),
            (405, client.delete("/v1/models")),
            (404, client.post("/v2/repository/models/none/load")),
        ):
            assert answer.status_code == status, answer.text
            found = answer.json()
            if "/openai/" in str(answer.url):  # has the form of OpenAI's errors
                code = found["error"]["code"]
            else:
                code = found["code"]
                assert found["help"] == f"docs/reference/errors.md#{code}"
            assert f'<a id="{code}"></a>' in page, answer.text


def test_text_models(front: Front) -> None:
    answer = front.post("/openai/v1/embeddings", model="unit", input=["the cat"])
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"][0]["embedding"]) > 1


def test_models_come_and_go(front: Front) -> None:
    assert "affine" in front.run("models")
    assert front.run("load", "other") == "other version 1: ready\n"
    asked: tuple[tuple[str, Any], ...] = (
        ("v1/models/other/infer", {"inputs": {"input": ROW}}),
        ("v1/models/other/invocations", {"instances": ROW}),
        ("v1/models/other:predict", {"instances": ROW}),
        ("v2/models/other/generate", {"input": ROW}),
        ("v2/models/other/generate_stream", {"input": ROW}),
    )

    def statuses() -> set[int]:
        return {front.post(f"/{path}", **body).status_code for path, body in asked}

    assert infer(front, "other", input=ROW) == {"output": AFFINE}
    assert statuses() == {200}
    front.run("unload", "other")
    assert statuses() == {503}
    front.run("load", "other")
    assert statuses() == {200}


def test_clients(front: Front) -> None:
    key: Any = {"api_key": "secret", "verify": front.verify}

    async def ask() -> Any:
        async with AsyncClient(front.gateway.url, **key) as client:
            return await client.infer("affine", input=np.array(ROW, np.float32))

    with Client(front.gateway.url, **key) as client:
        found = client.infer("affine", input=np.array(ROW, np.float32))
        assert found["output"].ravel().tolist() == AFFINE
        assert [int(each["i"][0]) for each in client.stream("count", n=[3], text=["a"])]
        with client.sequence("sum", sequence_id=7) as sequence:
            assert int(sequence(x=[1])["y"][0]) == 1
    assert asyncio.run(ask())["output"].ravel().tolist() == AFFINE


#: Runs each argument as a program of its own; Python starts once for all of them.
PROGRAMS = """
import sys
for program in sys.argv[1:]:
    exec(compile(program, program[:200], "exec"), {"__name__": "__main__"})
"""


def test_the_program_of_a_model(front: Front) -> None:
    programs = []
    for model in ("affine", "count", "sum", "chain", "unit"):
        program = front.get(f"/v1/models/{model}/client.py")
        assert program.status_code == 200, program.text
        programs.append(program.text)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, *programs], cwd=ROOT, check=False,
        env={"PYTHONPATH": str(ROOT), **front.variables}, capture_output=True,
        text=True, timeout=WAIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_batch_and_perf(front: Front) -> None:
    rows = front.folder / "rows.jsonl"
    rows.write_text("[1, 2, 3, 4]\n[5, 6, 7, 8]\n")
    target = front.folder / "out.jsonl"
    for model in ("affine", "chain"):
        front.run("batch", model, "-i", str(rows), "-o", str(target))
        assert len(target.read_text().splitlines()) == 2
        target.unlink()
    quick = ("--seconds", "0.1", "--warm-up", "0", "--within", "1000")
    for model in ("affine", "chain"):
        front.run("perf", model, *quick)


def test_operators_see_it(front: Front) -> None:
    answer = front.post("/v1/models/chain/infer", inputs={"input": ROW})
    assert outputs(answer) == {"output": TWICE}
    wrong = front.post("/v1/models/affine/infer", inputs={"input": [1]})
    assert wrong.status_code == 400
    text = front.get("/metrics").text
    assert 'nv_inference_request_success{model="chain"' in text
    shown = front.get("/v1/requests?limit=200").json()
    ids = {one["id"] for one in shown["failed"]}
    assert wrong.headers["x-request-id"] in ids
    assert front.gateway.wait_line(wrong.headers["x-request-id"])
    assert "affine" in front.run("top", "--once", "--interval", "0.1")
    assert "/v1/models/chain/infer" in front.get("/openapi.json").json()["paths"]
    assert "<html" in front.get("/", accept="text/html").text


def test_text_models_are_asked_by_all_that_ask(front: Front) -> None:
    details = front.get("/v2/models/unit").json()
    (given,) = details["inputs"]
    assert given["datatype"] == "BYTES"
    one = json.dumps(["the cat"])
    assert front.run("infer", "unit", "-i", f"{given['name']}={one}")
    rows = front.folder / "texts.jsonl"
    rows.write_text('["the cat"]\n["a dog"]\n')
    target = front.folder / "vectors.jsonl"
    front.run("batch", "unit", "-i", str(rows), "-o", str(target))
    assert len(target.read_text().splitlines()) == 2
    quick = ("--seconds", "0.1", "--warm-up", "0", "--within", "1000")
    front.run("perf", "unit", *quick, "-i", f"{given['name']}={one}")
    with Client(front.gateway.url, api_key="secret", verify=front.verify) as client:
        (vectors,) = client.infer("unit", ["the cat"]).values()
    assert vectors.shape[0] == 1
    assert 'nv_inference_request_success{model="unit"' in front.get("/metrics").text
    shown = front.get("/v1/requests?limit=200").json()
    assert "unit" in {one["model"] for one in shown["answered"]}
    assert "unit" in front.run("models")
    assert "unit" in front.run("top", "--once", "--interval", "0.1")
    assert "ready" in front.run("load", "unit")


def test_models_of_all_kinds_are_shown_and_managed(front: Front) -> None:
    """Those with state, of several responses and of several models as any other."""
    test_sequences(front)
    test_streams(front)
    test_python_models_and_ensembles(front)
    metrics = front.get("/metrics").text
    document = front.get("/openapi.json").json()["paths"]
    listed = front.run("models")
    shown = front.run("top", "--once", "--interval", "0.1")
    for name in ("sum", "count", "chain"):
        assert f'nv_inference_request_success{{model="{name}"' in metrics
        if front.kind != "memory":  # where models have come and gone meanwhile
            assert f"/v1/models/{name}/infer" in document
        assert name in listed
        assert name in shown
        front.run("unload", name)
        assert front.get(f"/v2/models/{name}/ready").status_code != 200
        front.run("load", name)
    test_sequences(front)
    test_streams(front)
    with Client(front.gateway.url, api_key="secret", verify=front.verify) as client:
        found = client.infer("chain", input=np.array(ROW, np.float32))
    assert found["output"].ravel().tolist() == TWICE
    shown = front.run("infer", "chain", "-i", f"input={ROW}")
    assert "19" in shown


def test_what_runs_is_answered_when_the_server_ends(tmp_path: Path) -> None:
    """A stream of a model in Python ends whole, and so do many texts, most of which the
    device has not got yet. An open sequence holds nothing up.
    """
    root = tmp_path / "models"
    root.mkdir()
    write(root, "gate", GATE)
    write(root, "sum", SUM, SEQUENCE)
    embedding_folder(root / "unit")
    gate = tmp_path / "gate"
    options = ("--allow-python", "--cache-dir", str(tmp_path / "cache"))
    texts = {"model": "unit", "input": ["the cat sits"] * 2000}
    with ServedGateway(root, *options) as gateway, ThreadPoolExecutor(1) as pool:
        gateway.wait_ready()
        start = {"sequence_id": 1, "sequence_start": True}
        path = "/v1/models/sum/infer"
        begun = {"inputs": {"x": [1]}, "parameters": start}
        assert gateway.client.post(path, json=begun).status_code == 200
        body = {"path": str(gate)}
        stream = gateway.client.stream(
            "POST", "/v2/models/gate/generate_stream", json=body
        )
        with stream as answer:
            lines = answer.iter_lines()
            first = next(line for line in lines if line.startswith("data: "))
            (device,) = gateway.client.get("/v1/devices").json()["devices"][:1]
            os.kill(device["pid"], signal.SIGSTOP)
            embedded = pool.submit(
                httpx.post, f"{gateway.url}/openai/v1/embeddings", json=texts,
                timeout=WAIT, trust_env=False,
            )  # fmt: skip
            busy = 'popgate_requests_in_flight{model="unit",version="1"} 1'
            until(lambda: busy in gateway.client.get("/metrics").text)
            gateway.send(signal.SIGTERM)
            gateway.wait_line("shutting down")
            os.kill(device["pid"], signal.SIGCONT)
            gate.touch()
            rest = [line for line in lines if line.startswith("data: ")]
            assert len(embedded.result().json()["data"]) == 2000
        events = [json.loads(line[6:]) for line in (first, *rest)]
        assert [event.get("i", event) for event in events] == [0, 1, 2], gateway.output
        assert gateway.join() == 0
