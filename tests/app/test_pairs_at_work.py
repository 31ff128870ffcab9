"""What operators see of each kind of request, and kinds of requests together.

Covers nothing of its own: the cells of tests/matrix name these tests for many pairs.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
from onnx import save_model

from plugins.remote.tests.test_hugging_face import push
from plugins.remote.tests.web import serving
from plugins.workers.tests.conftest import prefix
from tests.app.api import browser
from tests.app.api.browser import Browser
from tests.app.config.test_ragged_config import SECTION
from tests.app.python_sources import COUNT, SEQUENCE, SUM, write
from tests.app.served import ServedGateway, add, run_popgate
from tests.engine import models
from tests.engine.worker.test_ragged import network
from tests.support import FOR_EVER, WAIT, until

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from app.config.keys import digest_of
from plugins.text.tests.folders import embedding_folder

ROW = [[1.0, 2.0, 3.0, 4.0]]
AFFINE = [3.0, 5.0, 7.0, 9.0]
TWICE = [7.0, 11.0, 15.0, 19.0]
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
groups = ["infer", "metadata"]
"""
EVENTS = {"accept": "text/event-stream"}


in_chromium = pytest.mark.skipif(
    browser.COMMAND is None, reason="there is no Chromium here"
)


def fill(root: Path) -> None:
    add(root, "affine")
    add(root, "slow", models.slow, config="max_queue_size = 1\n")
    write(root, "count", COUNT)
    write(root, "sum", SUM, SEQUENCE)
    (root / "chain").mkdir()
    (root / "chain" / "config.toml").write_text(CHAIN)
    embedding_folder(root / "unit")
    (root / "masked" / "1").mkdir(parents=True)
    save_model(network(masked=True), root / "masked" / "1" / "model.onnx")
    (root / "masked" / "config.toml").write_text(SECTION)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    fill(folder)
    return folder


@pytest.fixture(scope="module")
def served(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    """Models on demand, each request traced."""
    folder = tmp_path_factory.mktemp("served")
    options = ["--lazy", "--model-memory", "1GiB", "--allow-python"]
    options += ["--allow-shared-memory", "--run-timeout", "0", "--access-log", "all"]
    options += ["--trace-file", f"{folder}/trace", "--trace-level", "TIMESTAMPS"]
    options += ["--trace-rate", "1", "--cache-dir", f"{folder}/cache"]
    with ServedGateway(root, *options) as gateway:
        gateway.wait_ready()
        yield gateway


def ask(
    served: ServedGateway, path: str, request_id: str, status: int = 200, **body: Any
) -> Any:
    headers = {"x-request-id": request_id}
    answer = served.client.post(path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


@contextmanager
def region(served: ServedGateway, content: bytes) -> Iterator[dict[str, Any]]:
    """The parameters of a tensor whose bytes are in shared memory."""
    name = f"popgate-at-work-{os.getpid()}"
    segment = Path("/dev/shm") / name
    segment.write_bytes(content)
    path, size = "/v2/systemsharedmemory/region/here", len(content)
    try:
        document = {"key": name, "offset": 0, "byte_size": size}
        answer = served.client.post(f"{path}/register", json=document)
        assert answer.status_code == 200, answer.text
        yield {"shared_memory_region": "here", "shared_memory_byte_size": size}
        assert served.client.post(f"{path}/unregister").status_code == 200
    finally:
        segment.unlink()


def first(answer: Any) -> Any:
    return answer["outputs"][0]["data"]


def ragged(length: int) -> dict[str, Any]:
    return {"ids": [list(range(1, length + 1))], "mask": [[1] * length]}


def every_kind(served: ServedGateway, prefix: str) -> dict[str, str]:
    """Asks by every protocol and for every kind; the model of each request's id."""
    row = {"inputs": {"input": ROW}}
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 4]}
    start = {"sequence_id": 5, "sequence_start": True, "sequence_end": True}
    done = {}

    def one(name: str, owner: str, path: str, **body: Any) -> Any:
        done[f"{prefix}-{name}"] = owner
        return ask(served, path, f"{prefix}-{name}", **body)

    assert first(one("chain", "chain", "/v1/models/chain/infer", **row)) == TWICE
    one("sum", "sum", "/v2/models/sum/infer", inputs={"x": [1]}, parameters=start)
    one("predict", "affine", "/v1/models/affine:predict", instances=ROW)
    one("generate", "count", "/v2/models/count/generate", n=1, text="a")
    one("v2", "affine", "/v2/models/affine/infer", inputs=[{**tensor, "data": ROW}])
    one("embed", "unit", "/openai/v1/embeddings", model="unit", input="the cat")
    one("ragged", "masked", "/v1/models/masked/infer", inputs=ragged(5))
    with region(served, np.array(ROW, np.float32).tobytes()) as place:
        given = [{**tensor, "parameters": place}]
        answer = one("region", "affine", "/v2/models/affine/infer", inputs=given)
        assert first(answer) == AFFINE
    events = served.client.post(
        "/v2/models/count/infer",
        json={"inputs": {"n": [3], "text": ["a"]}},
        headers={**EVENTS, "x-request-id": f"{prefix}-stream"},
    )
    assert events.text.count("data: ") == 3, events.text
    done[f"{prefix}-stream"] = "count"
    for encoding, content in (
        ("x-msgpack", msgpack.packb(row)),
        ("octet-stream", np.array(ROW, np.float32).tobytes()),
    ):
        packed = served.client.post(
            "/v1/models/affine/infer",
            content=content,
            headers={
                "content-type": f"application/{encoding}",
                "x-request-id": f"{prefix}-{encoding}",
                **(
                    {"inference-header-content-length": "0"}
                    if "octet" in encoding
                    else {}
                ),
            },
        )
        assert packed.status_code == 200, packed.text
        done[f"{prefix}-{encoding}"] = "affine"
    return done


