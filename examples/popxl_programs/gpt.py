"""A small GPT: trained on a text, sampled from, and written for serving.

python examples/popxl_programs/gpt.py [gpt.popef]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import popir
import popxl
from popxl import ops, transforms
from popxl.ops import var_updates as updates

TEXT = "the cat sat on the mat. the dog sat on the log. " * 8
LETTERS = sorted(set(TEXT))
LENGTH, WIDTH, HEADS, LAYERS, BATCH = 16, 32, 2, 2, 8
RATE, BETA1, BETA2 = 0.01, 0.9, 0.99


def shapes() -> dict[str, tuple[int, ...]]:
    """The weights, by their names."""
    found: dict[str, tuple[int, ...]] = {
        "letters": (len(LETTERS), WIDTH),
        "places": (LENGTH, WIDTH),
        "head": (WIDTH, len(LETTERS)),
    }
    for n in range(LAYERS):
        for name in ("query", "key", "value", "out"):
            found[f"{name}{n}"] = (WIDTH, WIDTH)
        found |= {f"up{n}": (WIDTH, 4 * WIDTH), f"down{n}": (4 * WIDTH, WIDTH)}
        for name in ("first", "second"):
            found |= {f"{name}_scale{n}": (WIDTH,), f"{name}_shift{n}": (WIDTH,)}
    return found


def start() -> dict[str, Any]:
    """What training begins with."""
    rng = np.random.default_rng(0)
    return {
        name: np.ones(shape)
        if "_scale" in name
        else np.zeros(shape)
        if "_shift" in name
        else rng.normal(size=shape) * 0.1
        for name, shape in shapes().items()
    }


def gpt(at: Any, **w: Any) -> Any:
    """Scores of the next letter behind each of the letters `at`."""
    batch, length = at.shape
    mask = np.triu(np.full((length, length), -1e4, np.float32), 1)
    x = ops.gather(w["letters"], at) + w["places"]

    def norm(t: Any, name: str) -> Any:
        flat = t.reshape((-1, WIDTH))
        scale, shift = (w[f"{name[:-1]}_{part}{name[-1]}"] for part in SCALES)
        return ops.layer_norm(flat, scale, shift).reshape(t.shape)

    def heads(t: Any) -> Any:
        return t.reshape((batch, length, HEADS, -1)).transpose((0, 2, 1, 3))

    for n in range(LAYERS):
        t = norm(x, f"first{n}")
        query, key, value = (heads(t @ w[f"{k}{n}"]) for k in ("query", "key", "value"))
        scores = query @ key.transpose((0, 1, 3, 2)) * (WIDTH // HEADS) ** -0.5
        mixed = ops.softmax(scores + popxl.constant(mask), -1) @ value
        joined = mixed.transpose((0, 2, 1, 3)).reshape((batch, length, WIDTH))
        x = x + joined @ w[f"out{n}"]
        x = x + ops.gelu(norm(x, f"second{n}") @ w[f"up{n}"]) @ w[f"down{n}"]
    return x @ w["head"]


SCALES = ("scale", "shift")


def train(steps: int = 120) -> tuple[dict[str, Any], float]:
    """Train with Adam; the weights, and the last loss."""
    ir = popxl.Ir()
    shape = (BATCH, LENGTH)
    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream(shape, popxl.int32, "text")
        ys = popxl.h2d_stream(shape, popxl.int32, "next")
        losses = popxl.d2h_stream((), popxl.float32, "loss")
        variables = {k: popxl.variable(v, popxl.float32, k) for k, v in start().items()}
        x = ops.host_load(xs)
        graph = ir.create_graph(gpt, x, **variables)
        call = ops.call_with_info(graph, x, *variables.values())
        probabilities = ops.softmax(call.outputs[0], -1)
        loss, dx = ops.nll_loss_with_softmax_grad(probabilities, ops.host_load(ys))
        ops.host_store(losses, loss)
        info: Any = transforms.autodiff(graph, grads_required=graph.inputs[1:])
        back = ops.call_with_info(info.graph, dx, inputs_dict=info.inputs_dict(call))
        grads = info.fwd_parent_ins_to_grad_parent_outs(call, back)
        for name, variable in variables.items():
            zeros = np.zeros(variable.shape, np.float32)
            first = popxl.variable(zeros, name=f"{name}_first")
            second = popxl.variable(zeros, name=f"{name}_second")
            time = popxl.variable(0, popxl.float32, f"{name}_time")
            updates.accumulate_moving_average_(first, grads[variable], BETA1)
            updates.accumulate_moving_average_square_(second, grads[variable], BETA2)
            step = updates.adam_updater(
                first, second, time_step=time, beta1=BETA1, beta2=BETA2
            )
            ops.scaled_add_(variable, step, b=-RATE)
    codes = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
    rng = np.random.default_rng(0)
    session = popxl.Session(ir, "ipu_model")
    with session:
        for n in range(steps):
            begins = rng.integers(0, len(codes) - LENGTH - 1, BATCH)
            rows = np.stack([codes[at : at + LENGTH + 1] for at in begins])
            last = float(session.run({xs: rows[:, :-1], ys: rows[:, 1:]})[losses])
            if n % 40 == 0:
                print(f"step {n}: loss {last:.3f}")
    found = session.get_tensors_data(variables.values())
    return {variable.name: array for variable, array in found.items()}, last


def program(trained: dict[str, Any]) -> tuple[popxl.Ir, Any, Any]:
    """What answers: letters in, scores of the next one behind each out."""
    ir = popxl.Ir()
    with ir.main_graph:
        xs = popxl.h2d_stream((1, LENGTH), popxl.int32, "text")
        out = popxl.d2h_stream((1, LENGTH, len(LETTERS)), popxl.float32, "scores")
        variables = {k: popxl.variable(v, name=k) for k, v in trained.items()}
        ops.host_store(out, gpt(ops.host_load(xs), **variables))
    return ir, xs, out


def sample(session: Any, xs: Any, out: Any, begin: str, count: int) -> str:
    """`begin` and what the model has behind it."""
    text = begin
    for _ in range(count):
        seen = text[-LENGTH:]
        codes = [LETTERS.index(letter) for letter in seen]
        row = np.array([codes + [0] * (LENGTH - len(codes))], np.int32)
        scores = session.run({xs: row})[out][0, len(seen) - 1]
        text += LETTERS[int(scores.argmax())]
    return text


def main(target: str = "gpt.popef") -> str:
    """Train, sample and write; what was sampled."""
    trained, _ = train()
    ir, xs, out = program(trained)
    with popxl.Session(ir, "ipu_model") as session:
        text = sample(session, xs, out, "the ", 40)
    print(text)
    print(popir.export_popef(ir, target, description="a small GPT"))
    return text


if __name__ == "__main__":
    main(*sys.argv[1:])
