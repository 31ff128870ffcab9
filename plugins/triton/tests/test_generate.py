"""generate and generate_stream over HTTP, with a model that gives several responses.

Covers: plugins/triton/src/popgate_triton/generate_routes.py.
"""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import httpx
import pytest

from app.codec import ModelCodec
from app.codec.messages import Body
from app.errors import InvalidTensor
from app.spec import ModelSpec, TensorSpec
from popgate_triton.generate import decode_generate
from tests.app.served import ServedGateway
from tests.support import WAIT

MODEL = "/v2/models/mock_llm"
SSE = "text/event-stream; charset=utf-8"


def post(triton: ServedGateway, what: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, str) else json.dumps(body)
    return triton.client.post(f"{MODEL}/{what}", content=content)


def events(response: httpx.Response) -> list[Any]:
    """The documents of a response in events, whose form is checked."""
    assert response.headers["content-type"] == SSE
    assert response.text == "" or response.text.endswith("\n\n")
    blocks = response.text.split("\n\n")[:-1]
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def prompt(**more: Any) -> dict[str, Any]:
    return {"PROMPT": "hello world", "STREAM": True, **more}


def test_one_response(triton: ServedGateway) -> None:
    response = post(triton, "generate", prompt(STREAM=False, id="42"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "id": "42",
        "model_name": "mock_llm",
        "model_version": "1",
        "TEXT": "hello world",
    }
    assert "id" not in post(triton, "generate", prompt()).json()


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (prompt(), 1),
        (prompt(STREAM=False, REPETITION=5), 1),
        (prompt(REPETITION=3), 3),
        (prompt(parameters={"REPETITION": 3}), 3),
        (prompt(PROMPT=["hello world"], REPETITION=2), 2),
        (prompt(REPETITION=0), 0),
    ],
)
def test_any_number_of_responses(
    triton: ServedGateway, body: dict[str, Any], count: int
) -> None:
    response = post(triton, "generate_stream", body)
    assert response.status_code == 200
    assert [e["TEXT"] for e in events(response)] == ["hello world"] * count


@pytest.mark.parametrize("count", [0, 2])
def test_generate_takes_one(triton: ServedGateway, count: int) -> None:
    response = post(triton, "generate", prompt(REPETITION=count))
    assert response.status_code == 400
    assert "generate expects model to produce exactly 1" in response.json()["error"]


def test_an_error_in_the_stream(triton: ServedGateway) -> None:
    response = post(triton, "generate_stream", prompt(REPETITION=1, FAIL_LAST=True))
    assert response.status_code == 200
    text, error = events(response)
    assert text["TEXT"] == "hello world"
    assert error["error"] == "An Error Occurred"


def test_an_error_as_the_first_event_is_the_status(triton: ServedGateway) -> None:
    response = post(triton, "generate_stream", prompt(REPETITION=0, FAIL_LAST=True))
    assert response.status_code == 500
    assert [e["error"] for e in events(response)] == ["An Error Occurred"]