def test_traces(served: ServedGateway) -> None:
    asked = every_kind(served, "trace")
    late = {"inputs": {"count": FOR_EVER}, "parameters": {"timeout": 100_000}}
    ask(served, "/v1/models/slow/infer", "trace-late", 504, **late)
    setting = served.client.get("/v2/trace/setting").json()
    entries = json.loads(Path(setting["trace_file"]).read_text())
    traced = {e["request_id"]: e["model_name"] for e in entries if "request_id" in e}
    assert traced.items() >= asked.items()
    # A trace is of a request that was answered.
    assert "trace-late" not in traced


def test_logs(served: ServedGateway) -> None:
    asked = every_kind(served, "log")
    for request_id, model in asked.items():
        line = served.wait_line(f"id={request_id} ")
        assert " 200 " in line
        assert f"model={model}" in line
        answer = served.client.get(f"/v1/requests/{request_id}")
        assert answer.status_code == 200, request_id
        assert (answer.json()["model"], answer.json()["status"]) == (model, 200)


def counted(served: ServedGateway) -> Counter[str]:
    """The successful requests of each model."""
    found = re.findall(
        r'^nv_inference_request_success\{model="(\w+)".* ([\d.]+)$',
        served.client.get("/metrics").text,
        re.MULTILINE,
    )
    return Counter({name: int(float(count)) for name, count in found})


def test_metrics(served: ServedGateway) -> None:
    every_kind(served, "before")
    before = counted(served)
    asked = Counter(every_kind(served, "counted").values())
    asked["affine"] += 2 * asked["chain"]  # the steps of the ensemble
    assert counted(served) - before == asked


