"""Measure how fast texts of many lengths are served, and the share of padding.

    python -m bench.text
    python -m bench.text --texts 1000 --median 8 --connections 1,16,64
    python -m bench.text --texts 1000 --median 8 --spread 0
    python -m bench.text --fastembed ENV/bin/python --infinity ENV/bin/infinity_emb

An encoder of MiniLM's size with random weights is served twice: rows of different
length run together, or only rows of one length do. Each connection sends one text after
the other. The bound is a loop in one process that has all tokens beforehand, sorts the
texts by length and runs them in batches of the same limits, on one thread like the
device. It shows texts per second of the whole server's processor time, as shares of the
bound in the same run. Other work on the machine changes these less than texts per
second of wall time.

With one connection the median time of a request is shown beside that of the tokenizer
and one run of ONNX Runtime in a process. All is measured `--rounds` times in turns, and
the median of the ratios is shown.

The share of padding is measured on the same model without a server. Rows with the same
time of start belong to one batch.

`--fastembed` and `--infinity` name programs of environments that have those; they serve
the same folder (bench/text/peer_servers.py), and their texts a second of wall and of
processor time are shown beside PopGate's in the same rounds. The packages of the two
environments:

    fastembed fastapi uvicorn litserve
    infinity-emb[optimum,server] optimum[onnxruntime]==1.23.3 transformers<4.50
    datasets<3 pyarrow<19 torch==2.13.0    (those of Infinity 0.0.76)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from bench.cases.payloads import Payload
from bench.drivers.client import Client
from bench.servers.server import HOST, Server, gateway
from bench.text.encoder import (
    INPUTS,
    MEDIAN,
    SPREAD,
    WORDS,
    lengths,
    texts,
    write_encoder,
)
from bench.text.peers import known_peers
from engine import DeviceManager, ModelRunner, ModelRunnerConfig, Request, Tensor
from engine.model.ragged import MAX_PADDING, PROCESSOR_TOKENS
from popgate_onnx.compiler import CompileOptions, compile_model

TOGETHER, ALONE = "together", "alone"
Feed = dict[str, np.ndarray[Any, Any]]


def batch_of(tokens: Sequence[int]) -> Feed:
    """Return a padded batch of rows of these lengths."""
    random = np.random.default_rng(sum(tokens))
    mask = (np.arange(max(tokens)) < np.array(tokens)[:, None]).astype(np.int64)
    ids = random.integers(4, WORDS, mask.shape) * mask
    return dict(zip(INPUTS, (ids, mask), strict=True))


def sorted_batches(tokens: Sequence[int]) -> list[list[int]]:
    """Return all rows, sorted and cut where a batch would exceed the device's
    limits.
    """
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
    """Return the part of all batches that is padding."""
    padded = sum(len(batch) * max(batch) for batch in batches)
    return 1 - sum(map(sum, batches)) / padded


def bound(model: Path, batches: Sequence[Sequence[int]]) -> float:
    """Return rows per second of processor time of a loop that runs these batches."""
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


class Rates(NamedTuple):
    """Texts a second of processor time and of wall time, and the median time of a
    request in seconds."""

    processor: float
    wall: float
    median: float


def of_popgate(text: str) -> dict[str, Any]:
    """Return the document of PopGate's own form."""
    return {"inputs": {"text": [text]}}


async def served(
    server: Server,
    path: str,
    given: list[str],
    connections: int,
    document: Callable[[str], dict[str, Any]] = of_popgate,
) -> Rates:
    """Send all texts over `connections` connections."""
    waiting, took = deque(given), []

    async def one() -> None:
        async with Client(HOST, server.port, timeout=300) as client:
            while waiting:
                body = json.dumps(document(waiting.popleft())).encode()
                payload = Payload({"content-type": "application/json"}, body)
                began = time.perf_counter()
                answer = await client.post(path, payload)
                took.append(time.perf_counter() - began)
                assert answer.status == 200, answer.body

    began, since = server.cpu(), time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    seconds = time.perf_counter() - since
    count = len(given)
    return Rates(count / (server.cpu() - began), count / seconds, median(took))