@pytest.mark.parametrize("what", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "between 2 and 3 but got 0 inputs for model 'mock_llm'"),
        ({"abc": 123}, "expected number of inputs between 2 and 3 but got 0"),
        ({"PROMPT": "hello"}, "expected number of inputs between 2 and 3 but got 1"),
        (
            {"STREAM": False, "other": "param"},
            "expected number of inputs between 2 and 3 but got 1",
        ),
        (prompt(PROMPT=123), "attempt to access JSON non-string as string"),
        (prompt(STREAM="false"), "attempt to access JSON non-boolean as boolean"),
        ({"PROMPT": True, "STREAM": 1}, "attempt to access JSON non-string as string"),
        ({"STREAM": 1, "PROMPT": True}, "attempt to access JSON non-boolean as bool"),
        (prompt(PROMPT={"USER": "hello"}), "non-string as string"),
        (prompt(PARAMS={"a": 0}), "parameter 'PARAMS' has invalid type"),
        (prompt(parameters=1), "Expected JSON object for keyword: 'parameters'"),
        (
            prompt(parameters={"nested": {"twice": 1}}),
            "Converting keyword: 'parameters': parameter 'nested' has invalid type.",
        ),
        (prompt(REPETITION="x"), "parameter 'REPETITION' must be a number, got 'x'"),
        (prompt(REPETITION=1.5), "parameter 'REPETITION' must be a whole number"),
        (prompt(REPETITION=math.inf), "parameter 'REPETITION' must be a whole number"),
        (prompt(REPETITION=math.nan), "parameter 'REPETITION' must be a whole number"),
        (prompt(DELAY=10**400, X=math.nan), "'DELAY' must be a number that 64 bits"),
        (prompt(FAIL_LAST=3), "parameter 'FAIL_LAST' must be true or false"),
        (prompt(PROMPT=["a", "b"]), "to tensor with proper shape"),
        ("[]", "expected a JSON object, got a list"),
        ("nonsense", "failed to parse the request JSON buffer"),
        (
            '{"PROMPT": "a", "STREAM": false, "PROMPT": "b"}',
            "input 'PROMPT' already exists in request",
        ),
        (
            '{"PROMPT": "a", "STREAM": false, "STREAM": true, "PROMPT": "b"}',
            "input 'STREAM' already exists in request",
        ),
    ],
)
def test_what_is_refused(
    triton: ServedGateway, what: str, body: Any, text: str
) -> None:
    response = post(triton, what, body)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert text in response.json()["error"]


def test_unknown_models_and_other_verbs(triton: ServedGateway) -> None:
    client = triton.client
    missing = client.post("/v2/models/no/generate", json={})
    assert missing.status_code == 400  # as Triton has it
    assert missing.json()["error"].startswith("Request for unknown model: 'no'")
    missing = client.post("/v2/models/mock_llm/versions/7/generate", json={})
    assert missing.status_code == 400
    assert client.get(f"{MODEL}/generate").status_code == 405
    versioned = client.post(f"{MODEL}/versions/1/generate", json=prompt())
    assert versioned.json()["TEXT"] == "hello world"


def test_an_ordinary_model(triton: ServedGateway) -> None:
    numbers = list(range(16))
    body = {"INPUT0": numbers, "INPUT1": [numbers]}
    response = triton.client.post("/v2/models/simple/generate", json=body)
    assert response.json()["OUTPUT0"] == [2 * n for n in numbers]
    response = triton.client.post("/v2/models/simple/generate_stream", json=body)
    (event,) = events(response)
    assert event["OUTPUT1"] == [0] * 16


def test_events_come_as_they_are_made(triton: ServedGateway) -> None:
    """All of them would take a minute; the first is here at once."""
    body = prompt(REPETITION=1000, DELAY=0.05)
    before = stats(triton)
    with triton.client.stream("POST", f"{MODEL}/generate_stream", json=body) as answer:
        assert next(answer.iter_raw()).startswith(b"data: ")
        assert stats(triton) == before  # it is not answered yet


def stats(triton: ServedGateway) -> int:
    (found,) = triton.client.get(f"{MODEL}/stats").json()["model_stats"]
    count: int = found["inference_stats"]["success"]["count"]
    return count


def canceled(triton: ServedGateway) -> float:
    text = triton.client.get("/metrics").text
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("nv_inference_request_failure")
        and 'model="mock_llm"' in line
        and 'reason="CANCELED"' in line
    )


def test_a_client_that_goes_away_ends_it(triton: ServedGateway) -> None:
    before = canceled(triton)
    body = prompt(REPETITION=1000, DELAY=0.05)
    with triton.client.stream("POST", f"{MODEL}/generate_stream", json=body) as answer:
        next(answer.iter_raw())
    noticed = threading.Event()
    for _ in range(int(WAIT / 0.02)):
        if canceled(triton) == before + 1:
            break
        noticed.wait(0.02)
    else:
        raise AssertionError("the request still runs")


def test_a_deadline_ends_a_stream(triton: ServedGateway) -> None:
    body = prompt(REPETITION=1000, DELAY=0.05, timeout=150_000)
    *texts, error = events(post(triton, "generate_stream", body))
    assert 1 <= len(texts) < 1000
    assert error["code"] == "deadline_exceeded"


