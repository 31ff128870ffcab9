"""Check the answers of unrelated clients that share one gateway and its batches.

    python -m bench.isolation                  # a minute
    python -m bench.isolation --seconds 600 --clients 128

The gateway serves one batched model with priority levels, whose rows take a while. Each
request has a kind: ordinary, with a deadline that is long, short or unreachable, of a
high or a low level, poisoned (it makes the graph fail), or of a client that closes its
connection before the body is complete, at once, or after a while. Meanwhile the model
is replaced again and again. It shows the outcomes of each kind.

Exit code 1 if an answer was wrong, another client's, or later than its deadline allows.
The same holds if a poisoned request did not fail alone, another request failed, or a
request stayed in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.cases.models import looping
from bench.cases.payloads import Payload, binary_request, json_request, read_answer
from bench.drivers.client import Answer, Client, CutAnswer, NoAnswer
from bench.servers.reference import open_session
from bench.servers.server import HOST, Server, compile_models, gateway

WIDTH, ROUNDS, PLACES = 256, 60, 16
POISON = 99  # an index that the table does not have
MODEL = "picky"
CONFIG = """
max_batch_size = 8
max_queue_size = 64
priority_levels = 3
"""
#: An answer may be this much later than its deadline, because of the network, this
#: process, and other work on the machine.
SLACK = 1.0
#: By kind: its weight, and the timeout in seconds (0: the server's).
KINDS = {
    "ordinary": (6, 0.0),
    "long": (3, 20.0),
    "short": (3, 0.15),
    "unreachable": (1, 0.0005),
    "high": (2, 5.0),
    "low": (2, 5.0),
    "poisoned": (2, 0.0),
    "leaves": (4, 0.0),
    "half": (1, 0.0),
}
PRIORITIES = {"high": 1, "low": 3}
#: Allowed statuses by kind. 429 and 504 if a deadline or a full queue is near.
ALLOWED = {
    "unreachable": {200, 429, 504},
    "poisoned": {400, 429, 504},
    "leaves": {0},
    "half": {0},
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, ready to send, and the expected row."""

    kind: str
    payload: Payload
    timeout: float
    expected: np.ndarray


@dataclass(slots=True)
class Seen:
    """Outcomes of requests, by kind and status (0: the client has left)."""

    over: bool = False
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    swaps: int = 0
    #: Longest delay of this process itself, in seconds.
    lag: float = 0.0


def picky() -> onnx.ModelProto:
    """Make `looping`, plus a row of a table, chosen by each row's index."""
    model = looping(WIDTH, ROUNDS)
    graph = model.graph
    for node in graph.node:
        if node.op_type == "Loop":
            node.output[0] = "turned"
    table = np.arange(PLACES * WIDTH, dtype=np.float32).reshape(PLACES, WIDTH)
    graph.initializer.append(numpy_helper.from_array(table, "table"))
    graph.input.append(helper.make_tensor_value_info("index", TensorProto.INT64, ["n"]))
    graph.node.append(helper.make_node("Gather", ["table", "index"], ["row"]))
    graph.node.append(helper.make_node("Add", ["turned", "row"], ["y"]))
    onnx.checker.check_model(model)
    return model


