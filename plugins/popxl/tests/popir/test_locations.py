"""Devices and tiles of tensors in called graphs, at copies and in gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import popxl
from popxl import ops, transforms
from popxl.errors import UndefinedValue

ONES = np.ones(2, np.float32)


class Layer(popxl.Module):
    w: popxl.Tensor
    b: popxl.Tensor

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        self.w = popxl.graph_input((2,), popxl.float32, "w")
        self.b = popxl.graph_input((2,), popxl.float32, "b")
        return x * self.w + self.b


def test_layers_on_devices_of_their_own_are_trained() -> None:
    ir = popxl.Ir()
    weights, calls = [], []
    with ir.main_graph, popxl.in_sequence():
        x: Any = popxl.variable(ONES)
        for device in range(2):
            with popxl.ipu(device):
                layer = Layer()
                graph = ir.create_graph(layer, x)
                w = popxl.variable(ONES * 3, name=f"w{device}")
                b = popxl.variable(ONES, name=f"b{device}")
                call = ops.call_with_info(
                    graph, x, inputs_dict={layer.w: w, layer.b: b}
                )
                x = call.outputs[0]
                assert x.ipu == w.ipu == b.ipu == device
                info: Any = transforms.autodiff(graph)
                calls.append((device, call, info, w, b))
                weights += [w, b]
                if device == 0:
                    x = x.copy_to_ipu(1)
        dx = x
        for device, call, info, w, b in reversed(calls):
            with popxl.ipu(device):
                back = ops.call_with_info(
                    info.graph, dx, inputs_dict=info.inputs_dict(call)
                )
                found = info.fwd_parent_ins_to_grad_parent_outs(call, back)
                assert [t.ipu for t in found.values()] == [device] * 3
                ops.add_(w, found[w])
                ops.add_(b, found[b])
            dx = back.outputs[0]
            if device == 1:
                dx = dx.copy_to_ipu(0)
    session = popxl.Session(ir, "ipu_model")
    with session:
        session.run()
    # The result is 3 * (3 * 1 + 1) + 1 = 13, which serves as its own gradient.
    values = [session.get_tensor_data(t)[0] for t in weights]
    assert values == [3 + 13 * 3, 1 + 13 * 3, 3 + 13 * 4, 1 + 13]


def test_results_of_graphs_are_where_their_operators_are() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(ONES)

        def there(t: popxl.Tensor) -> popxl.Tensor:
            with popxl.ipu(3):
                return t + 1

        graph = ir.create_graph(there, x)
        (called,) = ops.call(graph, x)
        (repeated,) = ops.repeat(graph, 2, x)
        condition = popxl.constant(True)
        (chosen,) = ops.conditional(condition, graph, graph, [x], [x])
        assert [t.ipu for t in (called, repeated, chosen, x)] == [3] * 4
        assert condition.ipu == 0
        (second,) = ops.call(ir.create_graph(lambda t: ops.call(graph, t)[0], x), x)
        assert second.ipu == 3


@pytest.mark.parametrize("device", [0, 2])
def test_inputs_are_where_they_are_first_read(device: int) -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.ipu(device):
        x = popxl.variable(ONES)

        def first(t: popxl.Tensor, u: popxl.Tensor) -> popxl.Tensor:
            with pytest.raises(UndefinedValue):
                t.ipu  # noqa: B018
            assert u.copy_to_ipu(5).ipu == 5
            assert u.ipu == device
            made = t + 1
            assert t.ipu == device
            assert t._pb_tensor.getVirtualGraphId() == device
            return made

        ir.create_graph(first, x, x)


def test_copies_read_where_they_copy_from() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, y = popxl.variable(ONES), popxl.variable(ONES)
        assert (x.copy_to_ipu(1, 0).ipu, x.ipu) == (1, 0)
        assert (x + popxl.constant(ONES)).ipu == 0
        with popxl.io_tiles():
            z = popxl.variable(ONES) + 1
        assert (ops.io_tile_copy(z).tile_set, z.tile_set) == ("compute", "io")
        assert (ops.io_tile_copy(y).tile_set, y.tile_set) == ("io", "compute")

        def copied(t: popxl.Tensor) -> popxl.Tensor:
            return (t * t).copy_to_ipu(1)

        info: Any = transforms.autodiff(ir.create_graph(copied, x))
        given, *_ = info.graph.inputs
        assert (given.ipu, info.graph.outputs[0].ipu) == (1, 0)