def test_sequences_in_every_encoding(served: ServedGateway) -> None:
    path = "/v2/models/sum/infer"
    tensor = {"name": "x", "datatype": "FP32", "shape": [1]}
    ends = {"sequence_id": 9, "sequence_end": True}

    def total(answer: httpx.Response) -> float:
        assert answer.status_code == 200, answer.text
        return float(first(answer.json())[0])

    start = {"sequence_id": 9, "sequence_start": True}
    with region(served, np.array([1], np.float32).tobytes()) as place:
        given = {"inputs": [{**tensor, "parameters": place}], "parameters": start}
        assert total(served.client.post(path, json=given)) == 1
    content = np.array([2], np.float32).tobytes()
    sized = {**tensor, "parameters": {"binary_data_size": len(content)}}
    head = json.dumps({"inputs": [sized], "parameters": {"sequence_id": 9}}).encode()
    length = {"inference-header-content-length": str(len(head))}
    assert total(served.client.post(path, content=head + content, headers=length)) == 3
    document = {"inputs": {"x": [3]}, "parameters": {"sequence_id": 9}}
    packed = {"content-type": "application/msgpack", "accept": "application/json"}
    body = msgpack.packb(document)
    assert total(served.client.post(path, content=body, headers=packed)) == 6
    made = served.client.post("/v2/models/sum/generate", json={"x": 4, **ends})
    assert made.status_code == 200, made.text
    assert made.json()["y"] == 10


def in_flight(served: ServedGateway) -> int:
    text = served.client.get("/metrics").text
    found = re.search(r'popgate_requests_in_flight\{model="slow",.*\} (\d+)', text)
    return int(found[1]) if found else 0


def test_a_region_of_a_client_that_leaves_is_free(served: ServedGateway) -> None:
    with region(served, np.array([FOR_EVER], np.int64).tobytes()) as place:
        tensor: dict[str, Any] = {"name": "count", "datatype": "INT64", "shape": []}
        body = json.dumps({"inputs": [{**tensor, "parameters": place}]}).encode()
        head = b"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), WAIT) as connection:
            connection.sendall(head + body)
            until(lambda: in_flight(served) == 1)
        until(lambda: in_flight(served) == 0)
    with region(served, np.array(ROW, np.float32).tobytes()) as place:
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, 4]}
        given = [{**tensor, "parameters": place}]
        answer = ask(served, "/v2/models/affine/infer", "freed", inputs=given)
        assert first(answer) == AFFINE


