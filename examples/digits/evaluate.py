"""Post the held-out digits to a running gateway in every encoding; compare accuracy.

    make serve                                  # in another terminal
    python examples/digits/evaluate.py [--url http://127.0.0.1:8000]

All images go in one request, in every encoding and answered in every encoding. Then
they go one by one, several at a time, so that the gateway batches them. Each time the
digits that come back must be the very ones that ONNX Runtime gives in this process;
the exit status is 1 if they are not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
from formats import ANSWERS, REQUESTS, read_answer
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
Digits = NDArray[np.int64]
Images = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Way:
    """How the images are sent and answered: encodings, and images in a request."""

    request: str
    answer: str
    images_at_once: int


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What came back for all images in one way."""

    way: Way
    digits: Digits


class Refused(Exception):
    """The gateway did not answer with tensors; the message is what it said."""


class Client:
    """Posts images to one model; no more than `concurrency` requests at a time."""

    def __init__(self, http: httpx.AsyncClient, model: str, concurrency: int) -> None:
        self._http = http
        self._url = f"/v1/models/{model}/infer"
        self._turns = asyncio.Semaphore(concurrency)

    async def recognise(self, images: Images, way: Way) -> Result:
        step = way.images_at_once
        parts = await asyncio.gather(
            *(
                self._post(images[row : row + step], way)
                for row in range(0, len(images), step)
            )
        )
        return Result(way, np.concatenate(parts))

    async def _post(self, images: Images, way: Way) -> Digits:
        # An .npy answer holds one output, so the request has to say which one.
        outputs = ["digit"] if way.answer == "npy" else []
        body = REQUESTS[way.request]({"image": images}, outputs)
        headers = {**body.headers, "Accept": ANSWERS[way.answer]}
        async with self._turns:
            response = await self._http.post(
                self._url, content=body.content, headers=headers
            )
        if response.is_error:
            raise Refused(f"{way}: {response.status_code} {response.text}")
        answer = read_answer(response.headers, response.content)
        return next(iter(answer.values())) if way.answer == "npy" else answer["digit"]


def ways(images: int) -> list[Way]:
    whole = [
        Way(request, answer, images)
        for request in REQUESTS
        for answer in ANSWERS
        if (request, answer) != ("npy", "npy")  # nowhere to say which output
    ]
    one_by_one = [
        Way(request, request if request in ("msgpack", "binary") else "JSON", 1)
        for request in REQUESTS
    ]
    return whole + one_by_one


def recognise_in_process(images: Images) -> Digits:
    session = onnxruntime.InferenceSession(
        HERE / "digits.onnx", providers=["CPUExecutionProvider"]
    )
    (digits,) = session.run(["digit"], {"image": images})
    return np.asarray(digits, np.int64)


async def recognise_everywhere(
    url: str, model: str, concurrency: int, images: Images
) -> list[Result]:
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        client = Client(http, model, concurrency)
        return [await client.recognise(images, way) for way in ways(len(images))]


def accuracy(digits: Digits, labels: Digits) -> str:
    correct = int((digits == labels).sum())
    return f"{correct}/{len(labels)} = {correct / len(labels):.2%}"


def show(results: Sequence[Result], expected: Digits, labels: Digits) -> Table:
    table = Table("Sent as", "Answered in", "Requests", "Accuracy", "", box=SIMPLE)
    for result in results:
        same = np.array_equal(result.digits, expected)
        table.add_row(
            result.way.request,
            result.way.answer,
            str(-(-len(labels) // result.way.images_at_once)),
            accuracy(result.digits, labels),
            "[green]as in process" if same else "[red]different",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare accuracy over HTTP.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the gateway")
    parser.add_argument("--model", default="digits", help="its name for digits.onnx")
    parser.add_argument("--concurrency", type=int, default=16, help="open requests")
    parser.add_argument("--images", type=int, help="of the 360; the first [all]")
    options = parser.parse_args()

    images: Images = np.load(HERE / "test_images.npy")[: options.images]
    labels: Digits = np.load(HERE / "test_labels.npy")[: options.images]
    expected = recognise_in_process(images)
    work = recognise_everywhere(options.url, options.model, options.concurrency, images)
    try:
        results = asyncio.run(work)
    except Refused as error:
        sys.exit(f"error: {error}")
    except httpx.TransportError as error:
        sys.exit(f"error: no gateway at {options.url} ({error}); is it running?")
    console = Console()
    console.print(show(results, expected, labels))
    console.print(f"In process, with ONNX Runtime: {accuracy(expected, labels)}")
    return int(any(not np.array_equal(r.digits, expected) for r in results))


if __name__ == "__main__":
    sys.exit(main())
