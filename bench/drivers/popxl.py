"""Compare programs of `popxl` with bare ONNX Runtime calls of the same graphs.

    python -m bench.drivers.popxl
    python -m bench.drivers.popxl --seconds 0.3 --rounds 5

Each program becomes one ONNX graph. `bare` is ONNX Runtime's own `run` of that graph
with the same number of threads, on the arrays of the session. It is the lower bound.
Ways take turns within a round; a number is the median over the rounds.

    train       two linear layers (32, 64, 10), batch 8: forward, gradients, updates
    infer       a transformer of six layers (64 tokens of 128, 4 heads): session.run
    repeat      a loop of 1,000 additions: one call of ONNX Runtime an iteration
    import      `import popxl` in a new process beside one that imports numpy
    learn       a training step of that transformer beside torch's, on as many threads;
                left out where torch is not installed
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import popxl
from engine.devices.cores import usable_cores
from engine.programs.executable import Execute, Steps, StreamIn
from engine.programs.onnx_session import OnnxSession
from popxl import ops
from popxl.transforms import autodiff

Way = Callable[[], object]


def training() -> tuple[popxl.Ir, dict[Any, Any]]:
    """Return a training step of two layers."""
    rng = np.random.default_rng(0)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream((8, 32), popxl.float32, "x")
        ys = popxl.h2d_stream((8,), popxl.int32, "y")
        out = popxl.d2h_stream((), popxl.float32, "loss")
        weights = [
            popxl.variable(rng.normal(size=shape) * 0.1, popxl.float32, name)
            for name, shape in (
                ("w0", (32, 64)),
                ("b0", (64,)),
                ("w1", (64, 10)),
                ("b1", (10,)),
            )
        ]

        def network(x: Any, w0: Any, b0: Any, w1: Any, b1: Any) -> Any:
            return ops.gelu(x @ w0 + b0) @ w1 + b1

        x = ops.host_load(xs)
        graph = ir.create_graph(network, x, *weights)
        call = ops.call_with_info(graph, x, *weights)
        probs = ops.softmax(call.outputs[0], -1)
        loss, dx = ops.nll_loss_with_softmax_grad(probs, ops.host_load(ys))
        ops.host_store(out, loss)
        info: Any = autodiff(graph, grads_required=graph.inputs[1:])
        back = ops.call_with_info(info.graph, dx, inputs_dict=info.inputs_dict(call))
        grads = info.fwd_parent_ins_to_grad_parent_outs(call, back)
        for weight in weights:
            ops.scaled_add_(weight, grads[weight], b=-0.1)
    data = rng.normal(size=(8, 32)).astype(np.float32)
    return ir, {xs: data, ys: rng.integers(0, 10, 8).astype(np.int32)}


def transformer(layers: int = 6, tokens: int = 64, width: int = 128) -> Any:
    """Return the inference of a small transformer."""
    rng = np.random.default_rng(1)
    heads, ir = 4, popxl.Ir()

    def weight(*shape: int) -> Any:
        return popxl.variable(rng.normal(size=shape) * 0.05, popxl.float32)

    def norm(t: Any) -> Any:
        ones = popxl.variable(np.ones(width, np.float32))
        zeros = popxl.variable(np.zeros(width, np.float32))
        return ops.layer_norm(t, ones, zeros)

    with ir.main_graph:
        stream = popxl.h2d_stream((tokens, width), popxl.float32, "x")
        out = popxl.d2h_stream((tokens, width), popxl.float32, "y")
        x = ops.host_load(stream)
        for _ in range(layers):
            t = norm(x)
            parts = []
            for _ in range(3):
                part = (t @ weight(width, width)).reshape((tokens, heads, -1))
                parts.append(part.transpose((1, 0, 2)))
            scores = ops.softmax(parts[0] @ parts[1].transpose((0, 2, 1)) * 0.2, -1)
            mixed = (scores @ parts[2]).transpose((1, 0, 2)).reshape((tokens, width))
            x = x + mixed @ weight(width, width)
            inner = ops.gelu(norm(x) @ weight(width, 4 * width))
            x = x + inner @ weight(4 * width, width)
        ops.host_store(out, x)
    return ir, {stream: rng.normal(size=(tokens, width)).astype(np.float32)}


Weights = list[np.ndarray[Any, Any]]


def transformer_weights(layers: int, width: int) -> list[Weights]:
    """Return for each layer the scales and shifts of two norms, and six matrices."""
    rng = np.random.default_rng(1)

    def matrix(*shape: int) -> np.ndarray[Any, Any]:
        return (rng.normal(size=shape) * 0.05).astype(np.float32)

    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    return [
        [ones, zeros, ones, zeros]
        + [matrix(width, width) for _ in range(4)]
        + [matrix(width, 4 * width), matrix(4 * width, width)]
        for _ in range(layers)
    ]


HEADS, RATE = 4, 0.01


def _layer(x: Any, *weights: Any) -> Any:
    scale, shift, scale2, shift2, *matrices = weights
    tokens, width = x.shape
    t = ops.layer_norm(x, scale, shift)
    parts = [
        (t @ matrix).reshape((tokens, HEADS, -1)).transpose((1, 0, 2))
        for matrix in matrices[:3]
    ]
    scores = ops.softmax(parts[0] @ parts[1].transpose((0, 2, 1)) * 0.2, -1)
    mixed = (scores @ parts[2]).transpose((1, 0, 2)).reshape((tokens, width))
    x = x + mixed @ matrices[3]
    inner = ops.gelu(ops.layer_norm(x, scale2, shift2) @ matrices[4])
    return x + inner @ matrices[5]


def learner(weights: list[Weights], x: Any, y: Any) -> Callable[[], float]:
    """Return a training step of the transformer; each call gives its loss."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        source = popxl.h2d_stream(x.shape, popxl.float32, "x")
        wanted = popxl.h2d_stream(y.shape, popxl.float32, "y")
        out = popxl.d2h_stream((), popxl.float32, "loss")
        variables = [[popxl.variable(w) for w in layer] for layer in weights]
        value = ops.host_load(source)
        graph = ir.create_graph(_layer, value, *variables[0])
        calls = []
        for layer in variables:
            calls.append(ops.call_with_info(graph, value, *layer))
            value = calls[-1].outputs[0]
        error = value - ops.host_load(wanted)
        ops.host_store(out, ops.mean(error * error))
        info: Any = autodiff(graph)
        gradient = error * (2 / error.nelms)
        updates: list[tuple[Any, Any]] = []
        for call, layer in zip(calls[::-1], variables[::-1], strict=True):
            given = info.inputs_dict(call)
            gradient, *found = ops.call(info.graph, gradient, inputs_dict=given)
            updates += zip(layer, found, strict=True)
        for weight, change in updates:
            ops.scaled_add_(weight, change, b=-RATE)
    session = popxl.Session(ir, "ipu_model")
    session.__enter__()
    data = {source: x, wanted: y}
    return lambda: float(session.run(data)[out])