def test_a_client_that_leaves_its_texts_is_noticed(served: ServedGateway) -> None:
    """The rest of them does not run: the route of a plugin gives its requests up."""

    def cancelled() -> int:
        name = 'nv_inference_request_failure{model="unit",reason="CANCELED"'
        text = served.client.get("/metrics").text
        found = re.search(rf"^{re.escape(name)}.* (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    ask(served, "/openai/v1/embeddings", "unit-is-there", model="unit", input="the cat")
    before = cancelled()
    texts = ["the cat sat on the mat " * 20] * 1000
    body = json.dumps({"model": "unit", "input": texts}).encode()
    head = b"POST /openai/v1/embeddings HTTP/1.1\r\nhost: x\r\n"
    head += b"content-length: %d\r\n\r\n" % len(body)
    port = int(served.url.rpartition(":")[2])

    def leave() -> bool:
        with socket.create_connection(("127.0.0.1", port), WAIT) as connection:
            connection.sendall(head + body)
            text = 'popgate_requests_in_flight{model="unit",version="1"} 0'
            until(lambda: text not in served.client.get("/metrics").text)
        until(lambda: text in served.client.get("/metrics").text)
        return cancelled() > before

    until(leave)  # it may have been answered just before


def test_an_answer_goes_to_its_region_while_its_model_is_swapped(
    served: ServedGateway, root: Path
) -> None:
    config, size = root / "slow" / "config.toml", 4 * 128 * 128
    before = config.read_text()
    with region(served, bytes(size)) as place, ThreadPoolExecutor(2) as pool:
        segment = Path("/dev/shm") / f"popgate-at-work-{os.getpid()}"
        wanted = [{"name": "output", "parameters": place}]
        body: dict[str, Any] = {"inputs": {"count": 20_000}, "outputs": wanted}
        path = "/v1/models/slow/infer"
        asked = pool.submit(lambda: ask(served, path, "placed", **body))
        until(lambda: in_flight(served) == 1)
        config.write_text("max_queue_size = 2\n")
        try:
            loaded = pool.submit(run_popgate, "load", "slow", "--url", served.url)
            answer = asked.result()
            assert loaded.result().returncode == 0
        finally:
            config.write_text(before)
            assert run_popgate("load", "slow", "--url", served.url).returncode == 0
        assert "data" not in answer["outputs"][0]
        assert np.frombuffer(segment.read_bytes(), np.float32).any()


def test_an_open_sequence_ends_with_its_model(
    served: ServedGateway, root: Path
) -> None:
    """A model that is loaded anew has no state of the one before."""
    path, config = "/v2/models/sum/infer", root / "sum" / "config.toml"
    start = {"sequence_id": 77, "sequence_start": True}
    opened = ask(served, path, "opened", inputs={"x": [1]}, parameters=start)
    assert first(opened) == [1]
    before = config.read_text()
    try:
        config.write_text("max_queue_size = 7\n" + before)
        done = run_popgate("load", "sum", "--url", served.url)
        assert done.returncode == 0, done.stderr
        goes_on = {"sequence_id": 77}
        body = {"inputs": {"x": [2]}, "parameters": goes_on}
        refused = ask(served, path, "goes-on", 400, **body)
        assert "START" in refused["error"], refused
        again = ask(served, path, "again", inputs={"x": [5]}, parameters=start)
        assert first(again) == [5]
    finally:
        config.write_text(before)
        assert run_popgate("load", "sum", "--url", served.url).returncode == 0


def test_the_api_shows_the_model_that_is_there_now(
    served: ServedGateway, root: Path
) -> None:
    url = "--url", served.url
    for width in (4, 8):
        models.affine(root / "turned.popef", width=width)
        assert run_popgate("load", "turned", *url).returncode == 0
        paths = served.client.get("/openapi.json").json()["paths"]
        shown = paths["/v1/models/turned/infer"]["post"]["summary"]
        assert f"input: FP32[-1,{width}]" in shown
    assert run_popgate("unload", "turned", *url).returncode == 0


def test_a_model_that_is_loaded_anew_is_traced_as_before(served: ServedGateway) -> None:
    path, load = "/v2/models/affine/trace/setting", "/v1/models/affine/load"
    served.client.post(path, json={"trace_count": 5}).raise_for_status()
    try:
        for left in (4, 3):
            served.client.post(load).raise_for_status()
            infer = "/v1/models/affine/infer"
            ask(served, infer, f"anew-{left}", inputs={"input": ROW})
            setting = served.client.get(path).json()
            assert setting["trace_count"] == str(left)
    finally:
        served.client.post(path, json={"trace_count": None}).raise_for_status()


def test_models_in_python_read_shared_memory(served: ServedGateway) -> None:
    path = "/v2/models/count/infer"
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    with region(served, np.array([2], np.int32).tobytes()) as place:
        number = {"name": "n", "datatype": "INT32", "shape": [1], "parameters": place}
        body = {"inputs": [number, text]}
        answer = served.client.post(path, json=body, headers=EVENTS)
    assert answer.text.count("data: ") == 2, answer.text


def test_ensembles_by_every_protocol(served: ServedGateway) -> None:
    predicted = ask(served, "/v1/models/chain:predict", "c1", instances=ROW)
    assert predicted == {"predictions": [TWICE]}
    made = ask(served, "/v2/models/chain/generate", "c2", input=ROW)
    assert made["output"] == TWICE or made["output"] == [TWICE]
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 4], "data": ROW}
    answer = ask(served, "/v2/models/chain/infer", "c3", inputs=[tensor])
    assert first(answer) == TWICE


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("count", "n=1"),
        ("chain", ""),
        ("sum", ""),
        ("unit", 'text=["the cat"]'),
        ("masked", "ids=[[1, 2, 3]]"),
        ("slow", "count=1"),  # with a queue of one request
    ],
)
def test_tune(served: ServedGateway, name: str, given: str) -> None:
    quick = ["--p99", "30s", "--seconds", "0.05", "--time", "0.2", "--url", served.url]
    inputs = ["-i", given] if given else []
    done = run_popgate("tune", name, *quick, *inputs)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stderr.splitlines()[1:-1]]
    assert float(rows[0][-3]) > 0
    # The model is left as its folder says.
    details = served.client.get(f"/v1/models/{name}").json()
    assert (details["state"], details["instances"]) == ("READY", 1)


