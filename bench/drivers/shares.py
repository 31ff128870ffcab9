"""Check that two keys at a busy device receive shares by their weights.

    python -m bench.drivers.shares                # one process, then two workers
    python -m bench.drivers.shares --workers 1 --seconds 20

Each key has closed loops of its own. The result is the ratio of the work done for the
two keys, divided by the ratio of their weights: 1 is exact. If both call one model,
work is counted in equal requests or in rows. If each calls its own, work is the time of
the device (`nv_inference_compute_infer_duration_us`).

Exit code 1 if a case is off by more than 10 %. Other work on the machine changes the
time of single requests, and so the counts.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import re
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from bench.cases.models import slow
from bench.servers.server import HOST, Server, compile_models, gateway

SECONDS, LOOPS, MOST_OFF = 10.0, 48, 0.1
#: More requests wait than run together, or nothing would have to be shared.
CONFIG = "max_batch_size = 16\n"
SIZE = 512
ROUNDS = {"one": 128, "quick": 64, "slow": 256}
_TIME = re.compile(
    r'^nv_inference_compute_infer_duration_us\{model="(\w+)".*\} (\S+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Case:
    """The weights of two keys, their models, and the rows of their requests."""

    name: str
    weights: tuple[int, int]
    models: tuple[str, str] = ("one", "one")
    rows: tuple[int, int] = (1, 1)


CASES = (
    Case("1:1, equal requests", (1, 1)),
    Case("3:1, equal requests", (3, 1)),
    Case("1:1, requests of 1 and 16 rows", (1, 1), rows=(1, 16)),
    Case("1:1, a quick and a slow model", (1, 1), ("quick", "slow")),
    Case("3:1, a quick and a slow model", (3, 1), ("quick", "slow")),
)


def keys_of(case: Case) -> str:
    """Return a file of keys whose names are the keys."""
    entries = []
    for name, weight in zip("ab", case.weights, strict=True):
        digest = hashlib.sha256(name.encode()).hexdigest()
        entries.append(
            f'[[key]]\nname = "{name}"\nsha256 = "{digest}"\nweight = {weight}\n'
        )
    return 'anonymous = ["metadata", "metrics"]\n' + "".join(entries)


class Loops:
    """The closed loops of one key; `rows` counts answered rows."""

    def __init__(self, server: Server, key: str, model: str, rows: int) -> None:
        self._over = threading.Event()
        self._port, self._key, self._size = server.port, key, rows
        self._path = f"/v1/models/{model}/infer"
        asked = {"inputs": {"x": [[0.5] * SIZE] * rows}}
        binary = {"parameters": {"binary_data_output": True}}
        self._body = json.dumps({**asked, **binary}).encode()
        self._rows = [0] * LOOPS
        self._threads = [
            threading.Thread(target=self._ask, args=(number,))
            for number in range(LOOPS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def rows(self) -> int:
        return sum(self._rows)

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=60)
        headers = {"X-API-Key": self._key, "Content-Type": "application/json"}
        while not self._over.is_set():
            connection.request("POST", self._path, self._body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {text[:200]!r}")
            self._rows[number] += self._size
        connection.close()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def times(server: Server) -> dict[str, float]:
    """Return the device time of each model so far, in microseconds."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        return {n: float(v) for n, v in _TIME.findall(answer.read().decode())}


def share(repository: Path, case: Case, workers: int, seconds: float) -> float:
    """Return the ratio of two keys' shares, divided by the ratio of their weights."""
    keys = repository.parent / "keys.toml"
    keys.write_text(keys_of(case))
    options = ("--workers", str(workers), "--keys", str(keys))
    with gateway(repository, *options, devices="cpu:1") as server:
        server.wait_ready()
        loops = [
            Loops(server, key, model, rows)
            for key, model, rows in zip("ab", case.models, case.rows, strict=True)
        ]
        try:
            time.sleep(2)  # their shares settle
            rows, before = [each.rows for each in loops], times(server)
            time.sleep(seconds)
            done = [float(each.rows - n) for each, n in zip(loops, rows, strict=True)]
            after = times(server)
        finally:
            for each in loops:
                each.end()
    if case.models[0] != case.models[1]:
        done = [after[name] - before[name] for name in case.models]
    return done[0] / done[1] * case.weights[1] / case.weights[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.drivers.shares")
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args(arguments)
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = []
        for model, rounds in ROUNDS.items():
            sources.append(folder / f"{model}.onnx")
            sources[-1].write_bytes(slow(SIZE, rounds).SerializeToString())
        compile_models(sources, folder / "compiled")
        for model in ROUNDS:
            (folder / "models" / model / "1").mkdir(parents=True)
            (folder / "models" / model / "config.toml").write_text(CONFIG)
            compiled = folder / "compiled" / f"{model}.popef"
            compiled.rename(folder / "models" / model / "1" / "model.popef")
        for workers in options.workers or [1, 2]:
            for case in CASES:
                found = share(folder / "models", case, workers, options.seconds)
                off = max(found, 1 / found) - 1
                worst = max(worst, off)
                print(f"{workers} process(es), {case.name:32} x{found:.2f}", flush=True)
    return 0 if worst <= MOST_OFF else 1


if __name__ == "__main__":
    sys.exit(main())
