"""A front with a small model behind it, and a client that speaks ASGI to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from app.http.asgi import WHOLE, Message, Receive, Scope, Send
from app.http.front import InferFront
from app.limits import DEFAULT_LIMITS, Limits
from app.observe.metrics import ModelMetrics
from app.serving.absent import Absent
from app.serving.pending import Pending
from app.serving.service import Service
from app.serving.table import ModelEntry, ModelTable
from app.spec import ModelSpec, TensorSpec
from engine import EngineError, Tensor


class Submitted(Pending):
    """A request to the `Doubler`."""

    queue_ns, compute_ns, batch_rows = 1000, 2000, 1

    def resolve(self, error: Exception | None = None) -> None:
        if error is None and not self.done:
            doubled = self.inputs["x"].numpy() * np.float32(2)
            self.outputs = {"y": Tensor.from_numpy(doubled)}
        super().resolve(error)


class Doubler:
    """A runner of y = 2x, as little as there can be of one.

    How a request ends is decided by `when`: within `submit`, in the next turn of the
    loop, or (`never`) only when a test resolves it.
    """

    def __init__(self, when: str = "soon", error: EngineError | None = None) -> None:
        self.when = when
        self.error = error
        self.refuse: EngineError | None = None
        self.submitted: list[Submitted] = []
        self.deadlines: list[float | None] = []
        self.priorities: list[int] = []
        self.arrived = asyncio.Event()

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        priority: int = 0,
    ) -> Submitted:
        if self.refuse is not None:
            raise self.refuse
        request = Submitted(inputs, deadline, on_done, priority)
        self.submitted.append(request)
        self.deadlines.append(deadline)
        self.priorities.append(priority)
        self.arrived.set()
        if self.when == "now":
            request.resolve(self.error)
        elif self.when == "soon":
            asyncio.get_running_loop().call_soon(request.resolve, self.error)
        return request


def spec(name: str = "m", version: str = "1") -> ModelSpec:
    x, y = (TensorSpec.make(n, "FP32", (-1, 2)) for n in "xy")
    return ModelSpec(name, version, (x,), (y,), 8)


def entry(
    runner: Doubler,
    name: str = "m",
    version: str = "1",
    limits: Limits = DEFAULT_LIMITS,
) -> ModelEntry:
    stats = ModelMetrics(name, version)
    return ModelEntry(spec(name, version), runner, stats, limits=limits)


async def teapot(scope: Scope, receive: Receive, send: Send) -> None:
    """What stands behind the front: answers everything with 418."""
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def front(
    runner: Doubler,
    limits: Limits = DEFAULT_LIMITS,
    timeout: float = 60.0,
    absent: Absent | None = None,
) -> InferFront:
    """A front that serves the model `m`, version 1, with `runner`."""
    table = ModelTable(limits, absent=absent)
    table.publish("m", [entry(runner, limits=limits)])
    return InferFront(teapot, Service(table, timeout=timeout))


class Late(Absent):
    """Knows of a model `late` that is loading."""

    def explain(self, name: str, version: str | None) -> str | None:
        return "it is loading" if name == "late" else None


class Client:
    """One request over ASGI: the scope, the messages in, the messages out."""

    def __init__(
        self,
        app: Any,
        path: str = "/v1/models/m/infer",
        body: bytes | list[bytes] = b'{"inputs":{"x":[1,2]}}',
        headers: dict[str, str] | None = None,
        method: str = "POST",
        **scope: Any,
    ) -> None:
        self.app = app
        chunks = [body] if isinstance(body, bytes) else body
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        for index, chunk in enumerate(chunks):
            more = index + 1 < len(chunks)
            self.push(chunk, more=more)
        self.scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            **scope,
        }
        self.sent: list[Message] = []
        self.received = 0
        self._asked = asyncio.Event()

    def push(self, chunk: bytes, *, more: bool) -> None:
        self.incoming.put_nowait(
            {"type": "http.request", "body": chunk, "more_body": more}
        )

    def disconnect(self, *, is_whole: bool = False) -> None:
        self.incoming.put_nowait({"type": "http.disconnect", WHOLE: is_whole})

    async def _receive(self) -> Message:
        self.received += 1
        self._asked.set()
        return await self.incoming.get()

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def asked(self, times: int) -> None:
        """Returns when the application has asked for so many messages."""
        while self.received < times:
            self._asked.clear()
            await self._asked.wait()

    async def run(self) -> Client:
        await self.app(self.scope, self._receive, self._send)
        return self

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(bytes(message["body"]) for message in self.sent[1:])

    @property
    def json(self) -> Any:
        assert int(self.headers[b"content-length"]) == len(self.body)
        return json.loads(self.body)
