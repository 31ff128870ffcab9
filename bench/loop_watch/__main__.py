"""Measure the effect of large correct requests on the event loop and other clients.

    python -m bench.loop_watch                 # each case alone, then all at once
    python -m bench.loop_watch --workers 2 --only "classification of 57 M"
    python -m bench.loop_watch --transfer-memory 1024  # MiB

A few neighbours call a small model, and one connection requests `/v1/health/live`,
alone before each case and then beside it. The clients of a case are separate processes.
For each case it shows the answers, the slowest answer of health, the neighbours' 99th
percentile alone and beside it and their ratio, the most additional memory of the
gateway and its workers, and the share of the processor time that the hypervisor gave to
other guests, alone and beside the case. At the end it shows every turn of an event loop
of more than 20 ms of processor time (`POPGATE_LOOP_WATCH`), with its place in the code.

The first row is a control: processes that compute, one for each core, with the priority
of the server's threads for large work, and that request nothing. What the neighbours
lose beside these, they lose to the machine and not to the server.

Exit code 1 if there was such a turn, or an unexpected answer. With `--transfer-memory`
the same holds if the gateway took more than that and 200 MiB in a case. Times are not
judged, because other work on the machine changes them.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import quantiles
from subprocess import Popen
from typing import Any

import msgpack
import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.cases.models import write_models
from bench.servers.machine import StolenTime
from bench.servers.processes import command_line, tree
from bench.servers.server import HOST, Server, compile_models, gateway
from engine.thread_priority import NICENESS

MIB = 1 << 20
#: The times that a case is requested at least, and the seconds that it goes on.
NEIGHBOURS, SECONDS, TIMES = 4, 3.0, 2
PATIENCE = 300.0
#: MiB that a gateway may take besides the memory for transfers.
BESIDES = 200
Ask = tuple[str, dict[str, str], bytes]


def identity(kind: int, *dims: str) -> onnx.ModelProto:
    """Return a model that returns its input of any number of elements."""
    node = helper.make_node("Identity", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, kind, dims) for name in "xy")
    graph = helper.make_graph([node], "identity", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def framed(model: str, datatype: str, count: int, data: bytes, **more: Any) -> Ask:
    """Return a request in the binary extension."""
    shape = [1, count] if model == "rows" else [count]
    item: dict[str, Any] = {"name": "x", "shape": shape, "datatype": datatype}
    item["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [item], **more}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return f"/v1/models/{model}/infer", headers, head + data


def in_json(model: str, datatype: str, count: int, data: str) -> Ask:
    item = {"name": "x", "shape": [count], "datatype": datatype}
    text = json.dumps({"inputs": [item]})[:-3] + f',"data":{data}}}]}}'
    headers = {"Content-Type": "application/json"}
    return f"/v1/models/{model}/infer", headers, text.encode()


def zipped(ask: Ask) -> Ask:
    path, headers, body = ask
    return path, {**headers, "Content-Encoding": "gzip"}, gzip.compress(body, 1)


def empty_strings() -> Ask:
    return zipped(framed("texts", "BYTES", 60_000_000, bytes(240_000_000)))


def classes() -> Ask:
    count = 57 * MIB
    data = np.random.default_rng(1).random(count, np.float32).tobytes()
    outputs = [{"name": "y", "parameters": {"classification": 1}}]
    return framed("rows", "FP32", count, data, outputs=outputs)


def numbers_out(count: int) -> Ask:
    data = np.random.default_rng(1).random(count, np.float32).tobytes()
    return framed("numbers", "FP32", count, data)


def fortran() -> Ask:
    array = np.zeros(60_000_000, np.float32).tobytes()
    header = "{'descr': '<f4', 'fortran_order': True, 'shape': (8000, 7500), }"
    head = header.ljust(117).encode() + b"\n"
    body = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + array
    return "/v1/models/rows/infer", {"Content-Type": "application/x-npy"}, body


def strings(count: int) -> Ask:
    data = "[" + '"a",' * (count - 1) + '"a"]'
    return zipped(in_json("texts", "BYTES", count, data))


def different_strings() -> Ask:
    """Return strings that are objects of their own, so that freeing them takes time."""
    data = ",".join(f'"{number:07}"' for number in range(MIB - 1))
    return in_json("texts", "BYTES", MIB - 1, f"[{data}]")


def packed_strings() -> Ask:
    count = 8_000_000
    item = {"name": "x", "shape": [count], "datatype": "BYTES", "data": ["a"] * count}
    headers = {"Content-Type": "application/msgpack"}
    return "/v1/models/texts/infer", headers, msgpack.packb({"inputs": [item]})


def generated() -> Ask:
    data = json.dumps({"x": ["a"] * 4_000_000}).encode()
    return "/v2/models/texts/generate", {"Content-Type": "application/json"}, data


def one_nan() -> Ask:
    count = 12_000_000
    return in_json("numbers", "FP32", count, "[NaN," + "0.5," * (count - 2) + "1]")


#: A kind of large request, and its expected answers.
CASES: dict[str, tuple[Callable[[], Ask], set[int]]] = {
    "60 M empty strings, gzip": (empty_strings, {400, 413}),
    "classification of 57 M": (classes, {200}),
    "240 MB in, JSON out": (lambda: numbers_out(60_000_000), {422}),
    "16 MB in, JSON out": (lambda: numbers_out(4 * MIB), {200}),
    "npy in Fortran order": (fortran, {200}),
    "4 M strings in JSON, gzip": (lambda: strings(4_000_000), {400, 413}),
    "1 M strings in JSON": (lambda: strings(MIB - 1), {200}),
    "1 M different strings": (different_strings, {200}),
    "8 M strings in msgpack": (packed_strings, {400, 413}),
    "4 M strings to generate": (generated, {400, 413}),
    "48 MB of JSON with a NaN": (one_nan, {200}),
}


def attack(
    port: int, names: Sequence[str], prepared: Any, started: Any, seen: Any
) -> None:
    """Send each case again and again. Runs in a process of its own.

    In use the clients are other machines. Therefore the requests are made before the
    measurement, and the process that sends them has the lowest priority.
    """
    asks = [(name, CASES[name][0]()) for name in names]
    os.nice(19)
    prepared.put(names)
    started.wait(PATIENCE)
    until = time.monotonic() + SECONDS
    for name, (path, headers, body) in asks:
        sent = 0
        while sent < TIMES or time.monotonic() < until:
            sent += 1
            connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
            try:
                # A server that refuses early reads on only for a while.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                place = bytearray(MIB)
                while answer.readinto(place):
                    pass
                seen.put((name, answer.status))
            except OSError as error:
                seen.put((name, type(error).__name__))
            finally:
                connection.close()
    seen.put(None)


class Others:
    """The other clients: neighbours, and one that checks health."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.times: list[float] = []
        self.worst = 0.0
        self.memory = 0
        #: The share of the processor time that other guests had meanwhile.
        self.stolen = 0.0
        self._stolen = StolenTime()
        self._over = threading.Event()
        calls = [self._neighbour] * NEIGHBOURS + [self._health, self._watch]
        self._threads = [threading.Thread(target=call) for call in calls]

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.stolen = self._stolen.share

    @property
    def p99(self) -> float:
        return quantiles(self.times, n=100)[98]

    def _ask(self, method: str, path: str, body: bytes, pause: float) -> list[float]:
        connection = http.client.HTTPConnection(HOST, self.server.port, timeout=60)
        times: list[float] = []
        while not self._over.is_set():
            began = time.perf_counter()
            connection.request(method, path, body)
            connection.getresponse().read()
            times.append(time.perf_counter() - began)
            time.sleep(pause)
        connection.close()
        return times

    def _neighbour(self) -> None:
        body = json.dumps({"inputs": {"x": [[0.5] * 16]}}).encode()
        self.times += self._ask("POST", "/v1/models/small/infer", body, 0.01)

    def _health(self) -> None:
        self.worst = max(self._ask("GET", "/v1/health/live", b"", 0.005))

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.memory = max(self.memory, memory(self.server))