def alone(model: Path, given: Sequence[str]) -> float:
    """Return the median time of the tokenizer and one run for each text, in seconds."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model.parent / "tokenizer.json"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    took = []
    for text in given:
        began = time.perf_counter()
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        feed = dict(zip(INPUTS, (ids, np.ones_like(ids)), strict=True))
        session.run(None, feed)[0].mean(1)
        took.append(time.perf_counter() - began)
    return median(took[1:])


def batches_run(path: Path, tokens: Sequence[int], in_flight: int) -> list[list[int]]:
    """Return the lengths in each batch that a device makes, with `in_flight` rows at a
    time.
    """
    began: dict[int, list[int]] = defaultdict(list)
    with DeviceManager("cpu:1").get_device() as device:
        config = ModelRunnerConfig(replica_to_device={0: device}, batching_dim=None)
        with ModelRunner(path, config) as runner:
            assert runner.ragged, runner.interface.ragged_reason
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


def _compared(options: argparse.Namespace, folder: Path) -> None:
    """Print the rates of the served model beside those of the loop and of others."""
    given = texts(options.texts, options.median, options.spread)
    tokens = lengths(options.texts, options.median, options.spread)
    counts = [int(count) for count in options.connections.split(",")]
    model = folder / "models" / TOGETHER / "1" / "model.onnx"
    batches = sorted_batches(tokens)
    print(
        f"{len(tokens)} texts, {sum(tokens) / len(tokens):.0f} tokens on average; "
        f"bound: {len(batches)} runs, {padding_of(batches):.1%} padding"
    )
    found: dict[str, list[list[float]]] = defaultdict(list)
    with ExitStack() as stack:
        cache = ("--cache-dir", str(folder / "cache"))
        ours = gateway(folder / "models", *cache, devices=f"cpu:{options.devices}")
        stack.enter_context(ours)
        ours.wait_ready(300)
        peers = [
            (one, stack.enter_context(one.start(model.parent)))
            for one in known_peers(options.fastembed, options.infinity)
        ]
        for one, server in peers:
            asyncio.run(served(server, one.path, given[:2], 1, one.document))
        for _ in range(options.rounds):
            rate = bound(model, batches)
            found["bound, all sorted beforehand"].append([rate, 1.0, 0.0])
            for count in counts:
                for name in (TOGETHER, ALONE):
                    path = f"/v1/models/{name}/infer"
                    rates = asyncio.run(served(ours, path, given, count))
                    label = f"{count:3} connections, {name}"
                    found[label].append([rates.wall, rates.processor / rate, 0.0])
                    if count == 1 and name == TOGETHER:
                        plain = alone(model, given)
                        found[label][-1][2] = rates.median / plain
                for one, server in peers:
                    rates = asyncio.run(
                        served(server, one.path, given, count, one.document)
                    )
                    label = f"{count:3} connections, {one.name}"
                    found[label].append([rates.wall, rates.processor / rate, 0.0])
    for label, rows in found.items():
        wall, share, latency = (median(column) for column in zip(*rows, strict=True))
        last = f", a request takes {latency:.2f} of it alone" if latency else ""
        print(f"{label:32} {wall:7.1f} texts/s, {share:.2f} of the bound{last}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--median", type=int, default=MEDIAN)
    parser.add_argument("--spread", type=float, default=SPREAD)
    parser.add_argument("--connections", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--devices", type=int, default=1, help="devices of PopGate, of one thread each"
    )
    parser.add_argument("--fastembed", help="Python with fastembed, fastapi, litserve")
    parser.add_argument("--infinity", help="infinity_emb of an environment")
    options = parser.parse_args()
    # A pool of this process's own: gateways of others on this machine do not share it.
    os.environ["POPGATE_POOL"] = f"bench-{os.getpid()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        each = f"instances = {options.devices}\n"
        write_encoder(folder / "models" / TOGETHER, each)
        alone_config = each + "[ragged]\nenabled = false\n"
        write_encoder(folder / "models" / ALONE, alone_config)
        _compared(options, folder)
        model = folder / "models" / TOGETHER / "1" / "model.onnx"
        compiled = folder / "encoder.popef"
        compile_model(model, compiled, CompileOptions(ragged=dict.fromkeys(INPUTS, 0)))
        tokens = lengths(options.texts, options.median, options.spread)
        for count in (int(count) for count in options.connections.split(",")):
            batches = batches_run(compiled, tokens, count)
            print(
                f"{count:3} in flight: {len(batches)} runs, largest "
                f"{max(map(len, batches))} rows, {padding_of(batches):.1%} padding"
            )


if __name__ == "__main__":
    main()
