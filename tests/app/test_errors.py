"""Which exception becomes which answer."""

from __future__ import annotations

import inspect
import json
import logging

import pytest

import app.errors
import engine.errors
from app.errors import (
    ErrorResponse,
    FailureReason,
    HttpError,
    Outcome,
    help_address,
    row_of,
)
from engine import (
    DeviceLost,
    EngineBug,
    EngineError,
    ExecutionFailed,
    QueueFull,
    Refused,
)


def answer(error: BaseException) -> tuple[int, dict[str, str], dict[bytes, bytes]]:
    response = ErrorResponse.of(error)
    headers = dict(response.headers)
    assert headers[b"content-type"] == b"application/json"
    assert int(headers[b"content-length"]) == len(response.body)
    return response.status, json.loads(response.body), headers


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("MalformedBody", 400, "malformed_body"),
        ("InvalidRequest", 400, "invalid_request"),
        ("InvalidTensor", 400, "invalid_input"),
        ("BodyTooLarge", 413, "body_too_large"),
        ("UnsupportedMediaType", 415, "unsupported_media_type"),
        ("NotAcceptable", 406, "not_acceptable"),
        ("NotRepresentable", 422, "not_representable"),
        ("NoDeviceAvailable", 503, "no_device"),
        ("DeadlineExceeded", 504, "deadline_exceeded"),
        ("DeviceWaitTimeout", 504, "timed_out"),
        ("Cancelled", 499, "cancelled"),
        ("RunnerClosed", 503, "model_closed"),
        ("QueueClosed", 503, "model_closed"),
        ("DeviceLost", 503, "device_lost"),
        ("InvalidInput", 400, "invalid_input"),
        ("UnknownAnchor", 400, "invalid_input"),
        ("ExecutionFailed", 500, "execution_failed"),
        ("OutOfMemory", 503, "out_of_memory"),
        ("NotFound", 404, "not_found"),
        ("AlreadyExists", 409, "already_exists"),
        ("CancelledByModel", 499, "cancelled"),
        ("Unsupported", 501, "unsupported"),
    ],
)
def test_table(name: str, status: int, code: str) -> None:
    error = (getattr(app.errors, name, None) or getattr(engine.errors, name))("why")
    got, body, _ = answer(error)
    assert got == status
    assert body == {"error": "why", "code": code, "help": help_address(code)}


def test_every_error_of_the_engine_has_a_row_of_its_kind() -> None:
    for _, kind in inspect.getmembers(engine.errors, inspect.isclass):
        assert issubclass(kind, EngineError)
        row = row_of(kind("x"))
        if kind not in (EngineError, EngineBug):
            assert row.code != "internal_error", kind
        assert 400 <= row.status < 600


@pytest.mark.parametrize("error", [MemoryError(), engine.errors.OutOfMemory("why")])
def test_a_lack_of_memory_passes(error: Exception) -> None:
    status, body, headers = answer(error)
    assert (status, body["code"]) == (503, "out_of_memory")
    assert "memory" in body["error"] or body["error"] == "why"
    assert headers[b"retry-after"] == b"1"


def test_unknown_model() -> None:
    status, body, _ = answer(app.errors.UnknownModel("x"))
    assert status == 404
    assert body["error"] == "Request for unknown model: 'x' is not found"
    _, body, _ = answer(app.errors.UnknownModel("x", "3"))
    text = "Request for unknown model: 'x' version 3 is not found"
    assert body["error"] == f"{text} (it is not at ready state)"


@pytest.mark.parametrize(("seconds", "text"), [(0.0, b"1"), (0.3, b"1"), (7.2, b"8")])
def test_retry_after(seconds: float, text: bytes) -> None:
    status, body, headers = answer(QueueFull("Exceeds maximum queue size", seconds))
    assert status == 429
    assert body["code"] == "queue_full"
    assert headers[b"retry-after"] == text