def memory(server: Server) -> int:
    """Return the bytes of memory that only the gateway and its workers have."""
    total = 0
    for pid in tree(server.pid):
        if pid != server.pid and "worker" not in " ".join(command_line(pid)[:4]):
            continue
        if "engine.worker" in " ".join(command_line(pid)):
            continue
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        found = [line for line in status.splitlines() if line.startswith("RssAnon")]
        total += sum(int(line.split()[1]) << 10 for line in found)
    return total


def show(what: str, alone: Others, others: Others, taken: float) -> None:
    """Print a row of effects. `taken` are MiB."""
    print(
        f"{what} health {others.worst * 1e3:4.0f} ms, "
        f"p99 {alone.p99 * 1e3:4.1f} to {others.p99 * 1e3:5.1f} ms "
        f"(x{others.p99 / alone.p99:.2f}), memory +{taken:.0f} MiB, "
        f"stolen {alone.stolen:.0%} and {others.stolen:.0%}",
        flush=True,
    )


def control(server: Server) -> None:
    """Print the effect of processes that only compute, one for each core."""
    with Others(server) as alone:
        time.sleep(SECONDS)
    compute = f"import os; os.nice({NICENESS})\nwhile True: pass"
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(Popen([sys.executable, "-c", compute]))
            stack.callback(process.kill)
        with Others(server) as others:
            time.sleep(SECONDS)
    show(f"{'no request, busy cores':53}", alone, others, 0.0)


