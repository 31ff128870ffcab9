"""Compare `popgate.Client` with `tritonclient[http]`, in turns on one server.

    python -m bench.clients                 # S, M and L, 15 rounds
    python -m bench.clients --rounds 5

Both make the request from an array, send it in binary over one kept connection, and
give back an array. It prints the microseconds of a call and the client's own processor
time within them. The server and the machine take the rest. Exit code 1 if
`popgate.Client` took longer in a cell.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton

from bench.cases.models import write_models
from bench.servers.machine import describe
from bench.servers.server import Server, compile_models, gateway
from popgate_client import Client

#: Scenario: model, shape of its input, calls a round.
CELLS = {
    "S": ("small", (1, 16), 400),
    "M": ("middle", (1, 784), 400),
    "L": ("large", (1, 3, 224, 224), 40),
}


def measure(call: Callable[[], Any], count: int) -> tuple[float, float]:
    """Return microseconds per call, and this process's processor time within them."""
    call()
    started, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    wall = time.perf_counter() - started
    return wall / count * 1e6, (time.process_time() - used) / count * 1e6


def calls(server: Server, model: str, x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return a call by each client, after checking that both give the same result."""
    stock = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    own = Client(server.url)

    def tritonclient() -> np.ndarray:
        tensor = triton.InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        given: np.ndarray = stock.infer(model, [tensor]).as_numpy("y")
        return given

    def popgate() -> np.ndarray:
        return own.infer(model, x=x)["y"]

    np.testing.assert_array_equal(tritonclient(), popgate())
    return {"tritonclient": tritonclient, "popgate": popgate}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(describe())
    slower = False
    with tempfile.TemporaryDirectory() as folder:
        names = [model for model, _, _ in CELLS.values()]
        paths = write_models(Path(folder, "onnx"), *names)
        compile_models(list(paths.values()), Path(folder, "models"))
        with gateway(Path(folder, "models")) as server:
            server.wait_ready()
            for cell, (model, shape, count) in CELLS.items():
                x = np.random.default_rng(0).random(shape, np.float32)
                ways = calls(server, model, x)
                taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
                for number in range(rounds):
                    turns = list(ways.items())
                    for way, call in turns if number % 2 else reversed(turns):
                        taken[way].append(measure(call, count))
                shown = []

                for way, runs in taken.items():
                    wall, own = (statistics.median(v) for v in zip(*runs, strict=True))

                    shown.append(f"{way} {wall:7.0f} us (its own {own:5.0f})")
                ratio = statistics.median(
                    a[0] / b[0]
                    for a, b in zip(
                        taken["popgate"], taken["tritonclient"], strict=True
                    )
                )
                slower |= ratio >= 1
                print(f"{cell}  {'   '.join(shown)}   x{ratio:.2f}", flush=True)
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