def prepare(folder: Path) -> tuple[Path, list[Asked]]:
    """Return the repository, and requests of every kind with their answers."""
    source, models = folder / f"{MODEL}.onnx", folder / "models"
    source.write_bytes(picky().SerializeToString())
    done = compile_models([source], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (models / MODEL / "1").mkdir(parents=True)
    (folder / f"{MODEL}.popef").rename(models / MODEL / "1" / "m.popef")
    (models / MODEL / "config.toml").write_text(CONFIG)
    session = open_session(source)
    numbers = np.random.default_rng(3)
    asked = []
    for kind, (often, timeout) in KINDS.items():
        for number in range(often * 8):
            x = numbers.standard_normal((1 + number % 2, WIDTH)).astype(np.float32)
            index = numbers.integers(0, PLACES, len(x))
            (expected,) = session.run(["y"], {"x": x, "index": index})
            if kind == "poisoned":
                index[-1] = POISON
            inputs: dict[str, np.ndarray] = {"x": x, "index": index}
            payload = (binary_request if number % 3 else json_request)(inputs)
            payload = with_parameters(payload, kind, timeout)
            asked.append(Asked(kind, payload, timeout, np.asarray(expected)))
    return models, asked


def with_parameters(payload: Payload, kind: str, timeout: float) -> Payload:
    """Return the request with its timeout and priority, as parameters of
    the document.
    """
    headers = dict(payload.headers)
    length = int(headers.get("Inference-Header-Content-Length", len(payload.body)))
    document = json.loads(payload.body[:length])
    parameters = document.setdefault("parameters", {})
    if timeout:
        parameters["timeout"] = round(timeout * 1e6)
    if kind in PRIORITIES:
        parameters["priority"] = PRIORITIES[kind]
    head = json.dumps(document).encode()
    if "Inference-Header-Content-Length" in headers:
        headers["Inference-Header-Content-Length"] = str(len(head))
    return Payload(headers, head + payload.body[length:])


async def leave(asked: Asked, port: int, chance: random.Random) -> None:
    """Send the request, or half of it, and hang up."""
    body = asked.payload.body
    lines = [f"POST /v1/models/{MODEL}/infer HTTP/1.1", f"host: {HOST}"]
    lines += [f"{name}: {value}" for name, value in asked.payload.headers.items()]
    lines += [f"content-length: {len(body)}", "", ""]
    _, writer = await asyncio.open_connection(HOST, port)
    writer.write("\r\n".join(lines).encode())
    writer.write(body[: len(body) // 2] if asked.kind == "half" else body)
    await asyncio.sleep(chance.choice((0.0, 0.01, 0.1)))
    writer.transport.abort()


def complaint(asked: Asked, answer: Answer, took: float, lag: float) -> str:
    """Return the fault of an answer; empty if it is right."""
    allowed = ALLOWED.get(asked.kind, {200, 429, 504})
    if answer.status not in allowed:
        return f"{asked.kind}: {answer.status} {answer.body[:200]!r}"
    if answer.status == 504 and not asked.timeout:
        return f"{asked.kind}: 504 without a deadline of its own"
    if answer.status == 429 and "retry-after" not in answer.headers:
        return f"{asked.kind}: 429 without Retry-After"
    if asked.timeout and took > asked.timeout + SLACK + lag:
        return f"{asked.kind}: {answer.status} after {took:.3f} s of {asked.timeout}"
    if answer.status != 200:
        return ""
    given = read_answer(answer.headers, answer.body)["y"]
    if given.shape != asked.expected.shape:
        return f"{asked.kind}: shape {given.shape} instead of {asked.expected.shape}"
    # Rows of the table are whole numbers apart, so a wrong row is far off.
    if not np.allclose(given, asked.expected, 1e-3, 1e-3):
        return f"{asked.kind}: the answer is another's"
    return ""


async def ask(server: Server, asked: Sequence[Asked], seed: int, seen: Seen) -> None:
    """Act as one client after the other, each with a random request."""
    chance = random.Random(seed)
    async with Client(HOST, server.port) as client:
        while not seen.over:
            one = chance.choice(asked)
            if one.kind in ("leaves", "half"):
                await leave(one, server.port, chance)
                seen.statuses[one.kind, 0] += 1
                continue
            began = time.monotonic()
            try:
                answer = await client.post(f"/v1/models/{MODEL}/infer", one.payload)
            except (NoAnswer, CutAnswer, TimeoutError) as error:
                seen.wrong.append(f"{one.kind}: {type(error).__name__} {error}")
                continue
            seen.statuses[one.kind, answer.status] += 1
            wrong = complaint(one, answer, time.monotonic() - began, seen.lag)
            if wrong:
                seen.wrong.append(wrong)


async def swap(server: Server, models: Path, seen: Seen) -> None:
    """Replace the model by an equal one, again and again."""
    place = models / MODEL / "1"
    content = (place / "m.popef").read_bytes()
    async with Client(HOST, server.port, timeout=60) as client:
        while not seen.over:
            (place / ".new").write_bytes(content)
            (place / ".new").rename(place / "m.popef")
            answer = await client.post(f"/v1/models/{MODEL}/load", Payload({}, b""))
            seen.swaps += 1
            if answer.status != 200:
                seen.wrong.append(f"load: {answer.status} {answer.body[:200]!r}")
            await asyncio.sleep(0.2)


async def watch(seen: Seen) -> None:
    """Measure how late this process wakes up, because it shares the gateway's cores."""
    while not seen.over:
        began = time.monotonic()
        await asyncio.sleep(0.01)
        seen.lag = max(seen.lag, time.monotonic() - began - 0.01)


async def run(
    server: Server, models: Path, asked: Sequence[Asked], count: int, seconds: float
) -> Seen:
    """Run everything at once for so long; then check that nothing is in flight."""
    seen = Seen()
    async with asyncio.TaskGroup() as group:
        group.create_task(watch(seen))
        group.create_task(swap(server, models, seen))
        for seed in range(count):
            group.create_task(ask(server, asked, seed, seen))
        await asyncio.sleep(seconds)
        seen.over = True
    async with Client(HOST, server.port) as client:
        end = time.monotonic() + 10
        while True:
            document = json.loads((await client.get("/v1/devices")).body)
            left = sum(device["in_flight"] for device in document["devices"])
            if not left:
                break
            if time.monotonic() > end:
                seen.wrong.append(f"{left} requests are still in flight")
                break
            await asyncio.sleep(0.05)
    return seen


def show(seen: Seen) -> None:
    print(f"{seen.statuses.total()} requests, {seen.swaps} swaps")
    for kind in KINDS:
        found = {s: n for (k, s), n in sorted(seen.statuses.items()) if k == kind}
        print(
            f"  {kind:<9} {', '.join(f'{n} x {s or None}' for s, n in found.items())}"
        )


def run_all(seconds: float, count: int) -> list[str]:
    """Return the faults; empty if there were none."""
    with tempfile.TemporaryDirectory() as name:
        models, asked = prepare(Path(name))
        with gateway(models, devices="cpu:1") as server:
            server.wait_ready()
            seen = asyncio.run(run(server, models, asked, count, seconds))
            show(seen)
            if server.stop() != 0:
                seen.wrong.append("the server did not end with 0")
            if "Traceback" in server.log(1000):
                seen.wrong.append(f"the log has a traceback:\n{server.log()}")
    return seen.wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=48)
    options = parser.parse_args()
    os.environ.setdefault("POPGATE_POOL", f"isolation-{os.getpid()}")
    wrong = run_all(options.seconds, options.clients)
    for line in wrong[:10]:
        print(f"WRONG: {line}")
    if len(wrong) > 10:
        print(f"and {len(wrong) - 10} more")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
