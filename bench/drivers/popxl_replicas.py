"""Compare PopXL programs on several replicas with a lower bound, in one run.

    python -m bench.drivers.popxl_replicas
    python -m bench.drivers.popxl_replicas --rounds 9 --only step reduce

Ways take turns within a round; a number is the median over the rounds.

    step        a data-parallel training step (512, 512, 512, batch 128 a replica) of R
                replicas, beside R times ONNX Runtime's own runs of its graphs; in
                processor time on one core, then in time on all cores
    reduce      an all-reduce of 64 MB over 4 replicas, beside NumPy's sum of the arrays
    instances   the same over 2 instances, beside `a + b`; and how often an instance of
                16 on all cores is switched while it waits for the others
    mpi         over 2 machines (addresses of the loopback), beside MPI.Allreduce
    cache       a session of a program of 12 layers, loaded beside compiled
    rows        rows of 1 KB from a 4 GB file: how much memory the process has more
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import popxl
from popdist.poprun import mpiexec
from popir.collectives import reduced
from popir.grouping import Collective, strided
from popir.instances import connect
from popxl import ops, transforms
from popxl.ops import collectives

Way = Callable[[], object]
MEGABYTES_64 = 16 << 20
"""Elements of float32."""


def in_turns(
    ways: dict[str, Way], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the median milliseconds of each way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = clock()
            way()
            if number:  # the first warms up
                times[name].append(1e3 * (clock() - start))
    return {name: statistics.median(taken) for name, taken in times.items()}


def show(what: str, found: dict[str, float]) -> None:
    """Print times, each with its ratio to the last."""
    *_, last = found.values()
    words = [f"{name} {ms:.2f} ms (x{ms / last:.2f})" for name, ms in found.items()]
    print(f"{what}: {', '.join(words)}", flush=True)


def _training(replicas: int) -> tuple[popxl.Ir, Any, Any]:
    ir = popxl.Ir(replication=replicas)
    rng = np.random.default_rng(0)

    def layers(x: Any, w0: Any, w1: Any) -> Any:
        return ops.gelu(x @ w0) @ w1

    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream((128, 512), popxl.float32)
        x = ops.host_load(xs)
        w = [
            popxl.variable(rng.normal(size=(512, 512)) * 0.05, popxl.float32)
            for _ in range(2)
        ]
        graph = ir.create_graph(layers, x, *w)
        call = ops.call_with_info(graph, x, *w)
        info: Any = transforms.autodiff(graph, grads_required=graph.inputs[1:])
        back = ops.call_with_info(
            info.graph, call.outputs[0], inputs_dict=info.inputs_dict(call)
        )
        grads = info.fwd_parent_ins_to_grad_parent_outs(call, back)
        for weight in w:
            total = grads[weight]
            if replicas > 1:
                total = collectives.replicated_all_reduce(total, "mean")
            ops.scaled_add_(weight, total, b=-1e-4)
        out = popxl.d2h_stream((128, 512), popxl.float32)
        ops.host_store(out, call.outputs[0])
    return ir, xs, out


def _bare(session: popxl.Session, replicas: int) -> Way:
    """Run all graphs of a program by ONNX Runtime alone, once for each replica."""
    from engine.programs.onnx_session import OnnxSession

    calls = []
    for graph in session._session.program.executable.graphs.values():
        loaded = OnnxSession(graph.model, {}, threads=1)
        feed = {
            name: np.full([int(n or 1) for n in port.shape], 0.01, np.float32)
            for name, port in loaded.inputs.items()
        }
        calls.append((loaded.raw_run, list(loaded.outputs), feed))

    def run() -> None:
        for _ in range(replicas):
            for call, names, feed in calls:
                call(names, feed, None)

    return run


def step(rounds: int) -> None:
    """Measure a data-parallel step beside bare calls."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        for replicas in (2, 4):
            ir, xs, _ = _training(replicas)
            data = np.random.default_rng(1).normal(size=(replicas, 128, 512))
            inputs = {xs: data.astype(np.float32)}
            with popxl.Session(ir, "ipu_model") as session:
                ways: dict[str, Way] = {
                    "step": lambda s=session, i=inputs: s.run(i),  # type: ignore[misc]
                    "bare": _bare(session, replicas),
                }
                found = in_turns(ways, 5 * rounds, time.process_time)
                show(f"step of {replicas} replicas, one core", found)
    finally:
        os.sched_setaffinity(0, cores)
    with contextlib.ExitStack() as stack:
        ways = {}
        for replicas in (2, 1):
            ir, xs, _ = _training(replicas)
            data = np.random.default_rng(1).normal(size=(replicas, 128, 512))
            given = {xs: data.astype(np.float32) if replicas > 1 else data[0]}
            session = stack.enter_context(popxl.Session(ir, "ipu_model"))
            ways[f"R={replicas}"] = lambda s=session, i=given: s.run(i)  # type: ignore[misc]
        ways["one bare call of one thread"] = _bare(session, 1)
        show("step on all cores", in_turns(ways, 5 * rounds))


def reduce(rounds: int) -> None:
    """Measure an all-reduce in one process."""
    rng = np.random.default_rng(0)
    arrays = [rng.random(MEGABYTES_64, np.float32) for _ in range(4)]
    a, b, c, d = arrays
    ways: dict[str, Way] = {
        "all-reduce": lambda: reduced("add", arrays),
        "a + b + c + d": lambda: a + b + c + d,
    }
    show("64 MB over 4 replicas of one process", in_turns(ways, rounds))


