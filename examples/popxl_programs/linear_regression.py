"""A line through points: the smallest program that trains.

python examples/popxl_programs/linear_regression.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import popxl
from popxl import ops, transforms

SAMPLES, RATE = 32, 0.2


class Linear(popxl.Module):
    """A layer whose weights are inputs, kept for the caller."""

    def build(self, x: Any, size: int) -> Any:
        self.w = popxl.graph_input((x.shape[-1], size), popxl.float32, "w")
        self.b = popxl.graph_input((size,), popxl.float32, "b")
        return x @ self.w + self.b


def main() -> tuple[Any, Any]:
    """Train; the weight and bias that were found."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream((SAMPLES, 3), popxl.float32, "x")
        ys = popxl.h2d_stream((SAMPLES, 1), popxl.float32, "y")
        losses = popxl.d2h_stream((), popxl.float32, "loss")
        w = popxl.variable(np.zeros((3, 1)), popxl.float32, "w")
        b = popxl.variable(np.zeros(1), popxl.float32, "b")

        x = ops.host_load(xs)
        linear = Linear()
        graph = ir.create_graph(linear, x, 1)
        call = ops.call_with_info(graph, x, inputs_dict={linear.w: w, linear.b: b})
        error = call.outputs[0] - ops.host_load(ys)
        ops.host_store(losses, ops.mean(error * error))

        info: Any = transforms.autodiff(graph, grads_required=[linear.w, linear.b])
        back = ops.call_with_info(
            info.graph, error * (2 / SAMPLES), inputs_dict=info.inputs_dict(call)
        )
        grads = info.fwd_parent_ins_to_grad_parent_outs(call, back)
        for weight in (w, b):
            ops.scaled_add_(weight, grads[weight], b=-RATE)

    rng = np.random.default_rng(0)
    points = rng.normal(size=(SAMPLES, 3)).astype(np.float32)
    heights = points @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.25
    session = popxl.Session(ir, "ipu_model")
    with session:
        for step in range(150):
            loss = session.run({xs: points, ys: heights})[losses]
            if step % 50 == 0:
                print(f"step {step}: loss {loss:.6f}")
    found = session.get_tensor_data(w), session.get_tensor_data(b)
    print("weight", found[0].ravel(), "bias", found[1])
    return found


if __name__ == "__main__":
    main()