def test_infer_takes_one_response(triton: ServedGateway) -> None:
    body = {"inputs": {"PROMPT": "a", "STREAM": True}, "parameters": {"REPETITION": 1}}
    response = triton.client.post(f"{MODEL}/infer", json=body)
    assert response.json()["outputs"][0]["data"] == ["a"]
    for count, how_many in ((0, "no"), (2, "several")):
        body["parameters"] = {"REPETITION": count}
        response = triton.client.post(f"{MODEL}/infer", json=body)
        assert response.status_code == 400
        assert f"gave {how_many} responses" in response.json()["error"]


def test_infer_in_events(triton: ServedGateway) -> None:
    headers = {"Accept": "text/event-stream"}
    body: dict[str, Any] = {
        "id": "7",
        "inputs": {"PROMPT": "a", "STREAM": True},
        "parameters": {"REPETITION": 3},
    }
    response = triton.client.post(f"{MODEL}/infer", json=body, headers=headers)
    found = events(response)
    assert [e["outputs"][0]["data"] for e in found] == [["a"]] * 3
    assert {e["id"] for e in found} == {"7"}
    body["parameters"]["binary_data_output"] = True
    response = triton.client.post(f"{MODEL}/infer", json=body, headers=headers)
    assert response.status_code == 400
    assert "hold neither binary data" in response.json()["error"]
    simple = {"inputs": {"INPUT0": [[1] * 16], "INPUT1": [[2] * 16]}}
    response = triton.client.post(
        "/v1/models/simple/infer", json=simple, headers=headers
    )
    (event,) = events(response)
    assert event["outputs"][0]["data"] == [3] * 16


def test_the_connection_goes_on_after_a_stream(triton: ServedGateway) -> None:
    with httpx.Client(base_url=triton.url, trust_env=False) as client:
        for _ in range(3):
            response = client.post(f"{MODEL}/generate_stream", json=prompt())
            assert len(events(response)) == 1
            assert client.post(f"{MODEL}/generate", json=prompt()).status_code == 200


def test_an_answer_that_takes_its_time(triton: ServedGateway) -> None:
    body = {"inputs": {"INPUT0": [[10]]}, "parameters": {"timeout": 100_000}}
    response = triton.client.post("/v2/models/custom_identity_int32/infer", json=body)
    # Triton's status; 504 without --error-statuses triton.
    assert response.status_code == 503
    assert response.json()["code"] == "deadline_exceeded"


@pytest.fixture(scope="module")
def codec() -> ModelCodec:
    shapes = {"a": (-1, -1), "b": (-1, 2), "c": (2, -1, 3), "d": (4,), "e": None}
    inputs = tuple(TensorSpec.make(n, "INT64", s) for n, s in shapes.items())
    return ModelCodec(ModelSpec("m", "1", inputs, ()))


@pytest.mark.parametrize(
    ("name", "value", "shape"),
    [
        ("a", 1, (1, 1)),
        ("a", [1, 2, 3], (1, 3)),
        ("a", [[1, 2], [3, 4]], (2, 2)),
        ("a", [], (1, 0)),
        ("b", [1, 2, 3, 4], (2, 2)),
        ("c", [0] * 12, (2, 2, 3)),
        ("d", [1, 2, 3, 4], (4,)),
        ("e", [1, 2], (2,)),
        ("b", [1, 2, 3], None),
        ("d", [1, 2], None),
        ("d", list(range(8)), None),
    ],
)
def test_shapes_are_filled_up(
    codec: ModelCodec, name: str, value: Any, shape: tuple[int, ...] | None
) -> None:
    values = {"a": 1, "b": [1, 2], "c": [0] * 6, "d": [1] * 4, "e": 1} | {name: value}
    body: Body = [json.dumps(values).encode()]
    if shape is None:
        with pytest.raises(InvalidTensor, match="proper shape"):
            decode_generate(codec, body)
    else:
        assert decode_generate(codec, body).inputs[name].shape == shape


@pytest.mark.parametrize("ids", [[[1, 2, 3]], [[7]]])
def test_an_input_that_may_be_left_out(triton: ServedGateway, ids: Any) -> None:
    response = post(triton, "generate", prompt(input_ids=ids))
    assert response.status_code == 200, response.text