def _as_instance(elements: int, rounds: int, beside: str) -> None:
    instances = connect()
    this = instances.identity
    groups = strided(this.replicas, 1, None)
    collective = Collective("reduce", "all_reduce", groups, "add")
    given = {
        this.offset + n: np.random.rand(elements).astype(np.float32)
        for n in range(this.local_replicas)
    }
    (array, *_) = given.values()
    other = array.copy()

    def reduce() -> None:
        instances.exchanged("bench", collective, given)

    def others() -> None:
        if beside == "MPI.Allreduce":
            from mpi4py import MPI

            MPI.COMM_WORLD.Allreduce(array, np.empty_like(array))
        elif this.index == 0:
            np.add(array, other)

    ways: dict[str, Way] = {"all-reduce": reduce, beside: others}
    times: dict[str, list[float]] = {name: [] for name in ways}
    used: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            instances.barrier()
            start, before = time.perf_counter(), time.process_time()
            way()
            if number:
                times[name].append(1e3 * (time.perf_counter() - start))
                used[name].append(1e3 * (time.process_time() - before))
    instances.barrier()
    if this.index == 0:
        what = f"{4e-6 * elements:.3f} MB over {this.count} instances"
        show(what, {name: statistics.median(taken) for name, taken in times.items()})
        found = {name: statistics.median(taken) for name, taken in used.items()}
        show("  processor time of an instance", found)


def _started(count: int, elements: int, rounds: int, beside: str, *how: str) -> None:
    command = [
        *(sys.executable, "-c", "from popdist.poprun import main; main()", *how),
        *(
            "--num-instances",
            str(count),
            sys.executable,
            "-m",
            "bench.drivers.popxl_replicas",
        ),
        *("--instance", str(elements), str(rounds), beside),
    ]
    environment = {**os.environ, "HYDRA_LAUNCHER": "fork"}
    subprocess.run(command, check=True, env=environment)


def instances(rounds: int) -> None:
    """Measure an all-reduce over instances of this machine."""
    _started(2, MEGABYTES_64, rounds, "a + b")
    _started(16, 1000, 10 * rounds, "a + b")


def mpi(rounds: int) -> None:
    """Measure an all-reduce over MPI."""
    if mpiexec() is None:
        print("mpi: not there; make test-mpi installs it")
        return
    hosts = ("--host", "127.0.0.1,127.0.0.2")
    _started(2, MEGABYTES_64, rounds, "MPI.Allreduce", *hosts)


def _layers(count: int) -> popxl.Ir:
    ir = popxl.Ir()
    rng = np.random.default_rng(0)

    def layer(x: Any, w: Any, v: Any) -> Any:
        one, zero = np.ones(64, np.float32), np.zeros(64, np.float32)
        y = ops.layer_norm(x, popxl.constant(one), popxl.constant(zero))
        h = ops.gelu(y @ w)
        s = ops.softmax(h @ ops.transpose(h), 1)
        return x + (s @ h) @ v

    with ir.main_graph:
        xs = popxl.h2d_stream((16, 64), popxl.float32)
        x = ops.host_load(xs)
        for _ in range(count):
            w = popxl.variable(rng.normal(size=(64, 256)), popxl.float32)
            v = popxl.variable(rng.normal(size=(256, 64)), popxl.float32)
            x = layer(x, w, v)
        out = popxl.d2h_stream(x.shape, x.dtype)
        ops.host_store(out, x)
    return ir


def cache(rounds: int) -> None:
    """Measure loading a session beside compiling it."""
    popxl.Session(_layers(1), "ipu_model")  # imports
    with tempfile.TemporaryDirectory() as folder:

        def made(where: str) -> Callable[[popxl.Ir], object]:
            def make(ir: popxl.Ir) -> object:
                options = ir._pb_ir.getSessionOptions()
                options.enableEngineCaching = bool(where)
                options.cachePath = where
                return popxl.Session(ir, "ipu_model")

            return make

        times: dict[str, list[float]] = {"loaded": [], "compiled": []}
        for number in range(rounds + 1):
            for name, make in (("loaded", made(folder)), ("compiled", made(""))):
                ir = _layers(12)
                start = time.perf_counter()
                make(ir)
                if number:
                    times[name].append(1e3 * (time.perf_counter() - start))
    show("a session of 12 layers", {n: statistics.median(t) for n, t in times.items()})


def rows(rounds: int) -> None:
    """Measure loads of rows from a file of which only a small part is read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        count = (4 << 30) // 1024
        with path.open("wb") as file:
            file.truncate(4 << 30)
        data = np.memmap(path, np.float32, "r+", shape=(count, 256))
        ir = popxl.Ir()
        with ir.main_graph, popxl.in_sequence():
            buffer = popxl.remote_buffer((256,), popxl.float32, 64)
            offset = popxl.h2d_stream((), popxl.uint32)
            out = popxl.d2h_stream((256,), popxl.float32)
            step = count // 64
            for n in range(64):
                popxl.remote_variable(data[n * step], buffer, n)
            whole = popxl.remote_buffer((count, 256), popxl.float32, 1)
            popxl.remote_variable(data, whole, 0)
            ops.host_store(out, ops.remote_load(buffer, ops.host_load(offset)))
        with popxl.Session(ir, "ipu_model") as session:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for n in range(64 * rounds):
                session.run({offset: np.uint32(n % 64)})
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"rows: {after / 1024:.0f} MB at most, {(after - before) / 1024:.1f} more"
        )


WAYS: dict[str, Callable[[int], None]] = {
    "step": step,
    "reduce": reduce,
    "instances": instances,
    "mpi": mpi,
    "cache": cache,
    "rows": rows,
}


def main() -> None:
    """Run the selected measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--instance", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.instance:
        elements, rounds, beside = given.instance
        _as_instance(int(elements), int(rounds), beside)
        return
    for name in given.only:
        WAYS[name](given.rounds)


if __name__ == "__main__":
    main()