def beside(server: Server, groups: Sequence[Sequence[str]], most: int) -> bool:
    """Run these cases, each group in its own process at the same time, and print the
    effects. Return whether the answers were right and at most `most` MiB were taken (0:
    any).
    """
    seen: Any = multiprocessing.Queue()
    prepared: Any = multiprocessing.Queue()
    started = multiprocessing.Event()
    processes = [
        multiprocessing.Process(
            target=attack, args=(server.port, names, prepared, started, seen)
        )
        for names in groups
    ]
    for process in processes:
        process.start()
    for _ in groups:
        prepared.get(timeout=PATIENCE)
    with Others(server) as alone:
        time.sleep(SECONDS)
    before = memory(server)
    with Others(server) as others:
        started.set()
        got = Counter[tuple[str, object]]()
        for _ in groups:
            got.update(iter(partial(seen.get, timeout=PATIENCE), None))
        for process in processes:
            process.join()
    name = groups[0][0] if len(groups) == 1 else "all at once"
    statuses = Counter[object]()
    for (_, status), times in got.items():
        statuses[status] += times
    taken = (others.memory - before) / MIB
    show(f"{name:28} {dict(statuses)!s:24}", alone, others, taken)
    busy = {503, 504, 429} if most or len(groups) > 1 else set()
    if most and taken > most + BESIDES:
        return False
    return all(status in CASES[case][1] | busy for case, status in got)


def run(folder: Path, workers: int, names: Sequence[str], most: int) -> bool:
    models = write_models(folder, "small")
    made = {
        "numbers": identity(TensorProto.FLOAT, "n"),
        "rows": identity(TensorProto.FLOAT, "n", "m"),
        "texts": identity(TensorProto.STRING, "n"),
    }
    for name, model in made.items():
        models[name] = folder / f"{name}.onnx"
        onnx.save(model, models[name])
    repository, watched = folder / "models", folder / "slow"
    compile_models([*models.values()], repository)
    environment = {"POPGATE_LOOP_WATCH": str(watched)}
    options: tuple[str, ...] = ("--workers", str(workers))
    if most:
        options += ("--transfer-memory", f"{most}MiB")
    with gateway(repository, *options, environment=environment) as server:
        server.wait_ready()
        print(f"{workers} process(es)")
        control(server)
        watched.unlink(missing_ok=True)  # memory of the start
        groups = [[[name]] for name in names] + [[[name] for name in names]]
        is_right = True
        for group in groups:
            is_right &= beside(server, group, most)
    lines = watched.read_text().splitlines() if watched.exists() else []
    print(f"turns of more than 20 ms of processor time: {len(lines)}")
    for line in lines:
        print("  " + line)
    return is_right and not lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.loop_watch")
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--only", action="append", choices=[*CASES])
    parser.add_argument("--transfer-memory", type=int, default=0, metavar="MIB")
    options = parser.parse_args(arguments)
    results = []
    for workers in options.workers or [1, 2]:
        with tempfile.TemporaryDirectory() as folder:
            names, most = options.only or [*CASES], options.transfer_memory
            results.append(run(Path(folder), workers, names, most))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
