"""Texts of many lengths: how fast they are served, and how much of it is padding.

    python -m bench.text
    python -m bench.text --texts 1000 --median 8 --connections 1,16,64

An encoder of MiniLM's size with random weights is served twice: rows of different
length run together, or only rows of one length do. Each connection sends one text after
the other. The bound is a loop in one process that has all texts and their tokens
beforehand, sorts them by length and runs them in batches of the same limits, on one
thread as the device does. Shown are texts a second of processor time, the whole
server's, as shares of the bound in the same run: other work on the machine changes that
less than texts a second of wall time.

The share of padding is measured on the same model without a server: the batches are
told apart by when they began.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bench.cases.payloads import Payload
from bench.drivers.client import Client
from bench.servers.server import HOST, Server, gateway
from bench.text.encoder import INPUTS, MEDIAN, WORDS, lengths, texts, write_encoder
from engine import DeviceManager, ModelRunner, ModelRunnerConfig, Request, Tensor
from engine.compiler import CompileOptions, compile_model
from engine.model.ragged import MAX_PADDING, PROCESSOR_TOKENS

TOGETHER, ALONE = "together", "alone"
Feed = dict[str, np.ndarray[Any, Any]]


def batch_of(tokens: Sequence[int]) -> Feed:
    """A padded batch of rows of these lengths."""
    random = np.random.default_rng(sum(tokens))
    mask = (np.arange(max(tokens)) < np.array(tokens)[:, None]).astype(np.int64)
    ids = random.integers(4, WORDS, mask.shape) * mask
    return dict(zip(INPUTS, (ids, mask), strict=True))


def sorted_batches(tokens: Sequence[int]) -> list[list[int]]:
    """All rows sorted and cut where a batch would exceed the device's limits."""
    batches: list[list[int]] = []
    for length in sorted(tokens):
        last = batches[-1] if batches else []
        padded = (len(last) + 1) * length
        padding = padded - sum(last) - length
        if last and padded <= PROCESSOR_TOKENS and padding <= MAX_PADDING * padded:
            last.append(length)
        else:
            batches.append([length])
    return batches


def padding_of(batches: Sequence[Sequence[int]]) -> float:
    """The part of all batches that is padding."""
    padded = sum(len(batch) * max(batch) for batch in batches)
    return 1 - sum(map(sum, batches)) / padded


def bound(model: Path, batches: Sequence[Sequence[int]]) -> float:
    """Rows a second of processor time of a loop that runs these batches."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    feeds = [batch_of(batch) for batch in batches]
    session.run(None, feeds[0])
    began = time.process_time()
    for feed in feeds:
        (hidden,) = session.run(None, feed)
        mask = feed[INPUTS[1]][:, :, None]
        (hidden * mask).sum(1) / mask.sum(1)
    return sum(map(len, batches)) / (time.process_time() - began)


async def served(
    server: Server, name: str, given: list[str], connections: int
) -> float:
    """Texts a second of processor time over so many connections."""
    waiting = deque(given)

    async def one() -> None:
        async with Client(HOST, server.port, timeout=300) as client:
            while waiting:
                document = {"inputs": {"text": [waiting.popleft()]}}
                body = json.dumps(document).encode()
                payload = Payload({"content-type": "application/json"}, body)
                answer = await client.post(f"/v1/models/{name}/infer", payload)
                assert answer.status == 200, answer.body

    began = server.cpu()
    await asyncio.gather(*(one() for _ in range(connections)))
    return len(given) / (server.cpu() - began)


def batches_run(path: Path, tokens: Sequence[int], in_flight: int) -> list[list[int]]:
    """The lengths of the batches that a device makes of so many rows at a time."""
    began: dict[int, list[int]] = defaultdict(list)
    with DeviceManager("cpu:1").get_device() as device:
        config = ModelRunnerConfig(replica_to_device={0: device}, batching_dim=None)
        with ModelRunner(path, config) as runner:
            assert runner.ragged, runner.ragged_reason
            waiting: deque[tuple[Request, int]] = deque()
            for length in [*tokens, *[0] * in_flight]:
                if len(waiting) >= in_flight or (waiting and not length):
                    request, mine = waiting.popleft()
                    request.wait()
                    began[request.submitted_ns + request.queue_ns].append(mine)
                if length:
                    feed = batch_of([length])
                    given = {name: Tensor.from_numpy(a) for name, a in feed.items()}
                    waiting.append((runner.submit(given), length))
    return list(began.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--median", type=int, default=MEDIAN)
    parser.add_argument("--connections", default="1,16,64")
    options = parser.parse_args()
    counts = [int(count) for count in options.connections.split(",")]
    # As the gateway's: others on this machine have devices of their own.
    os.environ["POPGATE_POOL"] = f"bench-{os.getpid()}"
    given = texts(options.texts, options.median)
    tokens = lengths(options.texts, options.median)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_encoder(folder / "models" / TOGETHER)
        write_encoder(folder / "models" / ALONE, "[ragged]\nenabled = false\n")
        model = folder / "models" / TOGETHER / "1" / "model.onnx"
        batches = sorted_batches(tokens)
        rate = bound(model, batches)
        print(f"{len(tokens)} texts, {sum(tokens) / len(tokens):.0f} tokens on average")
        print(
            f"bound, all sorted beforehand: {rate:.1f} texts/cpu-s, "
            f"{len(batches)} runs, {padding_of(batches):.1%} padding"
        )
        cache = ("--cache-dir", str(folder / "cache"))
        with gateway(folder / "models", *cache, devices="cpu:1") as server:
            server.wait_ready(300)
            for count in counts:
                rates = [
                    asyncio.run(served(server, model, given, count))
                    for model in (TOGETHER, ALONE)
                ]
                shares = [f"{each / rate:.2f}" for each in rates]
                print(
                    f"{count:3} connections: together {shares[0]} of the bound, one "
                    f"length at a time {shares[1]}"
                )
        compiled = folder / "encoder.popef"
        compile_model(model, compiled, CompileOptions(ragged=dict.fromkeys(INPUTS, 0)))
        for count in counts:
            batches = batches_run(compiled, tokens, count)
            print(
                f"{count:3} in flight: {len(batches)} runs, largest "
                f"{max(map(len, batches))} rows, {padding_of(batches):.1%} padding"
            )


if __name__ == "__main__":
    main()