def test_rows_of_different_length_are_shown_and_managed(
    served: ServedGateway, root: Path
) -> None:
    path, body = "/v1/models/masked/infer", {"inputs": ragged(4)}
    assert served.client.post(path, json=body).status_code == 200
    url = "--url", served.url
    assert "masked" in run_popgate("top", "--once", "--interval", "0.1", *url).stdout
    assert "masked" in run_popgate("models", *url).stdout

    def reason() -> str:
        found: str = served.client.get("/v1/models/masked").json()["batching_reason"]
        return found

    assert "rows of different lengths run together" in reason()
    config = root / "masked" / "config.toml"
    config.write_text(SECTION + "enabled = false\n")
    try:
        done = run_popgate("load", "masked", *url)
        assert done.returncode == 0, done.stderr
        assert served.client.post(path, json=body).status_code == 200
        assert "rows of different lengths run together" not in reason()
    finally:
        config.write_text(SECTION)
        assert run_popgate("load", "masked", *url).returncode == 0
    assert "rows of different lengths run together" in reason()


def test_an_ensemble_has_a_step_with_rows_of_any_length(
    served: ServedGateway, root: Path
) -> None:
    (root / "mean").mkdir()
    (root / "mean" / "config.toml").write_text(STEP.format("masked", "mean"))
    assert served.client.post("/v1/models/mean/load").status_code == 200
    for length in (3, 9):
        alone = served.infer("masked", **ragged(length))["mean"]
        assert served.infer("mean", **ragged(length)) == {"mean": alone}


@in_chromium
@pytest.mark.parametrize(
    ("name", "output"), [("chain", "output"), ("count", "word"), ("sum", "y")]
)
def test_the_page_of_a_model(
    served: ServedGateway, tmp_path: Path, name: str, output: str
) -> None:
    assert served.client.get(f"/v2/models/{name}").status_code == 200  # it is loaded
    with Browser(tmp_path) as page:
        page.open(f"{served.url}/#/models/{name}")
        page.wait("document.querySelector('textarea')?.value.includes('inputs')")
        page.click(".run")
        page.wait_text(output, ".answer")
        assert not page.errors


#: An ensemble whose one step runs a model, and gives one of its outputs.
STEP = """
[ensemble]
outputs = ["{1}"]
[[ensemble.step]]
model = "{0}"
"""


