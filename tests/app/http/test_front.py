"""The infer path, from the ASGI messages in to the messages out.

Covers: app/http/application.py, app/http/asgi.py, app/http/asgi_call.py.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from app.errors import FailureReason
from app.http.front import InferFront
from app.limits import Limits
from app.observe.metrics import ModelMetrics
from app.serving.service import Service
from app.serving.table import ModelTable
from engine import DeviceLost, ExecutionFailed, QueueFull
from tests.app import fronts
from tests.app.codec import samples
from tests.app.fronts import Client, Doubler


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a coroutine test in a loop of its own."""

    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def stats_of(app: InferFront) -> ModelMetrics:
    return app.service.models.paths["/v1/models/m/infer"].stats


@pytest.mark.parametrize("when", ["now", "soon"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/m/infer",
        "/v2/models/m/infer",
        "/v1/models/m/versions/1/infer",
        "/v2/models/m/versions/1/infer",
    ],
)
def test_answers(when: str, path: str) -> None:
    async def run() -> None:
        app = fronts.front(Doubler(when))
        client = await Client(app, path).run()
        assert client.status == 200
        assert client.json["outputs"][0]["data"] == [2.0, 4.0]
        assert len(client.sent) == 2
        stats = stats_of(app)
        assert (stats.successes, stats.pending, stats.inference_count) == (1, 0, 1)

    asyncio.run(run())


