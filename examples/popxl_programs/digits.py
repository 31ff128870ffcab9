"""Digits: two layers trained, tested in a second program, and written for serving.

python examples/popxl_programs/digits.py [digits.popef]

The shape of the original guide's MNIST application: gradients of each layer by itself,
weights carried from the program that trains to the one that tests by their names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import popir
import popxl
from popxl import ops, transforms

DATA = Path(__file__).resolve().parents[1] / "digits"
BATCH, HIDDEN, RATE = 16, 64, 0.3


class Layer(popxl.Module):
    """A linear layer, with gelu behind it where it is not the last."""

    def build(self, x: Any, size: int, activation: bool = True) -> Any:
        self.w = popxl.graph_input((x.shape[-1], size), popxl.float32, "w")
        self.b = popxl.graph_input((size,), popxl.float32, "b")
        y = x @ self.w + self.b
        return ops.gelu(y) if activation else y


def data() -> tuple[Any, Any]:
    """Images as rows of 0 to 1, and their digits."""
    images = np.load(DATA / "test_images.npy")
    rows = images.reshape(len(images), -1).astype(np.float32)
    return rows / max(1.0, float(rows.max())), np.load(DATA / "test_labels.npy")


def weights(features: int) -> dict[str, Any]:
    """What training begins with."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (features, HIDDEN), "w1": (HIDDEN, 10)}
    made = {k: rng.normal(size=s) / np.sqrt(s[0]) for k, s in shapes.items()}
    return {**made, "b0": np.zeros(HIDDEN), "b1": np.zeros(10)}


def forward(ir: popxl.Ir, x: Any, start: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Both layers; probabilities, and each layer with its call and variables."""
    made = []
    for n, size in enumerate((HIDDEN, 10)):
        layer = Layer()
        graph = ir.create_graph(layer, x, size, activation=n == 0)
        variables = {
            tensor: popxl.variable(start[f"{name}{n}"], popxl.float32, f"{name}{n}")
            for name, tensor in (("w", layer.w), ("b", layer.b))
        }
        call = ops.call_with_info(graph, x, inputs_dict=variables)
        made.append((graph, call, variables))
        (x,) = call.outputs
    return ops.softmax(x, axis=-1), made


def train(images: Any, labels: Any, epochs: int = 6) -> dict[str, Any]:
    """Train; the weights by their names."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream((BATCH, images.shape[1]), popxl.float32, "image")
        ys = popxl.h2d_stream((BATCH,), popxl.int32, "label")
        losses = popxl.d2h_stream((), popxl.float32, "loss")
        x, start = ops.host_load(xs), weights(images.shape[1])
        probabilities, layers = forward(ir, x, start)
        loss, dx = ops.nll_loss_with_softmax_grad(probabilities, ops.host_load(ys))
        ops.host_store(losses, loss)
        gradient = dx
        for graph, call, variables in reversed(layers):
            info: Any = transforms.autodiff(graph)
            back = ops.call_with_info(
                info.graph, gradient, inputs_dict=info.inputs_dict(call)
            )
            grads = info.fwd_parent_ins_to_grad_parent_outs(call, back)
            gradient = grads[call.parent_input(0)]
            for variable in variables.values():
                ops.scaled_add_(variable, grads[variable], b=-RATE)
    session = popxl.Session(ir, "ipu_model")
    order = np.random.default_rng(1)
    with session:
        for epoch in range(epochs):
            total, count = 0.0, 0
            mixed = order.permutation(len(images))
            for at in range(0, len(images) - BATCH + 1, BATCH):
                chosen = mixed[at : at + BATCH]
                inputs = {xs: images[chosen], ys: labels[chosen]}
                total, count = total + float(session.run(inputs)[losses]), count + 1
            print(f"epoch {epoch}: loss {total / count:.4f}")
    found = session.get_tensors_data(ir.main_graph.variables)
    return {variable.name: array for variable, array in found.items()}


def program(features: int, trained: dict[str, Any]) -> tuple[popxl.Ir, Any, Any]:
    """What answers: images in, probabilities out."""
    ir = popxl.Ir()
    with ir.main_graph:
        xs = popxl.h2d_stream((BATCH, features), popxl.float32, "image")
        out = popxl.d2h_stream((BATCH, 10), popxl.float32, "probabilities")
        ops.host_store(out, forward(ir, ops.host_load(xs), trained)[0])
    return ir, xs, out


def main(target: str = "digits.popef") -> float:
    """Train, test and write; the share of digits that are recognised."""
    images, labels = data()
    cut = len(images) * 3 // 4 // BATCH * BATCH
    trained = train(images[:cut], labels[:cut])
    ir, xs, out = program(images.shape[1], trained)
    right = count = 0
    with popxl.Session(ir, "ipu_model") as session:
        for at in range(cut, len(images) - BATCH + 1, BATCH):
            batch = slice(at, at + BATCH)
            guessed = session.run({xs: images[batch]})[out].argmax(axis=1)
            right, count = right + int((guessed == labels[batch]).sum()), count + BATCH
    print(f"{right / count:.1%} of {count} digits are recognised")
    print(popir.export_popef(ir, target, description="digits"))
    return right / count


if __name__ == "__main__":
    main(*sys.argv[1:])