def test_what_does_not_go_together(tmp_path: Path) -> None:
    """Is refused by the server, and by `popgate validate` in the same words."""
    root = tmp_path / "models"
    write(root, "sum", SUM, SEQUENCE)
    embedding_folder(root / "unit")
    embedding_folder(root / "of-sequences")
    (root / "of-sequences" / "config.toml").write_text(SEQUENCE)
    embedding_folder(root / "of-responses")
    responses = '[responses]\nstep = "step"\nmore = "more"\n'
    (root / "of-responses" / "config.toml").write_text(responses)
    for name, output in (("sum", "y"), ("unit", "embedding")):
        folder = root / f"step-{name}"
        folder.mkdir()
        (folder / "config.toml").write_text(STEP.format(name, output))
    (root / "ragged").mkdir()
    (root / "ragged" / "config.toml").write_text(STEP.format("sum", "y") + "[ragged]\n")
    place = "its requests use [sequence] or [responses], which an ensemble cannot run"
    converted = "a plugin converts its requests first"
    words = {
        "step-sum": f"step 1 (sum): {place}",
        "step-unit": f"step 1 (unit): {converted}",
        "of-sequences": "text can have neither [sequence] nor [responses]",
        "of-responses": "text can have neither [sequence] nor [responses]",
        "ragged": "an ensemble cannot have ragged",
    }
    cache = ["--cache-dir", str(tmp_path / "cache")]
    done = run_popgate("validate", root, "--allow-python", *cache)
    said = " ".join(done.stdout.split())
    with ServedGateway(root, "--allow-python", *cache) as gateway:
        gateway.wait_ready()
        for name, why in words.items():
            assert why in said, name
            answer = gateway.client.get(f"/v1/models/{name}").json()
            assert why in answer["reason"], name