@scenario
async def test_everything_else_goes_to_the_fallback() -> None:
    app = fronts.front(Doubler())
    for method, path in (
        ("GET", "/v1/models/m/infer"),
        ("POST", "/v1/models/m"),
        ("POST", "/v1/models/m/stats"),
        ("POST", "/v3/models/m/infer"),
        ("POST", "/v1/models/a/b/infer"),
        ("POST", "/v1/models//infer"),
        ("POST", "/v1/models/infer"),
        ("POST", "/v1/models/m/versions/infer"),
        ("POST", "/v1/models/m/versions//infer"),
        ("POST", "/"),
    ):
        client = await Client(app, path, method=method).run()
        assert client.status == 418, path
        assert client.received == 0
    seen = []

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await InferFront(lifespan, Service(ModelTable()))({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]


@scenario
async def test_below_a_root_path() -> None:
    app = fronts.front(Doubler())
    path = "/base/v2/models/m/infer"
    assert (await Client(app, path, root_path="/base").run()).status == 200
    assert (await Client(app, path).run()).status == 418


@scenario
async def test_unknown_models_and_versions() -> None:
    app = fronts.front(Doubler(), absent=fronts.Late())
    client = await Client(app, "/v1/models/x y/infer").run()
    assert client.status == 404
    assert client.json == {
        "error": "Request for unknown model: 'x y' is not found; there is only 'm'",
        "code": "unknown_model",
        "help": "docs/reference/errors.md#unknown_model",
        "request_id": client.headers[b"x-request-id"].decode(),
    }
    client = await Client(app, "/v2/models/m/versions/9/infer").run()
    assert client.status == 404
    assert "'m' version 9 is not found" in client.json["error"]
    client = await Client(app, "/v2/models/late/infer").run()
    assert client.status == 503
    text = "Request for unknown model: 'late' has no available versions: it is loading"
    assert client.json["error"] == f"{text} (it is not at ready state)"
    client = await Client(app, "/v2/models/late/versions/3/infer").run()
    text = "Request for unknown model: 'late' version 3 is not at ready state: it is"
    assert client.json["error"].startswith(text)
    assert (await Client(app, "/v2/models/x/infer").run()).status == 404


@scenario
async def test_bad_requests_are_counted_and_answered() -> None:
    app = fronts.front(Doubler())
    for body, words in (
        (b"", "the body is empty"),
        (b"{", "failed to parse the request JSON"),
        (b'{"inputs":{"x":[1,2,3]}}', "unexpected shape for input 'x'"),
    ):
        client = await Client(app, body=body).run()
        assert client.status == 400
        assert words in client.json["error"]
    assert stats_of(app).failures[FailureReason.OTHER] == 3
    assert stats_of(app).pending == 0


@scenario
async def test_body_in_chunks() -> None:
    body = b'{"inputs":{"x":[1,2]}}'
    chunks = [body[i : i + 3] for i in range(0, len(body), 3)]
    app = fronts.front(Doubler())
    assert (await Client(app, body=chunks).run()).status == 200
    assert (await Client(app, body=[b"", body, b"", b""]).run()).status == 200


@scenario
async def test_large_answers_leave_in_parts() -> None:
    app = fronts.front(Doubler())
    array = np.arange(200_000, dtype=np.float32).reshape(-1, 2)
    body = samples.npy("FP32", array).data
    step = 64 * 1024
    client = Client(
        app,
        body=[body[i : i + step] for i in range(0, len(body), step)],
        headers={"content-length": str(len(body))},
    )
    await client.run()
    assert client.status == 200
    assert len(client.sent) == 3
    assert client.sent[1]["more_body"]
    assert int(client.headers[b"content-length"]) == len(client.body)
    assert client.body[-array.nbytes :] == (array * 2).tobytes()


@scenario
async def test_too_large_by_header_is_refused_before_it_is_read() -> None:
    app = fronts.front(Doubler())
    for kind, words in (
        ({}, "JSON size of {} bytes exceeds the maximum allowed input size"),
        ({"content-type": "application/octet-stream"}, "JSON size of {} bytes"),
        ({"content-type": "application/msgpack"}, "body of {} bytes exceeds the "),
        (
            {"inference-header-content-length": "0"},
            "body of {} bytes exceeds the maximum allowed value",
        ),
        ({"content-encoding": "gzip"}, "body of {} bytes exceeds the maximum allowed"),
    ):
        headers = {"content-length": str(10**9), **kind}
        client = Client(app, body=[], headers=headers)
        client.disconnect()
        await client.run()
        assert client.status == 413
        error = client.json["error"]
        assert error.startswith("request " + words.format(10**9))
        assert error.endswith(
            " of 268435456 bytes. Use --http-max-input-size to increase the limit."
        )
    assert client.headers[b"connection"] == b"close"
    # The answer was complete before anything was read.
    assert client.sent[1]["more_body"]
    huge = Client(app, body=[], headers={"content-length": "9" * 100})
    huge.disconnect()
    assert (await huge.run()).status == 413


@scenario
async def test_too_large_by_counting() -> None:
    app = fronts.front(Doubler(), Limits(max_body_bytes=100))
    for body in (b" " * 101, [b" " * 60, b" " * 60, b" " * 1000]):
        client = await Client(app, body=body).run()
        assert client.status == 413
        assert client.sent[-1] == {"type": "http.response.body", "body": b""}
    assert (await Client(app, body=b" " * 78 + b'{"inputs":{"x":[1,2]}}').run()).status
    ok = b'{"inputs":{"x":[1,2]}}'.ljust(100)
    assert (await Client(app, body=[ok[:50], ok[50:]]).run()).status == 200


@scenario
async def test_content_length_that_is_no_number() -> None:
    app = fronts.front(Doubler())
    for value in ("-1", "abc", "1e3", ""):
        client = await Client(app, headers={"content-length": value}).run()
        assert client.status == 400
        assert client.headers[b"connection"] == b"close"


@scenario
async def test_client_that_leaves_within_its_body() -> None:
    runner = Doubler()
    app = fronts.front(runner)
    for chunks in ([], [b'{"inputs"'], [b'{"inputs"', b":"]):
        client = Client(app, body=[])
        for chunk in chunks:
            client.push(chunk, more=True)
        client.disconnect()
        await client.run()
        assert client.sent == []
    assert runner.submitted == []
    assert stats_of(app).pending == 0


@scenario
async def test_client_that_leaves_before_its_whole_request_begins() -> None:
    class Offering(fronts.Late):
        def offers(self, name: str, version: str | None) -> bool:
            return name == "late"

    runner = Doubler()
    app = fronts.front(runner, absent=Offering())
    for path in ("/v1/models/m/infer", "/v1/models/late/infer"):
        client = Client(app, path, body=[])
        client.disconnect(is_whole=True)
        await client.run()
        assert client.sent == []
    assert runner.submitted == []
    assert stats_of(app).failures[FailureReason.CANCELED] == 1
    assert stats_of(app).pending == 0
    assert [one.status for one in app.service.journal.failed] == [499, 499]


@scenario
async def test_client_that_leaves_while_it_waits() -> None:
    runner = Doubler("never")
    app = fronts.front(runner)
    client = Client(app)
    task = asyncio.create_task(client.run())
    await runner.arrived.wait()
    client.disconnect()
    await task
    assert client.sent == []
    assert runner.submitted[0].done
    assert stats_of(app).failures[FailureReason.CANCELED] == 1
    assert stats_of(app).pending == 0


@scenario
async def test_quick_answers_need_no_watcher() -> None:
    app = fronts.front(Doubler())
    client = await Client(app).run()
    assert client.received == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@scenario
async def test_watching_ends_with_the_answer() -> None:
    runner = Doubler("never")
    app = fronts.front(runner)
    client = Client(app)
    task = asyncio.create_task(client.run())
    await client.asked(2)  # the body, and then the watcher
    runner.submitted[0].resolve()
    await task
    assert client.status == 200
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@scenario
async def test_cancelled_tasks_cancel_their_request() -> None:
    runner = Doubler("never")
    app = fronts.front(runner)
    task = asyncio.create_task(Client(app).run())
    await runner.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runner.submitted[0].done
    assert stats_of(app).pending == 0


@scenario
async def test_nobody_waits_for_ever() -> None:
    runner = Doubler("never")
    app = fronts.front(runner, timeout=0.01)
    client = await Client(app).run()
    assert client.status == 504
    assert client.json["code"] == "deadline_exceeded"
    assert runner.submitted[0].done


@pytest.mark.parametrize(
    ("parameters", "headers", "seconds"),
    [
        ("", {}, 60),
        (',"parameters":{"timeout":5000000}', {}, 5),
        ("", {"x-request-timeout": "2.5"}, 2.5),
        (',"parameters":{"timeout":5000000}', {"x-request-timeout": "2.5"}, 5),
        (',"parameters":{"timeout":9223372036854775807}', {}, 60),
        ("", {"x-request-timeout": "1e300"}, 60),
    ],
)
def test_deadlines(parameters: str, headers: dict[str, str], seconds: float) -> None:
    async def run() -> None:
        runner = Doubler()
        app = fronts.front(runner)
        body = f'{{"inputs":{{"x":[1,2]}}{parameters}}}'.encode()
        began = time.monotonic()
        client = await Client(app, body=body, headers=headers).run()
        assert client.status == 200
        deadline = runner.deadlines[0]
        assert deadline is not None
        assert began <= deadline - seconds + 1e-3 <= time.monotonic() + 2e-3

    asyncio.run(run())


@scenario
async def test_own_deadline_of_a_model() -> None:
    runner = Doubler()
    app = fronts.front(runner)
    entry = fronts.entry(runner)
    entry.timeout = 7.0
    app.service.models.publish("m", [entry])
    began = time.monotonic()
    await Client(app).run()
    assert runner.deadlines[0] is not None
    assert began <= runner.deadlines[0] - 7 <= time.monotonic()


@scenario
async def test_short_deadlines_are_kept() -> None:
    app = fronts.front(Doubler("never"))
    body = b'{"inputs":{"x":[1,2]},"parameters":{"timeout":2000}}'
    client = await Client(app, body=body).run()
    assert client.status == 504


@scenario
async def test_timeouts_that_are_none() -> None:
    app = fronts.front(Doubler())
    for value in ("0", "-1", "nan", "inf", "soon", "", "1_0", "1_0.5"):
        client = await Client(app, headers={"x-request-timeout": value}).run()
        assert client.status == 400
        assert "X-Request-Timeout" in client.json["error"]


@scenario
async def test_errors_of_the_engine() -> None:
    runner = Doubler()
    app = fronts.front(runner)
    runner.refuse = QueueFull("Exceeds maximum queue size", 3.0)
    client = await Client(app).run()
    assert (client.status, client.headers[b"retry-after"]) == (429, b"3")
    runner.refuse = None
    runner.error = DeviceLost("the device process died")
    client = await Client(app).run()
    assert (client.status, client.json["code"]) == (503, "device_lost")
    runner.error = ExecutionFailed("index out of range", callers_fault=True)
    assert (await Client(app).run()).status == 400
    assert stats_of(app).failures == {
        FailureReason.REJECTED: 2,
        FailureReason.BACKEND: 1,
        FailureReason.CANCELED: 0,
        FailureReason.OTHER: 0,
    }


@scenario
async def test_compressed_bodies() -> None:
    app = fronts.front(Doubler(), Limits(max_body_bytes=1000))
    body = gzip.compress(b'{"inputs":{"x":[1,2]}}')
    headers = {"content-encoding": "gzip"}
    client = await Client(app, body=body, headers=headers).run()
    assert client.json["outputs"][0]["data"] == [2.0, 4.0]
    bomb = gzip.compress(b" " * 100_000)
    assert (await Client(app, body=bomb, headers=headers).run()).status == 413
    headers = {"content-encoding": "br"}
    assert (await Client(app, body=body, headers=headers).run()).status == 415
    app.service.close()


@scenario
async def test_a_model_that_is_swapped_while_the_body_comes() -> None:
    old, new = Doubler(), Doubler()
    app = fronts.front(old)
    client = Client(app, body=[])
    client.push(b'{"inputs":', more=True)
    task = asyncio.create_task(client.run())
    await client.asked(2)
    app.service.models.publish("m", [fronts.entry(new)])
    client.push(b'{"x":[1,2]}}', more=False)
    await task
    assert client.status == 200
    assert (len(old.submitted), len(new.submitted)) == (0, 1)


@scenario
async def test_a_model_that_goes_while_the_body_comes() -> None:
    app = fronts.front(Doubler())
    client = Client(app, body=[])
    client.push(b'{"inputs":', more=True)
    task = asyncio.create_task(client.run())
    await client.asked(2)
    app.service.models.publish("m", ())
    client.push(b'{"x":[1,2]}}', more=False)
    await task
    assert client.status == 404


@scenario
async def test_many_at_once_each_get_their_own() -> None:
    app = fronts.front(Doubler())
    bodies = [f'{{"inputs":{{"x":[{n},{-n}]}}}}'.encode() for n in range(200)]
    clients = await asyncio.gather(*(Client(app, body=b).run() for b in bodies))
    for n, client in enumerate(clients):
        assert client.json["outputs"][0]["data"] == [2 * n, -2 * n]
    assert stats_of(app).successes == 200


def test_one_front_in_several_loops() -> None:
    """A test client starts a loop for every request; deadlines must still work."""
    app = fronts.front(Doubler("never"), timeout=0.01)
    for _ in range(3):
        assert asyncio.run(Client(app).run()).status == 504