def torch_learner(
    torch: Any, weights: list[Weights], x: Any, y: Any
) -> Callable[[], float]:
    """Return the learner in torch, with its own kernels."""
    functional = torch.nn.functional
    variables = [
        [torch.tensor(w, requires_grad=True) for w in layer] for layer in weights
    ]
    source, wanted = torch.tensor(x), torch.tensor(y)
    parameters = [weight for layer in variables for weight in layer]
    optimiser = torch.optim.SGD(parameters, lr=RATE)
    tokens, width = x.shape

    def step() -> float:
        optimiser.zero_grad()
        value = source
        for scale, shift, scale2, shift2, *matrices in variables:
            t = functional.layer_norm(value, (width,), scale, shift)
            q, k, v = (
                (t @ matrix).reshape(tokens, HEADS, -1).transpose(0, 1)
                for matrix in matrices[:3]
            )
            mixed = torch.softmax(q @ k.transpose(1, 2) * 0.2, -1) @ v
            value = value + mixed.transpose(0, 1).reshape(tokens, width) @ matrices[3]
            t = functional.layer_norm(value, (width,), scale2, shift2)
            inner = functional.gelu(t @ matrices[4], approximate="tanh")
            value = value + inner @ matrices[5]
        loss = ((value - wanted) ** 2).mean()
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def learn(seconds: float, rounds: int, tokens: int = 64, width: int = 128) -> None:
    """Print the time of a training step beside torch's, if torch is installed."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        print("learn    torch is not installed: pip install torch")
        return
    torch.set_num_threads(usable_cores())
    rng = np.random.default_rng(2)
    x, y = (rng.normal(size=(tokens, width)).astype(np.float32) for _ in range(2))
    weights = transformer_weights(6, width)
    mine, theirs = learner(weights, x, y), torch_learner(torch, weights, x, y)
    losses = np.array([(mine(), theirs()) for _ in range(10)])
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=1e-3)
    times = turns({"run": mine, "torch": theirs}, seconds, rounds)
    ratio = times["run"] / times["torch"]
    print(
        f"{'learn':8} {times['run'] * 1e6:9.1f} us, torch {times['torch'] * 1e6:9.1f} "
        f"us, x{ratio:.2f}"
    )


def bare(session: popxl.Session, inputs: dict[Any, Any]) -> Way:
    """Return ONNX Runtime's own call of the program's only graph."""
    program = session._session.program
    main = program.executable.programs[5]
    assert isinstance(main, Steps)
    (execute,) = [node for node in main.nodes if isinstance(node, Execute)]
    graph = program.executable.graphs[execute.graph]
    variables = {t.id: t.data for t in program.variables}
    streamed = {f"h2d_{stream.tensor_id}": array for stream, array in inputs.items()}
    by_variable = {
        node.variable: streamed[node.handle]
        for node in main.nodes
        if isinstance(node, StreamIn) and node.handle in streamed
    }
    known: dict[str, Any] = {**variables, **by_variable}
    types = program.executable.variables
    weights = {
        name: (known[execute.inputs[name]], types[execute.inputs[name]].data_type)
        for name in graph.weights
    }
    below = OnnxSession(graph.model, weights, threads=usable_cores())
    feed = {
        name: np.ascontiguousarray(known[variable])
        for name, variable in execute.inputs.items()
        if name not in graph.weights
    }
    names = list(execute.outputs)
    return lambda: below.raw_run(names, feed, None)


def turns(ways: dict[str, Way], seconds: float, rounds: int) -> dict[str, float]:
    """Return the seconds of one call of each way, measured in turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            count, start = 0, time.perf_counter()
            while (took := time.perf_counter() - start) < seconds:
                way()
                count += 1
            found[name].append(took / count)
    return {name: statistics.median(times) for name, times in found.items()}


