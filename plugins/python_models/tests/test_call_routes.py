"""Models in Python that call others through channels of their own.

Covers: plugins/python_models/src/popgate_python_models/call_routes.py,
plugins/python_models/src/popgate_python_worker/calls/routes.py,
plugins/python_models/src/popgate_python_messages/call_log.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from app.observe.metrics import ModelMetrics
from app.serving.table import ModelTable
from popgate_python_messages.call_messages import TO_MODEL, RouteWithdrawn
from popgate_python_models.call_routes import SharedRoute
from popgate_python_models.model_calls import PythonModelCalls
from tests.app.python_sources import write
from tests.app.served import ServedGateway, add
from tests.engine import models
from tests.support import WAIT, until

ROW = [1.0, 2.0, 3.0, 4.0]

#: Calls until it is told to end, and tells how often it was answered, and what failed.
CALLER = """
import asyncio, os
import numpy as np
from popgate import EngineError

WAYS = (b"sync", b"async")  # others are the server's trial

class Caller:
    inputs = {"way": "BYTES[1]", "x": "FP32[-1,4]"}
    outputs = {"count": "INT64[1]", "failed": "BYTES[-1]", "y": "FP32[-1,-1]"}

    def load(self, context):
        self.folder, self.models = context.folder.parent, context.models
        (self.folder / "pid").write_text(str(os.getpid()))

    def __call__(self, way, x):
        model = self.models["onnx"]
        self.failed, self.answered, y = set(), 0, x
        (self.folder / "count").write_bytes(bytes(8))
        with open(self.folder / "count", "r+b") as self.file:
            while True:
                try:
                    if way[0] == b"async":
                        y = asyncio.run(self.several(model, x))
                    else:
                        y = model.call({"input": x}, outputs=["output"])["output"]
                        self.tell()
                except EngineError as error:
                    self.failed.add(f"{type(error).__name__}: {error}")
                if way[0] not in WAYS or (self.folder / "end").exists():
                    break
        failed = [each.encode() for each in sorted(self.failed)]
        return {"count": [self.answered], "failed": failed, "y": y}

    async def several(self, model, x):
        async def one():
            found = await model.call_async(input=x)
            self.tell()
            return found["output"]
        return (await asyncio.gather(*(one() for _ in range(8))))[-1]

    def tell(self):
        self.answered += 1
        os.pwrite(self.file.fileno(), self.answered.to_bytes(8, "little"), 0)
