"""What a worker runs itself, and what it relays."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from app.codec import InferRequest, ModelCodec
from app.codec.messages import Body, Response, json_response
from app.config.keys import digest_of
from app.http.access import Access
from app.http.application import FrontOptions, Operation
from app.http.asgi import NAMES, Message, Receive, Scope, Send
from app.limits import DEFAULT_LIMITS
from app.observe.journal import Journal
from app.observe.log import LogControl
from app.serving.keys import Keys
from app.serving.service import Service
from app.spec import ModelSpec
from engine import (
    Device,
    DeviceManager,
    ModelRunner,
    ModelRunnerConfig,
    ObjectField,
    Tensor,
    send_message,
)
from popgate_workers.front import WorkerFront
from popgate_workers.messages import (
    TO_SUPERVISOR,
    JoinDevice,
    Left,
    ModelChanged,
    SharedEntry,
    SharedModel,
    Switched,
    ToSupervisor,
)
from popgate_workers.shared_counters import CounterSegment
from popgate_workers.worker import Worker
from tests.engine import models
from tests.support import WAIT

KEYS = """
[[key]]
name = "free"
sha256 = "{free}"

[[key]]
name = "counted"
sha256 = "{counted}"
certificate = "CN=counted"
concurrent = 1
"""


class OnesForm:
    """A form of inference of a plugin: the model's input is made of ones."""

    not_one = "expected one response"

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        ones = {"name": "input", "shape": [1, 4], "datatype": "FP32", "data": [1] * 4}
        return codec.read({"inputs": [ones]})

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        return json_response(b"{}")


class Supervised:
    """A worker in this process, told of one model, whose relay only notes what it
    gets."""

    def __init__(self, keys: Path, device: Device, runner: ModelRunner) -> None:
        self.theirs, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.counters = CounterSegment.create()
        self.worker = Worker(
            0,
            mine,
            CounterSegment.attach(os.dup(self.counters.memory.fd)),
            DEFAULT_LIMITS,
            Keys(keys),
            LogControl("info"),
            Journal(),
            5.0,
        )
        self.relayed: list[str] = []
        self.front = WorkerFront(
            self.worker,
            self,  # type: ignore[arg-type]
            Service(self.worker.table),
            FrontOptions(
                access=Access(keys=self.worker.keys),
                operations=[Operation("/v1/models/", ":predict", OnesForm)],
            ),
        )
        self._device, self._runner = device, runner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.relayed.append(scope["path"])
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def tell(self) -> None:
        """It is told of the model, and has taken it over."""
        with self._device.invite() as door:
            send_message(
                self.theirs, JoinDevice("d", self._device.id, 0), [door.fileno()]
            )
        description = self._runner.description
        (_, number), *_ = description.replicas
        runner = SharedModel(
            ObjectField(replace(description, replicas=(("d", number),)))
        )
        spec = ModelSpec.from_runner("m", "1", self._runner)
        assert await self.publish(
            SharedEntry(7, 0, ObjectField(spec), runner)
        ) == Switched(1)

    async def publish(self, *entries: SharedEntry) -> ToSupervisor:
        send_message(self.theirs, ModelChanged(1, "m", "1", entries, ()))
        return await self.hear()

    async def hear(self) -> ToSupervisor:
        return (await asyncio.to_thread(TO_SUPERVISOR.receive, self.theirs))[0]

    async def ask(
        self, path: str, key: str = "", method: str = "POST", certificate: str = ""
    ) -> int:
        body = b'{"inputs": {"input": [[1, 2, 3, 4]]}}'
        headers = [(b"content-length", b"%d" % len(body))]
        headers += [(b"x-api-key", key.encode())] if key else []
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        if certificate:
            scope[NAMES] = (certificate,)
        statuses: list[int] = []

        async def take() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def give(message: Message) -> None:
            statuses.append(message.get("status", 0))

        await self.front(scope, take, give)
        return statuses[0]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_keys_are_watched_though_threads_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each model that is drained has a thread of the event loop for that time."""
    path = tmp_path / "keys.toml"
    path.write_text("anonymous = ['infer']\n")
    monkeypatch.setattr("popgate_workers.worker.KEYS_LOOK", 0.001)
    start = threading.Thread.start

    def no_thread(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    async def follow(pool: ThreadPoolExecutor) -> None:
        loop, drained = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(pool)
        model = loop.run_in_executor(None, drained.wait)
        theirs, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        counters = CounterSegment.create()
        keys, log = Keys(path), LogControl("info")
        worker = Worker(0, mine, counters, DEFAULT_LIMITS, keys, log, Journal(), 5.0)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        worker.start()
        try:
            await until(lambda: "can't start new thread" in caplog.text)
            path.write_text("anonymous = ['metrics']\n")
            await until(lambda: keys.table.anonymous == {"metrics"})
        finally:
            drained.set()
            await model
            await worker.stop()
            theirs.close()
            counters.close()

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(follow(pool))


def test_it_runs_what_it_was_told_of_and_relays_the_rest(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    digests = {name: digest_of(name.encode()).hex() for name in ("free", "counted")}
    keys.write_text(KEYS.format(**digests))

    async def check(device: Device, runner: ModelRunner) -> None:
        it = Supervised(keys, device, runner)
        it.worker.start()
        infer, predict = "/v1/models/m/infer", "/v1/models/m:predict"
        assert await it.ask(infer, "free") == 299  # not told yet
        await it.tell()
        assert await it.ask(infer, "free") == 200
        assert await it.ask(predict, "free") == 200
        assert await it.ask(infer, "wrong") == 401
        assert it.relayed == [infer]
        # What is counted is counted in one place.
        assert await it.ask(infer, "counted") == 299
        assert await it.ask(infer, certificate="CN=counted") == 299
        assert await it.ask(infer, certificate="CN=other") == 401
        assert it.worker.paths.short == {}
        for path in ("/metrics", "/v1/models/other/infer", "/v1/models/m/load"):
            assert await it.ask(path, "free") == 299
        assert await it.ask(infer, "free", "GET") == 299
        assert it.counters.read(0, "m", "1").successes == 2
        keys.write_text(KEYS.format(**digests).replace("concurrent = 1", ""))
        it.worker.look_at_keys(it.worker.keys.read_again())
        assert it.worker.paths.short.keys() == it.worker.paths.usable.keys() != set()
        assert await it.ask(infer, "counted") == 200
        # Told that it is gone: the channel is given back, and requests are relayed.
        assert await it.publish() == Switched(1)
        assert await it.hear() == Left(7)
        assert await it.ask(infer, "free") == 299
        await it.worker.stop()
        it.theirs.close()
        it.counters.close()

    with DeviceManager("cpu:21-21").get_device() as device:
        config = ModelRunnerConfig(replica_to_device={0: device})
        with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
            asyncio.run(check(device, runner))