@pytest.fixture(scope="module")
def guarded(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    """Two workers, models on demand, and keys."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys.toml").write_text(KEYS)
    (folder / "keys.toml").chmod(0o600)
    options = ["--lazy", "--model-memory", "1GiB", "--allow-python", "--workers", "2"]
    options += ["--cache-dir", f"{folder}/cache", "--keys", f"{folder}/keys.toml"]
    with ServedGateway(root, *options) as gateway:
        gateway.client.headers["x-api-key"] = "secret"
        gateway.wait_ready()
        yield gateway


def test_a_key_loads_a_model_by_asking_for_it(guarded: ServedGateway) -> None:
    def in_memory() -> bool:
        (version,) = guarded.client.get("/v1/models/affine").json()["versions"]
        return bool(version["in_memory"])

    assert not in_memory()
    path, row = "/v1/models/affine/infer", {"inputs": {"input": ROW}}
    wrong = guarded.client.post(path, json=row, headers={"x-api-key": "wrong"})
    assert wrong.status_code == 401
    assert not in_memory()
    assert guarded.infer("affine", input=ROW) == {"output": AFFINE}
    assert in_memory()


def test_rows_of_different_length_come_from_each_worker(guarded: ServedGateway) -> None:
    guarded.infer("masked", **ragged(3))  # which loads it

    def one(length: int) -> tuple[str, int]:
        with httpx.Client(trust_env=False, timeout=WAIT) as client:
            answer = client.post(
                f"{guarded.url}/v1/models/masked/infer",
                json={"inputs": ragged(length)}, headers={"x-api-key": "secret"},
            )  # fmt: skip
        assert answer.status_code == 200, answer.text
        shape = next(
            o["shape"] for o in answer.json()["outputs"] if o["name"] == "tokens"
        )
        assert shape == [1, length, 4]
        return prefix(answer), length

    answered: set[str] = set()

    def from_two() -> bool:
        with ThreadPoolExecutor(6) as pool:
            answered.update(who for who, _ in pool.map(one, range(2, 14)))
        return len(answered) > 1

    until(from_two)


def test_a_server_that_is_drained_shows_itself(root: Path, tmp_path: Path) -> None:
    """Requests that come all the same are answered, traced, and load their model."""
    options = ["--lazy", "--model-memory", "1GiB", "--allow-python", "--trust-loopback"]
    options += ["--trace-file", f"{tmp_path}/trace", "--trace-level", "TIMESTAMPS"]
    options += ["--trace-rate", "1", "--cache-dir", f"{tmp_path}/cache"]
    options += ["--run-timeout", "0", "--drain-grace", "0", "--allow-shared-memory"]
    with ServedGateway(root, *options) as gateway:
        gateway.wait_ready()
        url = "--url", gateway.url
        body = json.dumps({"inputs": {"count": FOR_EVER}}).encode()
        head = (
            "POST /v1/models/slow/infer HTTP/1.1\r\nhost: localhost\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        port = int(gateway.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), WAIT) as connection:
            connection.sendall(head.encode() + body)
            text = 'popgate_requests_in_flight{model="slow",version="1"} 1'
            until(lambda: text in gateway.client.get("/metrics").text)
            done = run_popgate("drain", gateway.url, "--timeout", "0")
            assert "1 in flight" in done.stderr, done.stderr + done.stdout
        # The client that left holds nothing up.
        assert run_popgate("drain", gateway.url).returncode == 0
        assert gateway.client.get("/v1/health/ready").status_code == 503
        shown = run_popgate("top", "--once", "--interval", "0.1", *url)
        assert "affine" in shown.stdout, shown.stderr
        html = gateway.client.get("/", headers={"accept": "text/html"})
        assert "<html" in html.text
        assert gateway.client.get("/openapi.json").status_code == 200
        assert "popgate_requests_in_flight" in gateway.client.get("/metrics").text
        ask(gateway, "/v1/models/masked/infer", "late", inputs=ragged(5))
        with region(gateway, np.array(ROW, np.float32).tobytes()) as place:
            tensor = {"name": "input", "datatype": "FP32", "shape": [1, 4]}
            given = [{**tensor, "parameters": place}]
            answer = ask(gateway, "/v2/models/affine/infer", "region", inputs=given)
            assert first(answer) == AFFINE
        assert gateway.infer("chain", input=ROW) == {"output": TWICE}
        shown = run_popgate("infer", "affine", "-i", f"input={ROW}", *url)
        assert "9" in shown.stdout, shown.stderr
        (tmp_path / "rows.jsonl").write_text("[1, 2, 3, 4]\n" * 9)
        files = "-i", tmp_path / "rows.jsonl", "-o", tmp_path / "out.jsonl"
        done = run_popgate("batch", "affine", *files, *url)
        assert done.returncode == 0, done.stderr
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 9
        entries = json.loads((tmp_path / "trace").read_text())
        assert "late" in {e.get("request_id") for e in entries}
        # Of the request that was given up there is no trace.
        assert "slow" not in {e.get("model_name") for e in entries}
        assert gateway.stop() == 0


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_sequence_of_a_model_in_python_from_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, "sum", SUM, SEQUENCE)
    with serving() as web:
        push(web, "c1", contents(tmp_path / "sum"))
        options = ["--model", "sum=hf://me/digits", "--allow-python"]
        options += ["--cache-dir", str(tmp_path / "cache")]
        variables = {"HF_ENDPOINT": f"{web.url}/", "HF_HOME": str(tmp_path / "hf")}
        with ServedGateway(None, *options, **variables) as gateway:
            gateway.wait_ready()
            for total in (3, 6):
                flags = {"sequence_id": 1, "sequence_start": total == 3}
                answer = ask(
                    gateway, "/v1/models/sum/infer", f"{total}",
                    inputs={"x": [3]}, parameters=flags,
                )  # fmt: skip
                assert first(answer) == [total]


def test_a_text_model_from_elsewhere_on_demand(tmp_path: Path) -> None:
    files = contents(embedding_folder(tmp_path / "made"))
    with serving() as web:
        push(web, "c1", files)
        options = ["--model", "unit=hf://me/digits", "--lazy", "--model-memory", "1GiB"]
        options += ["--cache-dir", str(tmp_path / "cache")]
        variables = {"HF_ENDPOINT": f"{web.url}/", "HF_HOME": str(tmp_path / "hf")}
        with ServedGateway(None, *options, **variables) as gateway:
            gateway.wait_ready()
            answer = gateway.client.post(
                "/openai/v1/embeddings", json={"model": "unit", "input": "the cat"}
            )
            assert answer.status_code == 200, answer.text + gateway.output
            url = "--url", gateway.url
            shown = run_popgate("top", "--once", "--interval", "0.1", *url)
            assert "unit" in shown.stdout
            took = gateway.wait_line("model unit: downloading 6 files")
            assert "from hf://me/digits" in took