"""


class Calling:
    """A caller that calls, from `__enter__` to `__exit__`; `answer` is what it says."""

    def __init__(self, served: ServedGateway, root: Path, way: str) -> None:
        self._served, self._folder, self._way = served, root / "caller", way
        self._thread = threading.Thread(target=self._ask)
        self.status = 0
        self.answer: dict[str, Any] = {}

    @property
    def count(self) -> int:
        file = self._folder / "count"
        return int.from_bytes(file.read_bytes(), "little") if file.exists() else 0

    def go_on(self, calls: int) -> None:
        """Returns when so many more have been answered."""
        before = self.count
        until(lambda: self.count >= before + calls)

    def goes_past_the_gateway(self) -> bool:
        """Return whether 200 calls let the gateway call read(2) fewer than 20 times.

        The first calls go through the gateway, until a thread has opened the route. The
        gateway reads an eventfd for each of them, or for all that are made at once.
        """
        before = reads(self._served.process.pid)
        self.go_on(200)
        return reads(self._served.process.pid) - before < 20

    def _ask(self) -> None:
        body = {"inputs": {"way": [self._way], "x": [ROW]}}
        response = self._served.client.post("/v1/models/caller/infer", json=body)
        self.status = response.status_code
        if self.status == 200:
            self.answer = {o["name"]: o["data"] for o in response.json()["outputs"]}

    def __enter__(self) -> Calling:
        (self._folder / "end").unlink(missing_ok=True)
        (self._folder / "count").unlink(missing_ok=True)
        self._thread.start()
        self.go_on(20)
        return self

    def __exit__(self, *exception: object) -> None:
        (self._folder / "end").touch()
        self._thread.join()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    add(root, "onnx")
    write(root, "caller", CALLER, "timeout = 600\n")
    return root


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[ServedGateway]:
    options = ("--allow-python", "--trust-loopback", "--run-timeout", "600")
    with ServedGateway(root, *options) as gateway:
        yield gateway.wait_ready()


def times(factor: int) -> Callable[[Path], Path]:
    """Another model in place of the first, with the same inputs and outputs."""
    return lambda path: models.write_model(
        path,
        [helper.make_node("Mul", ["input", "factor"], ["output"])],
        [models.Port("input", (-1, 4))],
        [models.Port("output", (-1, 4))],
        {"factor": np.full(4, factor, np.float32)},
    )


def counted(gateway: ServedGateway) -> int:
    """How often the called model has succeeded."""
    (stats,) = gateway.client.get("/v2/models/onnx/stats").json()["model_stats"]
    assert stats["inference_count"] == stats["inference_stats"]["success"]["count"]
    return int(stats["inference_count"])


def reads(pid: int) -> int:
    """Return how often the process has called read(2)."""
    found = re.search(r"syscr: (\d+)", Path(f"/proc/{pid}/io").read_text())
    assert found is not None
    return int(found[1])


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_calls_need_no_gateway_and_are_counted(
    served: ServedGateway, root: Path, way: str
) -> None:
    before = counted(served)
    with Calling(served, root, way) as calling:
        until(calling.goes_past_the_gateway)
        served.send(signal.SIGSTOP)
        try:
            calling.go_on(2000)
        finally:
            served.send(signal.SIGCONT)
        calling.go_on(20)
    assert calling.answer["failed"] == []
    assert counted(served) - before == calling.answer["count"][0]
    assert calling.answer["y"] == served.infer("onnx", input=[ROW])["output"]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_the_called_model_is_swapped_without_a_failed_call(
    served: ServedGateway, root: Path, way: str
) -> None:
    with Calling(served, root, way) as calling:
        for factor in (3, 5, 7):
            add(root, "onnx", times(factor))
            assert served.client.post("/v1/models/onnx/load").status_code == 200
            calling.go_on(200)
    assert calling.answer["failed"] == []
    assert calling.answer["y"] == [7 * x for x in ROW]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_device_that_dies_is_called_again_when_it_is_back(
    served: ServedGateway, root: Path, way: str
) -> None:
    with Calling(served, root, way) as calling:
        for _ in range(2):
            devices = served.client.get("/v1/devices").json()["devices"]
            (pid,) = [d["pid"] for d in devices if d["id"].startswith("cpu")]
            os.kill(pid, signal.SIGKILL)
            calling.go_on(200)
    assert {each.split(":")[0] for each in calling.answer["failed"]} <= {"DeviceLost"}


def test_what_a_killed_caller_was_answered_is_counted_and_nothing_is_left(
    served: ServedGateway, root: Path
) -> None:
    devices = served.client.get("/v1/devices").json()["devices"]
    pids = [d["pid"] for d in devices if d["id"].startswith("cpu")]
    open_before = []
    for _ in range(3):
        before = counted(served)
        with Calling(served, root, "sync") as calling:
            calling.go_on(300)
            os.kill(int((root / "caller" / "pid").read_text()), signal.SIGKILL)
        assert calling.status == 503
        # One may have been under way whose answer had no time to be told.
        assert counted(served) - before - calling.count in (0, 1)
        until(lambda: served.client.get("/v2/models/caller/ready").status_code == 200)
        served.wait_ready()
        open_before.append([descriptors(pid) for pid in (served.process.pid, *pids)])

    def as_before() -> bool:
        now = map(descriptors, (served.process.pid, *pids))
        return all(n <= m for n, m in zip(now, open_before[0], strict=True))

    until(as_before, open_before)


def test_routes_are_withdrawn_from_processes_of_which_some_have_just_ended() -> None:
    nothing: Any = None
    route = SharedRoute("m", "1", nothing, nothing, ModelMetrics("m", "1"))

    async def check() -> None:
        calls = PythonModelCalls(ModelTable(), lambda name: (), nothing, WAIT, WAIT)
        calls.open()
        peers = []
        for name in "abc":
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            calls.attach(name, lambda number: None, mine)
            peers.append(theirs)
        await asyncio.sleep(0)
        for process in calls._processes:
            process.routes._routes |= {1: route, 2: route}
        for ended in peers[1:]:
            ended.close()
        calls.model_changed("m")
        assert [process.name for process in calls._processes] == ["a"]
        for number in (1, 2):
            assert TO_MODEL.receive(peers[0]) == (RouteWithdrawn(number), [])
        calls.close()
        peers[0].close()

    asyncio.run(check())
