"""The cells of the comparison: model, encoding, required ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from bench.payloads import Arrays, Payload, binary_request, json_request

#: float32 of the gateway and of ONNX Runtime in process may differ by the order in
#: which a batch is summed; far below what a wrong row would show.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Scenario:
    """One model and encoding. `required` is by number of connections."""

    name: str
    model: str
    shape: tuple[int, ...]
    encode: Callable[[Arrays], Payload]
    required: Mapping[int, float] = field(default_factory=dict)

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        random = np.random.default_rng(seed)
        # Four decimals: bodies as long as those that people send (8 KB for M).
        return {"x": random.random(self.shape, np.float32).round(4)}


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
