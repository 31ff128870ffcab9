"""Hostile requests to text models: each is answered, and no vector is wrong.

    python -m bench.text.hostile
    python -m bench.text.hostile --requests 5000 --seed 7

Empty and 10 MB texts, lone surrogates, control characters, 10^5 texts, token ids beyond
the vocabulary, deep JSON, wrong types and random documents go to all routes, over 16
connections, among requests whose vectors are known: ONNX Runtime and the tokenizer gave
them in this process. Another process requests `/v1/health/live` without pause, and
reports the slowest answers. The same for an idle server shows the share of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import runpy
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from bench.cases.payloads import Payload
from bench.drivers.client import Client
from bench.servers.server import HOST, ROOT, Server, free_port, gateway

MANY, LARGE = 100_000, 10_000_000
REFUSED = frozenset({400, 404, 413, 415, 422, 424, 429})
EMBEDDINGS = "/openai/v1/embeddings"
SENTENCES = (
    "rows of several requests run in one batch", "the cat", "keys limit requests",
    "a device process dies", "batch", "what does Prometheus scrape?",
    "control\u0001characters\u0007 between words", "Übung macht den Meister",
    "你好 world",
)  # fmt: skip


class Case(NamedTuple):
    """A request, and the vector that a 200 must have; None: no 200 may come, unless
    `any_answer`."""

    name: str
    path: str
    body: bytes
    expected: Any = None
    any_answer: bool = False


class Cases:
    """Makes requests at random."""

    def __init__(self, folder: Path, seed: int, only: str = "") -> None:
        from tokenizers import Tokenizer

        self.random = random.Random(seed)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(256)
        self._session = onnxruntime.InferenceSession(folder / "model.onnx")
        self._names = {one.name for one in self._session.get_inputs()}
        self._known = {text: self.vector(text) for text in SENTENCES}
        self._large = json.dumps(
            {"model": "encoder", "input": "the batch " * (LARGE // 10)}
        ).encode()
        self._large_vector = self.vector("the batch " * 400)
        self._many = json.dumps({"model": "encoder", "input": ["a"] * MANY}).encode()
        self.makers: list[tuple[int, Callable[[], Case]]] = [
            (400, self.known),
            (100, self.empty),
            (100, self.surrogate),
            (100, self.ids),
            (100, self.deep),
            (150, self.wrong),
            (100, self.torn),
            (2, self.many),
            (2, self.large),
        ]

        if only:
            self.makers = [one for one in self.makers if one[1].__name__ in only]

    def vector(self, text: str) -> Any:
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        given = {name: feed[name] for name in self._names}
        vector = self._session.run(None, given)[0][0].mean(0)
        return vector / np.linalg.norm(vector)

    def next(self) -> Case:
        weights = [weight for weight, _ in self.makers]
        (maker,) = self.random.choices([make for _, make in self.makers], weights)
        return maker()

    def _case(self, name: str, path: str, document: Any, **more: Any) -> Case:
        return Case(name, path, json.dumps(document).encode(), **more)

    def known(self) -> Case:
        text = self.random.choice(SENTENCES)
        document = {"model": "encoder", "input": text}
        return self._case("known", EMBEDDINGS, document, expected=self._known[text])

    def empty(self) -> Case:
        value: Any = self.random.choice(["", [], [""], ["a", ""], None, {}])
        document = {"model": "encoder", "input": value}
        return self._case("empty", EMBEDDINGS, document)

    def surrogate(self) -> Case:
        texts = [b'"\\ud800"', b'"a\\udfff b"', b'"\xed\xa0\x80"', b'"\xff\xfe"']
        text = self.random.choice(texts)
        body = b'{"model": "encoder", "input": %b}' % text
        return Case("surrogate", EMBEDDINGS, body)

    def ids(self) -> Case:
        value = self.random.choice([1 << 20, -1, 1 << 70, 100_000, 1e300])
        name = self.random.choice(["encoder", "by_ids"])
        document = {"model": name, "input": [[5, value]]}
        return self._case("ids", EMBEDDINGS, document)

    def deep(self) -> Case:
        depth = self.random.choice([100, 10_000, 100_000])
        text = b"[" * depth if self.random.random() < 0.5 else b'{"a":' * depth
        return Case("deep", EMBEDDINGS, b'{"model": "encoder", "input": %b' % text)

    def torn(self) -> Case:
        body = json.dumps({"model": "encoder", "input": "the cat sits"}).encode()
        at = self.random.randrange(1, len(body))
        junk = bytes(self.random.randrange(256) for _ in range(3))
        path = self.random.choice([EMBEDDINGS, "/v1/models/encoder/embed"])
        return Case("torn", path, body[:at] + junk, any_answer=True)

    def wrong(self) -> Case:
        path, fields = self.random.choice(
            [
                (EMBEDDINGS, ("model", "input", "dimensions", "encoding_format")),
                ("/openai/v1/rerank", ("model", "query", "documents", "top_n")),
                ("/v2/rerank", ("model", "query", "documents")),
                ("/v1/models/encoder/embed", ("inputs", "truncate", "prompt_name")),
                ("/v1/models/encoder/similarity", ("inputs", "parameters")),
                ("/v1/models/encoder/tokenize", ("inputs", "add_special_tokens")),
                ("/v1/models/encoder/decode", ("ids", "skip_special_tokens")),
                ("/v1/models/encoder/infer", ("inputs", "parameters")),
                ("/v1/models/reranker/rerank", ("query", "texts", "raw_scores")),
                ("/v1/models/reranker/predict", ("inputs",)),
            ]
        )
        document = {name: self.value(3) for name in fields}
        if "model" in document and self.random.random() < 0.8:
            document["model"] = self.random.choice(["encoder", "reranker"])
        return self._case("wrong", path, document, any_answer=True)

    def value(self, depth: int) -> Any:
        pick = self.random.randrange(9 if depth else 7)
        if pick == 7:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        if pick == 8:
            names = ("text", "a", "name", "source_sentence", "sentences")
            return {self.random.choice(names): self.value(depth - 1)}
        plain = (None, True, -1, 1 << 62, 1e308, "cat", "\u0000\u0007")
        return plain[pick]

    def many(self) -> Case:
        return Case("many", EMBEDDINGS, self._many)

    def large(self) -> Case:
        return Case("large", EMBEDDINGS, self._large, self._large_vector)


def _wrong(case: Case, status: int, body: bytes) -> str:
    """Return why an answer is not allowed; empty if it is."""
    if status == 200:
        if case.any_answer:
            json.loads(body)
            return ""
        if case.expected is None:
            return "it was served"
        found = np.array(json.loads(body)["data"][0]["embedding"])
        gap = float(np.abs(found - case.expected).max())
        return "" if gap < 1e-4 else f"its vector is off by {gap}"
    if status not in REFUSED:
        return f"status {status}: {body[:200]!r}"
    if case.expected is not None and status != 429:
        return f"refused with {status}: {body[:200]!r}"
    json.loads(body)
    return ""


async def _attack(
    port: int, cases: Cases, count: int, connections: int
) -> Counter[str]:
    found: Counter[str] = Counter()
    left = iter(range(count))

    async def one() -> None:
        client = Client(HOST, port, timeout=120)
        for _ in left:
            case = cases.next()
            payload = Payload({"content-type": "application/json"}, case.body)
            try:
                answer = await client.post(case.path, payload)
            except (OSError, TimeoutError) as error:
                found["unanswered"] += 1
                print(f"{case.name} {case.path}: {error!r}", file=sys.stderr)
                client = Client(HOST, port, timeout=120)
                continue
            why = _wrong(case, answer.status, answer.body)
            found[f"{case.name} {answer.status}"] += 1
            if why:
                found["wrong"] += 1
                print(f"{case.name} {case.path}: {why}", file=sys.stderr)
            if answer.last:
                client = Client(HOST, port, timeout=120)

    await asyncio.gather(*(one() for _ in range(connections)))
    return found


def _watch(port: int, path: str, begun: Any, stop: Any, answer: Any) -> None:
    """Request a path again and again; send the durations of the slowest answers."""
    took: list[float] = []
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    begun.wait()
    while not stop.is_set():
        began = time.perf_counter()
        connection.request("GET", path)
        connection.getresponse().read()
        took.append(time.perf_counter() - began)
        time.sleep(0.005)
    answer.put((len(took), sorted(took)[-5:], sum(t > 0.05 for t in took)))


@contextlib.contextmanager
def _idle_server() -> Any:
    """Run a server that only answers."""
    code = (
        "from http.server import *;import sys\n"
        "class H(BaseHTTPRequestHandler):\n"
        "  protocol_version='HTTP/1.1'\n"
        "  def do_GET(s):\n"
        "    s.send_response(200);s.send_header('content-length','0');s.end_headers()\n"
        "  def log_message(s,*a):pass\n"
        "HTTPServer(('127.0.0.1',int(sys.argv[1])),H).serve_forever()\n"
    )
    port = free_port()
    with Server([sys.executable, "-c", code, str(port)], port, name="idle") as server:
        server.wait_ready(30, "/")
        yield server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds of requests: known,large")
    options = parser.parse_args()
    os.environ["POPGATE_POOL"] = f"bench-{os.getpid()}"
    make = runpy.run_path(str(ROOT / "examples" / "search" / "make_models.py"))["make"]

    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        make(ROOT / "docs", folder / "models")
        other = folder / "models" / "by_ids"
        shutil.copytree(folder / "models" / "encoder", other / "1")
        (other / "config.toml").write_text("[text]\ntoken_input = true\n")
        cases = Cases(folder / "models" / "encoder", options.seed, options.only)
        cache = ("--cache-dir", str(folder / "cache"))
        server = stack.enter_context(
            gateway(folder / "models", *cache, devices="cpu:1")
        )
        server.wait_ready(120)
        idle = stack.enter_context(_idle_server())
        context = multiprocessing.get_context("spawn")
        # Both watchers and this process begin together.
        begun = context.Barrier(3)
        stop, answers = context.Event(), [context.Queue(), context.Queue()]
        ways = ((server.port, "/v1/health/live"), (idle.port, "/"))
        watchers = [
            context.Process(target=_watch, args=(*way, begun, stop, answer))
            for way, answer in zip(ways, answers, strict=True)
        ]
        for watcher in watchers:
            watcher.start()
        begun.wait()
        began = time.monotonic()
        found = asyncio.run(
            _attack(server.port, cases, options.requests, options.connections)
        )
        seconds = time.monotonic() - began
        stop.set()
        for which, answer in zip(("live", "an idle server"), answers, strict=True):
            asked, slowest, late = answer.get(timeout=60)
            times = ", ".join(f"{1e3 * t:.1f}" for t in slowest)
            print(
                f"{which}: asked {asked} times, slowest {times} ms, {late} over 50 ms"
            )
        print(f"{sum(found.values()) - found['wrong']} requests in {seconds:.0f} s")
        for what, count in sorted(found.items()):
            print(f"  {what:20} {count}")
        print(f"wrong {found['wrong']}, unanswered {found['unanswered']}")
    sys.exit(bool(found["wrong"] or found["unanswered"]))


if __name__ == "__main__":
    main()
