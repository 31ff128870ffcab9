"""The cells of the comparison: model, encoding, requests, required ratios."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import Protocol

import numpy as np

from bench.cases.payloads import Arrays, Payload, binary_request, json_request

#: The gateway and ONNX Runtime in process may sum a batch in different orders. A wrong
#: row differs far more than this.
TOLERANCE = 1e-4
#: Number of different requests that are sent in turn.
VARIED = 256
#: Most decimals of a request's numbers; float32 has no more.
MOST_DECIMALS = 8


class Mode(StrEnum):
    """Kinds of requests of a client.

    Attributes:
        VARIED: `VARIED` requests in turn, as many clients would send them: no two have
            the same numbers, traceparent, id or Content-Length.
        SAME: the same bytes again and again.
    """

    VARIED = "varied"
    SAME = "same"


class Encode(Protocol):
    """Writes a request in one encoding."""

    def __call__(self, inputs: Arrays, request_id: str | None = None) -> Payload: ...


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its content, and its bytes."""

    inputs: dict[str, np.ndarray]
    payload: Payload
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One model and encoding. `required` is by number of connections."""

    name: str
    model: str
    shape: tuple[int, ...]
    encode: Encode
    required: Mapping[int, float] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Return the path of its requests."""
        return f"/v2/models/{self.model}/infer"

    def inputs(self, seed: int = 0, decimals: int = 4) -> dict[str, np.ndarray]:
        random = np.random.default_rng(seed)
        # Four decimals: bodies as long as those that people send (6 KB for M).
        return {"x": random.random(self.shape, np.float32).round(decimals)}

    def requests(self, mode: Mode) -> Iterator[Request]:
        """Yield the requests in turn, the same at each call.

        It is an iterator, because all requests of a large model take much memory.
        """
        if mode is Mode.SAME:
            inputs = self.inputs()
            yield Request(inputs, self.encode(inputs))
            return
        sizes: set[int] = set()
        for number in range(VARIED):
            yield self._varied(number, sizes)

    def _varied(self, number: int, sizes: set[int]) -> Request:
        """Return the request with this number; its body has a size of its own."""
        inputs = self.inputs(number, 1 + number % MOST_DECIMALS)
        source = random.Random(number)
        trace = f"00-{source.getrandbits(128):032x}-{source.getrandbits(64):016x}-01"
        request_id = f"{source.getrandbits(32):08x}"
        size = len(self.encode(inputs, request_id).body)
        # Each digit of the id makes the body longer by one, whatever the encoding.
        more = next(more for more in count() if size + more not in sizes)
        sizes.add(size + more)
        request_id += "".join(source.choices("0123456789abcdef", k=more))
        payload = self.encode(inputs, request_id)
        headers = {**payload.headers, "traceparent": trace}
        return Request(inputs, replace(payload, headers=headers), request_id)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("S-json", "small", (1, 16), json_request, {1: 0.7, 16: 1.0, 64: 1.2}),
        Scenario("M-json", "middle", (1, 784), json_request, {16: 2.8}),
        Scenario("M-binary", "middle", (1, 784), binary_request, {16: 3.5, 64: 4.5}),
        Scenario(
            "L-binary", "large", (1, 3, 224, 224), binary_request, {1: 0.65, 16: 1.1}
        ),
    )
}
