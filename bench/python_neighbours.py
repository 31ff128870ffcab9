"""Measure how a misbehaving Python model affects its neighbour, an ONNX model.

    python -m bench.python_neighbours                  # two minutes
    python -m bench.python_neighbours --rounds 20

Two clients call each kind of bad model without pause, in turns with rounds without
them. It shows the neighbour's median and 99th percentile in both, the outcomes of the
bad model's requests, and how soon the bad model answered a good request afterwards.
Exit code 1 if a request of the neighbour failed, a good row in a bad model's batch
failed, or the bad model did not recover.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from bench.cases.payloads import Payload, json_request
from bench.drivers.client import Client, NoAnswer
from bench.servers.server import HOST, ROOT, Server, gateway

#: The kinds of bad models, by what they do with a row of 0. They answer other rows.
BAD = {
    "sleeps 5 s": "time.sleep(5)",
    "raises": "raise ValueError('a bad row')",
    "ends": "os._exit(1)",
    "eats memory": "self.kept = [bytearray(1 << 20) for _ in range(1 << 20)]",
    "never returns": "threading.Event().wait()",
}
MODEL = """
import os, threading, time

class Bad:
    inputs = {{"x": "FP32[-1]"}}
    outputs = {{"y": "FP32[-1]"}}
    batching = True
    def __call__(self, x):
        if 0 in x:
            {what}
        return x + 1
"""
CONFIG = 'memory_limit = "512MiB"\n'
DIGIT = json_request({"image": np.ones((1, 1, 8, 8), np.float32)})
GOOD, POISON = (json_request({"x": np.full(1, n, np.float32)}) for n in (1, 0))
#: Of ten requests to the bad model, one has a bad row.
OF_TEN = 10
#: Seconds between the requests of a client: the test measures their effect, not their
#: number.
PAUSE = 0.05


async def _ask(port: int, model: str, payload: Payload) -> int:
    async with Client(HOST, port) as client:
        answer = await client.post(f"/v1/models/{model}/infer", payload)
    return answer.status


async def _neighbour(port: int, seconds: float, took: list[float]) -> int:
    """Send the neighbour one request after the other; return how many failed."""
    failed, end = 0, time.monotonic() + seconds
    async with Client(HOST, port) as client:
        while time.monotonic() < end:
            began = time.perf_counter()
            answer = await client.post("/v1/models/digits/infer", DIGIT)
            took.append(time.perf_counter() - began)
            failed += answer.status != 200
            await asyncio.sleep(0.002)
    return failed


async def _abuse(port: int, model: str, found: Counter[tuple[str, int]]) -> None:
    """Send the bad model requests until cancelled."""
    number = 0
    while True:
        number += 1
        bad = number % OF_TEN == 0
        try:
            status = await _ask(port, model, POISON if bad else GOOD)
        except (NoAnswer, TimeoutError):
            status = 0
        found["bad" if bad else "good", status] += 1
        await asyncio.sleep(PAUSE)


async def _measure(port: int, model: str, kind: str, rounds: int) -> bool:
    alone: list[float] = []
    beside: list[float] = []
    failed, found = 0, Counter[tuple[str, int]]()
    for _ in range(rounds):
        failed += await _neighbour(port, 1.0, alone)
        abuse = [asyncio.create_task(_abuse(port, model, found)) for _ in range(2)]
        failed += await _neighbour(port, 1.0, beside)
        for task in abuse:
            task.cancel()
        await asyncio.gather(*abuse, return_exceptions=True)
    began, back = time.monotonic(), False
    while not back and time.monotonic() - began < 60:
        back = await _ask(port, model, GOOD) == 200
        await asyncio.sleep(0.02)
    seconds = time.monotonic() - began
    cells = []
    for times in (alone, beside):
        p50, p99 = np.percentile(times, (50, 99)) * 1e3
        cells.append((p50, p99))
    (a50, a99), (b50, b99) = cells
    what = ", ".join(
        f"{who} {status}: {n}" for (who, status), n in sorted(found.items())
    )
    print(
        f"{kind:14} p50 {a50:6.2f} -> {b50:6.2f} ms   p99 {a99:6.2f} -> {b99:6.2f} ms "
        f"({b99 / a99:.2f})   back in {seconds:.2f} s   {what}   failed: {failed}"
    )
    return not failed and back


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        digits = root / "digits" / "1"
        digits.mkdir(parents=True)
        shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", digits)
        for number, what in enumerate(BAD.values()):
            version = root / f"bad{number}" / "1"
            version.mkdir(parents=True)
            (version / "model.py").write_text(MODEL.format(what=what))
            text = CONFIG + "[warmup]\nenabled = false\n"
            (version.parent / "config.toml").write_text(text)
        flags = ("--allow-python", "--run-timeout", "8", "--access-log", "off")
        with gateway(root, *flags, devices=None) as server:
            server.wait_ready()
            return _run(server, options.rounds)


def _run(server: Server, rounds: int) -> int:
    port = int(server.url.rpartition(":")[2])
    good = [
        asyncio.run(_measure(port, f"bad{number}", kind, rounds))
        for number, kind in enumerate(BAD)
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
