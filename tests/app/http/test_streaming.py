"""Events of device iterations; what ends a stream; who is answered with events."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper

from app.http.asgi import Message
from app.http.asgi_call import wants_events
from app.plugins import ROUTES, plugin_names
from engine import Cancelled, ExecutionFailed, QueueFull
from tests.app import fronts
from tests.app.served import Serve, ServedGateway
from tests.engine import models

EVENTS = {"accept": "text/event-stream"}


def fibonacci(folder: Path) -> None:
    """One number a step, from `start` on; two numbers of state; rows may be mixed."""
    column = ["n", 1]
    numbers = {
        name: helper.make_tensor_value_info(name, TensorProto.INT64, column)
        for name in ("start", "a", "b", "step", "count", "value", "next", "sum")
    }
    more = helper.make_tensor_value_info("more", TensorProto.BOOL, column)
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["a", "start"], ["value"]),
            helper.make_node("Identity", ["b"], ["next"]),
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Add", ["step", "one"], ["following"]),
            helper.make_node("Less", ["following", "count"], ["more"]),
        ],
        "fibonacci",
        [numbers[name] for name in ("start", "a", "b", "step", "count")],
        [*(numbers[name] for name in ("value", "next", "sum")), more],
        [helper.make_tensor("one", TensorProto.INT64, [], [1])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(model.SerializeToString())
    np.save(folder / "1" / "first.npy", np.array([[1]], np.int64))
    (folder / "config.toml").write_text(
        """
        batching = true
        [responses]
        more = "more"
        step = "step"
        [responses.parameters]
        count = 1
        [[responses.state]]
        input = "a"
        output = "next"
        [[responses.state]]
        input = "b"
        output = "sum"
        initial = "first.npy"
        """
    )


def fill(root: Path) -> None:
    models.regular(root / "thrice.popef", (1, 2), iterations=3)
    fibonacci(root / "fibonacci")


@pytest.fixture(scope="module")
def served(serve: Serve) -> ServedGateway:
    return serve(fill)


def documents(text: str) -> list[Any]:
    return [json.loads(e.removeprefix("data: ")) for e in text.split("\n\n")[:-1]]


def test_each_device_iteration_is_an_event(served: ServedGateway) -> None:
    rows = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    results = [[2 * x + 1 for x in row] for row in rows]
    url, body = "/v2/models/thrice/infer", {"inputs": {"input": rows}}
    whole = served.client.post(url, json=body).json()
    assert whole["outputs"][0]["shape"] == [3, 2]
    found = documents(served.client.post(url, json=body, headers=EVENTS).text)
    assert [e["outputs"][0]["data"] for e in found] == results
    assert {tuple(e["outputs"][0]["shape"]) for e in found} == {(1, 2)}
    if not plugin_names(ROUTES):
        return
    flat = {"input": [x for row in rows for x in row]}
    found = documents(
        served.client.post("/v2/models/thrice/generate_stream", json=flat).text
    )
    assert [e["output"] for e in found] == results
    one = served.client.post("/v2/models/thrice/generate", json=flat).json()
    assert one["output"] == [x for row in results for x in row]


def test_state_goes_from_step_to_step(served: ServedGateway) -> None:
    """Many at once, which share batches and keep their own state."""

    async def numbers(client: httpx.AsyncClient, start: int) -> list[int]:
        body = {"inputs": {"start": [[start]]}, "parameters": {"count": 8}}
        url = "/v2/models/fibonacci/infer"
        answer = await client.post(url, json=body, headers=EVENTS)
        events = documents(answer.text)
        return [event["outputs"][0]["data"][0] for event in events]

    async def main() -> list[list[int]]:
        async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
            return await asyncio.gather(*(numbers(client, i) for i in range(20)))

    for start, found in enumerate(asyncio.run(main())):
        assert found == [start + x for x in (0, 1, 1, 2, 3, 5, 8, 13)]


def ask(runner: fronts.Doubler, timeout: float = 60.0) -> fronts.Client:
    return fronts.Client(fronts.front(runner, timeout=timeout), headers=EVENTS)


def test_one_event() -> None:
    client = asyncio.run(ask(fronts.Doubler()).run())
    assert client.status == 200
    assert client.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    (event,) = documents(client.body.decode())
    assert event["outputs"][0]["data"] == [2.0, 4.0]


def test_what_is_refused_is_no_stream() -> None:
    runner = fronts.Doubler()
    runner.refuse = QueueFull("full", 3.0)
    client = asyncio.run(ask(runner).run())
    assert client.status == 429
    assert client.json["code"] == "queue_full"
    assert client.headers[b"retry-after"] == b"3"


def test_what_fails_is_an_event_and_the_status() -> None:
    runner = fronts.Doubler(error=ExecutionFailed("no luck"))
    client = asyncio.run(ask(runner).run())
    assert client.status == 500
    assert documents(client.body.decode())[0]["error"] == "no luck"


def test_a_deadline() -> None:
    client = asyncio.run(ask(fronts.Doubler("never"), timeout=0.01).run())
    assert client.status == 504
    assert documents(client.body.decode())[0]["code"] == "deadline_exceeded"


def test_a_client_that_goes() -> None:
    async def main() -> tuple[fronts.Client, fronts.Doubler]:
        runner = fronts.Doubler("never")
        client = ask(runner)
        task = asyncio.create_task(client.run())
        await runner.arrived.wait()
        client.disconnect()
        return await task, runner

    client, runner = asyncio.run(main())
    assert client.sent == []
    assert isinstance(runner.submitted[0].error, Cancelled)


@pytest.mark.parametrize("error", [None, ExecutionFailed("no")])
def test_a_client_that_goes_at_the_last_event(error: ExecutionFailed | None) -> None:
    """It has left, once, and nobody has made a mistake."""

    async def main() -> fronts.Client:
        client = ask(fronts.Doubler(error=error))

        class Leaving(fronts.Client):
            async def _send(self, message: Message) -> None:
                await super()._send(message)
                if not message.get("more_body", "body" not in message):
                    self.disconnect()  # while the last bytes wait for it
                    await asyncio.wait(asyncio.all_tasks() - {main_task})

        client.__class__ = Leaving
        main_task = asyncio.current_task()
        return await client.run()

    client = asyncio.run(main())
    failed = [one.status for one in client.app.service.journal.failed]
    assert failed == [499]
    assert b"internal_error" not in client.body


def test_a_task_that_is_cancelled() -> None:
    async def main() -> fronts.Doubler:
        runner = fronts.Doubler("never")
        task = asyncio.create_task(ask(runner).run())
        await runner.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return runner

    runner = asyncio.run(main())
    assert isinstance(runner.submitted[0].error, Cancelled)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (b"text/event-stream", True),
        (b"text/event-stream; q=0.9, application/json;q=0.5", True),
        (b"text/event-stream, application/json", True),
        (b"application/json, text/event-stream", False),
        (b"application/json, text/event-stream;q=0.5", False),
        (b"text/event-stream;q=0", False),
        (b"application/json;q=0.5, text/event-stream;q=1_0", False),
        (b"*/*", False),
        (b"application/json", False),
    ],
)
def test_who_wants_events(accept: bytes, wanted: bool) -> None:
    assert wants_events({b"accept": accept}) is wanted
    assert not wants_events({})
