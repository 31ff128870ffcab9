"""Digits by several replicas, each with a share of the batch and of the weights.

python examples/popxl_programs/data_parallel_digits.py [replicas]
poprun --num-instances 2 --num-replicas 4 \
    python examples/popxl_programs/data_parallel_digits.py popdist

Each replica holds a shard of each weight. A step gathers the weights, computes
gradients for its share of the batch, adds them over all replicas, keeps its shard of
the sum and updates its shard of the weight. The losses do not depend on the number of
replicas, but for rounding.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import popdist
import popxl
from popxl import ops, transforms
from popxl.ops import collectives

DATA = Path(__file__).resolve().parents[1] / "digits"
BATCH, SIZES, RATE = 16, (64, 10), 0.3


class Layer(popxl.Module):
    """A linear layer, with gelu behind it if it is not the last."""

    def build(self, x: Any, size: int, activation: bool = True) -> Any:
        self.w = popxl.graph_input((x.shape[-1], size), popxl.float32, "w")
        self.b = popxl.graph_input((size,), popxl.float32, "b")
        y = x @ self.w + self.b
        return ops.gelu(y) if activation else y


def data() -> tuple[Any, Any]:
    """Return images as rows of 0 to 1, and their digits."""
    images = np.load(DATA / "test_images.npy")
    rows = images.reshape(len(images), -1).astype(np.float32)
    return rows / max(1.0, float(rows.max())), np.load(DATA / "test_labels.npy")


def weights(features: int) -> dict[str, Any]:
    """Return what training begins with."""
    rng = np.random.default_rng(0)
    made = {}
    for n, size in enumerate(SIZES):
        made[f"w{n}"] = rng.normal(size=(features, size)) / np.sqrt(features)
        made[f"b{n}"] = np.zeros(size)
        features = size
    return made


def sharded(value: Any, name: str, replicas: int) -> tuple[Any, Any]:
    """The variable that the host reads, and what this replica has of it."""
    if replicas == 1:
        variable = popxl.variable(value, popxl.float32, name)
        return variable, variable
    return popxl.replica_sharded_variable(value, popxl.float32, name)


def whole(shard: Any, replicas: int) -> Any:
    """The weight that all replicas have together."""
    return shard if replicas == 1 else collectives.replicated_all_gather(shard)


def own_part(gradient: Any, replicas: int) -> Any:
    """This replica's shard of the gradients of all."""
    if replicas == 1:
        return gradient
    return collectives.replicated_reduce_scatter(
        gradient, "add", configure_output_for_replicated_tensor_sharding=True
    )


def train(replicas: Any = 1, epochs: int = 2) -> tuple[list[float], Any]:
    """Train; the loss of each step, and the weights by their names."""
    images, labels = data()
    ir = popxl.Ir(replication=replicas)
    total, local = ir.replication_factor, ir.instance_replication_factor
    share = BATCH // total
    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream((share, images.shape[1]), popxl.float32, "image")
        ys = popxl.h2d_stream((share,), popxl.int32, "label")
        losses = popxl.d2h_stream((), popxl.float32, "loss")
        x = ops.host_load(xs)
        start = weights(images.shape[1])
        handles, layers = {}, []
        for n, size in enumerate(SIZES):
            layer = Layer()
            graph = ir.create_graph(layer, x, size, activation=n == 0)
            made = {}
            for name, tensor in (("w", layer.w), ("b", layer.b)):
                key = f"{name}{n}"
                handles[key], shard = sharded(start[key], key, total)
                made[tensor] = shard
            gathered = {t: whole(shard, total) for t, shard in made.items()}
            call = ops.call_with_info(graph, x, inputs_dict=gathered)
            layers.append((graph, call, made, gathered))
            (x,) = call.outputs
        probabilities = ops.softmax(x, axis=-1)
        loss, gradient = ops.nll_loss_with_softmax_grad(
            probabilities, ops.host_load(ys)
        )
        if total > 1:
            loss = collectives.replicated_all_reduce(loss, "mean")
        ops.host_store(losses, loss)
        for graph, call, made, gathered in reversed(layers):
            info: Any = transforms.autodiff(graph)
            back = ops.call_with_info(
                info.graph, gradient, inputs_dict=info.inputs_dict(call)
            )
            grads = info.fwd_parent_ins_to_grad_parent_outs(call, back)
            gradient = grads[call.parent_input(0)]
            for tensor, shard in made.items():
                part = own_part(grads[gathered[tensor]], total)
                # Each loss is the mean of its own share.
                ops.scaled_add_(shard, part, b=-RATE / total)
    session = popxl.Session(ir, "ipu_model")
    first = popdist.getReplicaIndexOffset() if local < total else 0
    mixed = np.random.default_rng(1)
    found: list[float] = []
    with session:
        for _ in range(epochs):
            order = mixed.permutation(len(images))
            for at in range(0, len(images) - BATCH + 1, BATCH):
                chosen = order[at : at + BATCH].reshape(total, share)
                own = chosen[first : first + local]
                if local == 1:
                    (own,) = own
                step = session.run({xs: images[own], ys: labels[own]})[losses]
                found.append(float(np.reshape(step, -1)[0]))
        kept = session.get_tensors_data(handles.values())
    return found, {name: kept[handle] for name, handle in handles.items()}


def main(replicas: str = "4") -> list[float]:
    """Train and say the losses."""
    losses, _ = train(int(replicas) if replicas.isdecimal() else replicas)
    print(f"{replicas} replicas: loss {losses[0]:.4f}, after a step {losses[1]:.4f}, ")
    print(f"after {len(losses)} steps {np.mean(losses[-20:]):.4f}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