def test_retry_after_a_lost_device() -> None:
    assert answer(DeviceLost("gone"))[2][b"retry-after"] == b"1"
    # A model that this model calls has a full queue.
    assert answer(Refused("full"))[2][b"retry-after"] == b"1"
    not_ready = app.errors.ModelNotReady("m", "it is loading")
    status, body, headers = answer(not_ready)
    assert status == 503
    assert headers[b"retry-after"] == b"1"
    assert body["error"] == "Model 'm' is not ready: it is loading"
    assert b"retry-after" not in answer(ExecutionFailed("x"))[2]


def test_who_is_to_blame_for_a_failed_execution() -> None:
    ours = answer(ExecutionFailed("cannot multiply"))
    assert ours[0] == 500
    theirs = answer(ExecutionFailed("index out of range", callers_fault=True))
    assert theirs[0] == 400
    assert theirs[1] == {
        "error": "index out of range",
        "code": "invalid_input",
        "help": help_address("invalid_input"),
    }


def test_what_nobody_expected_tells_the_log_and_not_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "app.errors"):
        status, body, _ = answer(KeyError("secret"))
    assert status == 500
    assert body["code"] == "internal_error"
    assert "secret" not in body["error"]
    assert "secret" in caplog.text
    with caplog.at_level(logging.ERROR, "app.errors"):
        _, body, _ = answer(EngineBug("slot 3 is free twice"))
    assert body["error"] == "slot 3 is free twice; this is a bug"


def test_http_error() -> None:
    error = HttpError(405, "Method Not Allowed", "method", ((b"allow", b"GET"),))
    status, body, headers = answer(error)
    assert status == 405
    assert (body["error"], body["code"]) == ("Method Not Allowed", "method")
    assert headers[b"allow"] == b"GET"


def test_close() -> None:
    response = ErrorResponse.of(app.errors.BodyTooLarge("x"), close=True)
    assert (b"connection", b"close") in response.headers


def test_text_that_is_no_text() -> None:
    _, body, _ = answer(app.errors.InvalidRequest("half a pair: \ud800"))
    assert body["error"] == "half a pair: \\ud800"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QueueFull("x"), FailureReason.REJECTED),
        (DeviceLost("x"), FailureReason.REJECTED),
        (engine.errors.Cancelled("x"), FailureReason.CANCELED),
        (ExecutionFailed("x"), FailureReason.BACKEND),
        (app.errors.InvalidRequest("x"), FailureReason.OTHER),
        (ValueError("x"), FailureReason.OTHER),
    ],
)
def test_reason_to_count(error: Exception, reason: FailureReason) -> None:
    assert row_of(error).reason is reason


def test_statuses_of_another_server() -> None:
    from app.errors import BodyTooLarge, ErrorStatuses, UnknownModel, UnknownModelRun

    kinds = (UnknownModelRun, QueueFull, BodyTooLarge, UnknownModel)
    assert [answer(k("x"))[0] for k in kinds] == [404, 429, 413, 404]
    app.errors.use_statuses(ErrorStatuses({413: 400}, {UnknownModelRun: 451}))
    try:
        found = [answer(k("x"))[0] for k in kinds]
    finally:
        app.errors.use_statuses(ErrorStatuses())
    assert found == [451, 429, 400, 404]


def test_every_outcome_is_that_of_some_error() -> None:
    outcomes = {row.outcome for row in app.errors.ERRORS.values()}
    assert outcomes == set(Outcome)
    wanted = {
        QueueFull: Outcome.QUEUE_FULL,
        engine.errors.DeadlineExceeded: Outcome.DEADLINE,
        DeviceLost: Outcome.DEVICE_LOST,
        engine.errors.NoDeviceAvailable: Outcome.DEVICE_LOST,
        engine.errors.OutOfMemory: Outcome.MEMORY,
        MemoryError: Outcome.MEMORY,
        app.errors.ModelNotReady: Outcome.NOT_READY,
        engine.errors.Closed: Outcome.NOT_READY,
        engine.errors.Cancelled: Outcome.CANCELLED,
        app.errors.InvalidTensor: Outcome.INVALID,
        ExecutionFailed: Outcome.ERROR,
        BaseException: Outcome.ERROR,
    }
    found = {kind: app.errors.ERRORS[kind].outcome for kind in wanted}
    assert found == wanted
