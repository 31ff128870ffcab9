"""Stress a runner with threads: every row right, no deadlock, even if devices die.

    python -m bench.runner_stress                       # 60 s, 16 threads, 4 replicas
    python -m bench.runner_stress --kill                # devices are killed meanwhile
    python -m bench.runner_stress --seconds 5 --threads 8

Two models on the same two devices, one that runs any number of rows and one that is
compiled for four, with `batching_dim` 0; each has its replicas spread over the devices.
Threads send requests of one to nine rows, synchronously and several at once, with
memory of their own and of the library. With `--kill` device processes receive SIGKILL
at random moments. Requests may then fail with DeviceLost, and later ones must succeed
(`auto_reset`). Exit code 1 if a row was wrong, a request failed otherwise or a thread
did not end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.cases.models import small
from engine import (
    Device,
    DeviceLost,
    DeviceManager,
    ExecuteResult,
    ModelRunner,
    ModelRunnerConfig,
)
from popgate_onnx.compiler import CompileOptions, compile_model

WIDTH = 16
SCALE = np.linspace(0.5, 2.0, WIDTH, dtype=np.float32)
OFFSET = np.linspace(-1.0, 1.0, WIDTH, dtype=np.float32)
MOST_ROWS = 9
MOST_AT_ONCE = 8
#: Seconds after which a request that was not answered counts as stuck.
TIMEOUT = 60.0


@dataclass(slots=True)
class Stress:
    """Counts so far. Each thread counts for itself and adds its counts at its end."""

    end: float
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end


class Worker(threading.Thread):
    """One thread that calls."""

    def __init__(
        self, stress: Stress, runners: Sequence[ModelRunner], seed: int
    ) -> None:
        super().__init__(name=f"caller {seed}", daemon=True)
        self._stress = stress
        self._runners = runners
        self._rng = np.random.default_rng(seed)
        self._counts: Counter[str] = Counter()

    def run(self) -> None:
        try:
            while not self._stress.over:
                self._round()
        except Exception as error:
            self._stress.wrong.append(f"{self.name}: {type(error).__name__}: {error}")
        with self._stress.lock:
            self._stress.counts += self._counts

    def _round(self) -> None:
        at_once = int(self._rng.integers(1, MOST_AT_ONCE + 1))
        if self._rng.random() < 0.5:
            at_once = 1
        sent = []
        for _ in range(at_once):
            try:
                sent.append(self._send())
            except DeviceLost:
                self._counts["lost"] += 1
        for rows, result in sent:
            try:
                if not result.wait(TIMEOUT):
                    raise TimeoutError(f"no answer within {TIMEOUT:g} s")
            except DeviceLost:
                self._counts["lost"] += 1
                continue
            self._check(rows, result)

    def _send(self) -> tuple[np.ndarray, ExecuteResult]:
        rng = self._rng
        runner = self._runners[int(rng.integers(len(self._runners)))]
        count = int(rng.integers(1, MOST_ROWS + 1))
        rows = rng.normal(size=(count, WIDTH)).astype(np.float32)
        outputs = None
        if rng.random() < 0.5:
            outputs = {"y": np.empty_like(rows)}
        replica = int(rng.integers(runner.config.replication_factor))
        result = runner.execute_async({"x": rows}, outputs, replica_id=replica)
        return rows, result

    def _check(self, rows: np.ndarray, result: ExecuteResult) -> None:
        self._counts["requests"] += 1
        self._counts["rows"] += len(rows)
        if not np.allclose(result["y"], rows * SCALE + OFFSET, rtol=1e-6, atol=1e-6):
            self._stress.wrong.append(f"{self.name}: wrong rows in {result!r}")


def kill_now_and_then(stress: Stress, devices: Sequence[Device], seed: int) -> None:
    """Send SIGKILL to a running device every 0.1 to 1.5 seconds."""
    rng = np.random.default_rng(seed)
    pause = threading.Event()
    while not stress.over:
        pause.wait(float(rng.uniform(0.1, 1.5)))
        pid = devices[int(rng.integers(len(devices)))].pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            stress.counts["kills"] += 1


def answers_again(runner: ModelRunner, replica: int) -> None:
    """Return when a replica gives a result.

    Requests that meet a killed process fail with DeviceLost until then.
    """
    row = np.ones((1, WIDTH), np.float32)
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            runner.execute({"x": row}, replica_id=replica, timeout=TIMEOUT)
        except DeviceLost:
            if time.monotonic() > end:
                raise
        else:
            return


def run(
    seconds: float, threads: int, replicas: int, *, kill: bool, seed: int = 0
) -> Stress:
    """Run the threads; return the counts, whose `wrong` lists the faults."""
    stress = Stress(time.monotonic() + seconds)
    manager = DeviceManager("cpu:70-71")
    with (
        tempfile.TemporaryDirectory() as folder,
        manager.get_device() as first,
        manager.get_device() as second,
        contextlib.ExitStack() as stack,
    ):
        devices = (first, second)
        runners = [
            stack.enter_context(ModelRunner(path, config))
            for path, config in _models(Path(folder), devices, replicas)
        ]
        stress.end = time.monotonic() + seconds
        workers = [Worker(stress, runners, seed + n) for n in range(threads)]
        for worker in workers:
            worker.start()
        if kill:
            kill_now_and_then(stress, devices, seed)
        for worker in workers:
            worker.join(max(0.0, stress.end - time.monotonic()) + 2 * TIMEOUT)
            if worker.is_alive():
                stress.wrong.append(f"{worker.name} did not come to an end")
        for runner in runners:
            for replica in range(replicas):
                answers_again(runner, replica)
        stress.counts["restarts"] = sum(device.restarts for device in devices)
    return stress


def _models(
    folder: Path, devices: Sequence[Device], replicas: int
) -> list[tuple[Path, ModelRunnerConfig]]:
    placed = {n: devices[n % len(devices)] for n in range(replicas)}
    models = []
    for batch in ("auto", 4):
        path = folder / f"batch-{batch}.popef"
        compile_model(small(), path, CompileOptions(batch=batch))
        config = ModelRunnerConfig(
            replication_factor=replicas,
            replica_to_device=placed,
            auto_reset=True,
            batching_dim=0,
            timeout_ns=200_000,
        )
        models.append((path, config))
    return models


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--replicas", type=int, default=4, help="of each model")
    parser.add_argument("--kill", action="store_true", help="kill devices meanwhile")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    stress = run(
        options.seconds,
        options.threads,
        options.replicas,
        kill=options.kill,
        seed=options.seed,
    )
    print(", ".join(f"{count} {what}" for what, count in stress.counts.items()))
    for line in stress.wrong[:20]:
        print(line)
    return 1 if stress.wrong or not stress.counts["requests"] else 0


if __name__ == "__main__":
    sys.exit(main())
