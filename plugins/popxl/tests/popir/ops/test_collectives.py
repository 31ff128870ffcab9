"""Collectives: over groups of one replica, and over the devices of a replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import popxl
from plugins.popxl.tests.popir.runs import run
from popxl import ops
from popxl.ops import collectives
from popxl.transforms import autodiff

A, B = np.array([1.0, -2.0], np.float32), np.array([3.0, 5.0], np.float32)
FOLDS = {
    "add": A + B,
    "mean": (A + B) / 2,
    "mul": A * B,
    "min": np.minimum(A, B),
    "max": np.maximum(A, B),
    "square_add": A * A + B * B,
}


@pytest.mark.parametrize("op", FOLDS)
def test_the_tensors_of_several_devices_become_one(op: Any) -> None:
    def build(a: Any, b: Any) -> Any:
        made = collectives.all_reduce([a, b], [0, 1], op)
        assert [t.ipu for t in made] == [0, 1]
        return [ops.ipu_copy(t, 0) for t in made]

    for found in run(build, A, B):
        np.testing.assert_allclose(found, FOLDS[op])


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("all_reduce", True, True),
        ("all_reduce_identical_inputs", False, True),
        ("all_reduce_identical_grad_inputs", True, False),
    ],
)
def test_gradients_across_devices(name: str, forward: bool, backward: bool) -> None:
    def build(a: Any, b: Any) -> Any:
        ir = popxl.gir()
        make = getattr(collectives, name)
        graph = ir.create_graph(lambda x, y: make([x, y], [0, 0]), a, b)
        call = ops.call_with_info(graph, a, b)
        info: Any = autodiff(graph)
        ones = [popxl.constant(np.full(2, n, np.float32)) for n in (1, 2)]
        grads = ops.call(info.graph, *ones, inputs_dict=info.inputs_dict(call))
        return [*call.outputs, *grads]

    first, second, da, db = run(build, A, B)
    wanted = (A + B, A + B) if forward else (A, B)
    np.testing.assert_allclose((first, second), wanted)
    assert (da[0], db[0]) == ((3, 3) if backward else (1, 2))


@pytest.mark.parametrize(
    "make",
    [
        collectives.replicated_all_reduce,
        collectives.replicated_all_gather,
        collectives.replica_sharded_slice,
        collectives.replicated_slice,
        lambda t: collectives.replicated_all_gather(
            collectives.replica_sharded_slice(t)
        ),
    ],
)
def test_what_passes_one_replica_passes_its_gradient(make: Any) -> None:
    data = np.arange(6, dtype=np.float32).reshape(3, 2)

    def build(x: Any) -> Any:
        graph = popxl.gir().create_graph(make, x)
        call = ops.call_with_info(graph, x)
        info: Any = autodiff(graph)
        up = popxl.constant(np.full(call.outputs[0].shape, 2, np.float32))
        grads = ops.call(info.graph, up, inputs_dict=info.inputs_dict(call))
        return [*call.outputs, *grads]

    found, gradient = run(build, data)
    assert found.reshape(-1).tolist() == data.reshape(-1).tolist()
    assert gradient.tolist() == np.full((3, 2), 2.0).tolist()


def test_shapes_are_those_of_larger_groups() -> None:
    ir = popxl.Ir(replication=4)
    with ir.main_graph:
        x = popxl.variable(np.zeros((4, 5), np.float32))
        pairs = ir.replica_grouping(group_size=2)
        assert collectives.replicated_all_gather(x, 1).shape == (4, 20)
        joined = collectives.replicated_all_gather(x, 0, pairs, "new_axis")
        assert joined.shape == (2, 4, 5)
        shard = collectives.replica_sharded_slice(x, ir.replica_grouping())
        assert (shard.shape, shard.meta_shape) == ((5,), (4, 5))
        assert collectives.replicated_all_gather(shard).shape == (4, 5)
        assert collectives.replicated_slice(x).shape == (5,)
        assert collectives.replicated_slice(x, 0, pairs).shape == (2, 5)
        with pytest.raises(ValueError, match="equal blocks"):
            collectives.replicated_slice(x, 1)
        uneven = ir.replica_grouping_from_assignments([0, 1, 1, 0])
        with pytest.raises(NotImplementedError):
            collectives.replicated_all_reduce(x, group=uneven)


def test_names_of_results() -> None:
    ir = popxl.Ir(replication=2)
    with ir.main_graph:
        x = popxl.variable(np.ones(4, np.float32), name="x")
        assert collectives.replicated_all_gather(x).name == "x_all_gathered"
        assert collectives.replicated_slice(x).name == "x_replicated_slice"
