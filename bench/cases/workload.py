"""Requests with known answers: mixed models, row counts and encodings.

Every request of a pool has inputs of its own, so an answer that belongs to another
request, a mixed row or a stale buffer cannot pass for the right one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.cases.models import M_LAYERS, write_models
from bench.cases.payloads import (
    MSGPACK,
    NPY,
    Arrays,
    Payload,
    binary_request,
    json_request,
    msgpack_request,
    npy_request,
    read_answer,
    shorthand_request,
)
from bench.drivers.client import Answer
from bench.servers.reference import open_session

#: Batches and single rows are summed in different orders. A wrong row is far off.
TOLERANCE = 1e-4

ENCODINGS: Mapping[str, Callable[[Arrays], Payload]] = {
    "json": json_request,
    "shorthand": shorthand_request,
    "binary": binary_request,
    "msgpack": msgpack_request,
    "npy": npy_request,
}
ACCEPTS = (None, "application/json", MSGPACK, "application/octet-stream")


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to send, and its expected answer."""

    model: str
    encoding: str
    accept: str
    payload: Payload
    expected: Arrays

    @property
    def path(self) -> str:
        return f"/v1/models/{self.model}/infer"

    def complaint(self, answer: Answer) -> str:
        """Return the fault of the answer; empty if it is right."""
        if answer.status != 200:
            return f"{answer.status} {answer.body[:200]!r}"
        outputs = read_answer(answer.headers, answer.body)
        if set(outputs) == {""}:
            outputs = {next(iter(self.expected)): outputs[""]}
        if set(outputs) != set(self.expected):
            return f"outputs {sorted(outputs)} instead of {sorted(self.expected)}"
        for name, right in self.expected.items():
            given = outputs[name]
            if given.shape != right.shape:
                return f"{name} has shape {given.shape} instead of {right.shape}"
            if right.dtype.kind == "O":
                same = given.tolist() == right.tolist()
            else:
                same = np.allclose(given, right, TOLERANCE, TOLERANCE)
            if not same:
                return f"{name} is not the answer to this request"
        return ""


def _inputs(model: str, rows: int, source: np.random.Generator) -> Arrays:
    if model == "words":
        letters = ["a", "ß", "Ω", "語", ""]
        words = [
            "".join(source.choice(letters, source.integers(0, 12))) for _ in range(rows)
        ]
        return {"text": np.array(words, dtype=object)}
    shape: dict[str, tuple[int, ...]] = {
        "small": (16,),
        "middle": (M_LAYERS[0],),
        "mixing": (8,),
        "large": (3, 224, 224),
        "slow": (1024,),
    }
    return {"x": source.standard_normal((rows, *shape[model])).astype(np.float32)}


def _encodings(model: str) -> list[str]:
    if model == "words":
        return [name for name in ENCODINGS if name != "npy"]
    if model == "large":
        return ["binary", "msgpack", "npy"]  # 150 528 numbers as JSON take too long
    return list(ENCODINGS)


def make_jobs(sources: Path, models: Sequence[str], count: int) -> list[Job]:
    """Make `count` jobs for each model, of 1 to 5 rows, answers from ONNX Runtime.

    `sources` is the folder for the ONNX files (`NAME.onnx`).
    """
    paths = write_models(sources, *models)
    source = np.random.default_rng(0)
    jobs = []
    for model in models:
        session = open_session(paths[model])
        names = [output.name for output in session.get_outputs()]
        encodings = _encodings(model)
        large = model == "large"  # few and short, or they would take most of the time
        for number in range(count // 5 if large else count):
            inputs = _inputs(model, 1 + number % (2 if large else 5), source)
            values = session.run(names, dict(inputs))
            expected = dict(zip(names, map(np.asarray, values), strict=True))
            encoding = encodings[number % len(encodings)]
            payload = ENCODINGS[encoding](inputs)
            accept = _accept(model, number // len(encodings))
            if accept:
                headers = {**payload.headers, "Accept": accept}
                payload = replace(payload, headers=headers)
            jobs.append(Job(model, encoding, accept or "", payload, expected))
    return jobs


def _accept(model: str, number: int) -> str | None:
    choices = [*ACCEPTS, NPY] if model not in ("words",) else list(ACCEPTS)
    if model == "large":
        choices.remove("application/json")
    return choices[number % len(choices)]


def endless(jobs: Sequence[Job], seed: int) -> Iterator[Job]:
    """Yield the jobs for ever, in a random order."""
    order = random.Random(seed)
    while True:
        yield from order.sample(jobs, len(jobs))