def compare(name: str, made: Any, seconds: float, rounds: int) -> None:
    """Print the time of a run beside the bare call."""
    ir, inputs = made
    start = time.perf_counter()
    session = popxl.Session(ir, "ipu_model")
    session.__enter__()
    took = time.perf_counter() - start
    outputs = session.create_host_outputs()
    ways: dict[str, Way] = {
        "run": lambda: session.run_with_outputs(inputs, outputs),
        "bare": bare(session, inputs),
    }
    times = turns(ways, seconds, rounds)
    session.__exit__(None, None, None)
    ratio = times["run"] / times["bare"]
    print(
        f"{name:8} {times['run'] * 1e6:9.1f} us, bare {times['bare'] * 1e6:9.1f} us, "
        f"x{ratio:.2f}; session made and attached in {took:.2f} s"
    )


def loops(seconds: float, rounds: int) -> None:
    """Print the time of a loop's iteration beside a bare call of its body."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        v = popxl.variable(np.zeros(16, np.float32), name="v")
        graph = ir.create_graph(lambda t: t + 1, v)
        (result,) = ops.repeat(graph, 1000, v)
        ops.var_updates.copy_var_update_(v, result)
    session = popxl.Session(ir, "ipu_model")
    graphs = session._session.program.executable.graphs
    body = min(graphs.values(), key=lambda each: len(each.model))
    below = OnnxSession(body.model, {}, threads=usable_cores())
    feed = {name: np.zeros(16, np.float32) for name in below.inputs}
    names = list(below.outputs)
    with session:
        ways: dict[str, Way] = {
            "run": session.run,
            "bare": lambda: [below.raw_run(names, feed, None) for _ in range(1000)],
        }
        times = turns(ways, seconds, rounds)
    print(
        f"{'repeat':8} {times['run'] * 1e3:9.2f} us an iteration, bare "
        f"{times['bare'] * 1e3:9.2f} us, x{times['run'] / times['bare']:.2f}"
    )


def imports(rounds: int) -> None:
    """Print the processor time of importing, in new processes."""

    def took(text: str) -> float:
        code = f"import time; {text}; print(time.process_time())"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    pairs = [(took("import popxl"), took("import numpy")) for _ in range(rounds)]
    mine, numpy = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"{'import':8} {mine:.2f} s of processor time, of which numpy {numpy:.2f} s")


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    compare("train", training(), given.seconds, given.rounds)
    compare("infer", transformer(), given.seconds, given.rounds)
    loops(given.seconds, given.rounds)
    learn(given.seconds, given.rounds)
    imports(given.rounds)


if __name__ == "__main__":
    main()
