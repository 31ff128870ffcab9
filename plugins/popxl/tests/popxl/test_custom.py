"""Operators that programs write in Python, as ONNX nodes or NumPy functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popart._internal.ir as _ir
import popir
import popxl
from engine import ModelRunner
from popxl import ops
from popxl.custom import CustomOperator
from popxl.transforms import autodiff

X = np.array([[-2.0, -0.5, 0.0], [0.5, 1.0, 3.0]], np.float32)


@dataclass
class LeakyRelu(CustomOperator):
    """x where it is positive, else slope * x."""

    slope: float = 0.01

    def results(self, x: popxl.TensorSpec) -> popxl.TensorSpec:
        return x

    def onnx(self, b: Any, x: Any) -> Any:
        return b.map("LeakyRelu", x, alpha=self.slope)

    def onnx_gradient(self, b: Any, grads: Any, inputs: Any, outputs: Any) -> Any:
        ((dy,), (x,)) = grads, inputs
        return b.where(b.compare("Greater", x, 0), dy, dy * self.slope)


@dataclass
class NumpyLeakyRelu(CustomOperator):
    """The same as a NumPy function."""

    slope: float = 0.01

    def results(self, x: popxl.TensorSpec) -> popxl.TensorSpec:
        return x

    def numpy(self, x: Any) -> Any:
        return np.where(x > 0, x, self.slope * x)

    def numpy_gradient(self, grads: Any, inputs: Any, outputs: Any) -> Any:
        return np.where(inputs[0] > 0, grads[0], self.slope * grads[0])


class MinMax(CustomOperator):
    """The least and the largest of each row; the second input does not count."""

    differentiable = (0,)

    def results(
        self, x: popxl.TensorSpec, at: popxl.TensorSpec
    ) -> Sequence[popxl.TensorSpec]:
        if len(x.shape) != 2:
            raise ValueError("MinMax needs a matrix")
        return [popxl.TensorSpec(x.shape[:1], x.dtype)] * 2

    def numpy(self, x: Any, at: Any) -> Any:
        return x.min(1), x.max(1)

    def numpy_gradient(self, grads: Any, inputs: Any, outputs: Any) -> Any:
        (low, high), (x, _) = outputs, inputs
        below, above = ((x == each[:, None]) for each in (low, high))
        return below * grads[0][:, None] + above * grads[1][:, None]


def step(operator: Any, kind: str = "cpu") -> tuple[Any, Any]:
    """Return result and gradient of the sum of squares of what an operator gives."""
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(X)
        graph = ir.create_graph(lambda t: operator(t), x)
        info = autodiff(graph)
        assert not isinstance(info, dict)
        call = ops.call_with_info(graph, x)
        y = call.outputs[0]
        (dx,) = ops.call(info.graph, y * 2.0, inputs_dict=info.inputs_dict(call))
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in (y, dx)]
        for stream, tensor in zip(streams, (y, dx), strict=True):
            ops.host_store(stream, tensor)
    with popxl.Session(ir, kind) as session:
        found = session.run()
    return found[streams[0]], found[streams[1]]


@pytest.mark.parametrize("kind", ["cpu", "ipu_model"])
@pytest.mark.parametrize("operator", [LeakyRelu(0.1), NumpyLeakyRelu(0.1)])
def test_custom_operators_run_and_are_differentiated(operator: Any, kind: str) -> None:
    y, dx = step(operator, kind)
    expected = np.where(X > 0, X, np.float32(0.1) * X)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    slopes = np.where(X > 0, 1, np.float32(0.1))
    np.testing.assert_allclose(dx, 2 * expected * slopes, rtol=1e-6)


def test_graphs_know_them_by_their_class() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.name_scope("a"):
        x = popxl.variable(X)
        made = LeakyRelu()(x)
        named = LeakyRelu()(x, name="mine")
    assert (made.name, named.name) == ("a/leakyrelu_out", "a/mine")
    (first, _) = ir.main_graph._pb_graph.getOps()
    assert isinstance(first, _ir.op.LeakyReluOp)
    assert first.opType() == "LeakyRelu"


def test_several_results_and_gradients_of_some_inputs() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, at = popxl.variable(X), popxl.variable([1, 2])
        graph = ir.create_graph(lambda x, at: MinMax()(x, at), x, at)
        info = autodiff(graph, grads_required=graph.inputs[:1])
        assert not isinstance(info, dict)
        call = ops.call_with_info(graph, x, at)
        low, high = call.outputs[:2]
        seeds = [low * 0.0 + 1.0, high * 0.0 + 10.0]
        (dx,) = ops.call(info.graph, *seeds, inputs_dict=info.inputs_dict(call))
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in (low, high, dx)]
        for stream, tensor in zip(streams, (low, high, dx), strict=True):
            ops.host_store(stream, tensor)
        with pytest.raises(ValueError, match="needs a matrix"):
            MinMax()(popxl.variable([1.0]), at)
    with popxl.Session(ir) as session:
        found = [session.run()[each] for each in streams]
    np.testing.assert_array_equal(found[0], X.min(1))
    np.testing.assert_array_equal(found[1], X.max(1))
    np.testing.assert_array_equal(found[2], [[1, 0, 10], [1, 0, 10]])


def test_numpy_functions_run_in_loops_calls_and_branches() -> None:
    class AddOne(CustomOperator):
        calls = 0

        def results(self, x: Any) -> Any:
            return x

        def numpy(self, x: Any) -> Any:
            AddOne.calls += 1
            return x + 1

    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        graph = ir.create_graph(lambda t: AddOne()(t), popxl.TensorSpec((), x32))
        (x,) = ops.repeat(graph, 5, popxl.constant(np.float32(0)))
        (x,) = ops.call(graph, x)
        (x,) = ops.call(graph, x)
        (x,) = ops.conditional(popxl.constant(True), graph, graph, [x], [x])
        x = AddOne()(x)
        out = popxl.d2h_stream((), x32)
        ops.host_store(out, x)
    with popxl.Session(ir) as session:
        assert float(session.run()[out]) == 9
        assert float(session.run()[out]) == 9
    assert AddOne.calls == 18


x32 = popxl.float32


def test_nodes_can_be_exported_functions_cannot(tmp_path: Path) -> None:
    def program(operator: Any) -> popxl.Ir:
        ir = popxl.Ir()
        with ir.main_graph:
            x = popxl.h2d_stream(X.shape, x32, "x")
            y = popxl.d2h_stream(X.shape, x32, "y")
            ops.host_store(y, operator(ops.host_load(x)))
        return ir

    popir.export_popef(program(LeakyRelu(0.1)), tmp_path / "model.popef")
    with ModelRunner(tmp_path / "model.popef") as runner:
        found = runner.execute({"x": X})["y"]
    np.testing.assert_allclose(found, np.where(X > 0, X, np.float32(0.1) * X))
    with pytest.raises(popir.NotYet, match="give the operator ONNX nodes"):
        popir.export_popef(program(NumpyLeakyRelu()), tmp_path / "other.popef")
    with pytest.raises(popir.NotYet, match="devices of the pool do not run"):
        popxl.Session(program(NumpyLeakyRelu()), "ipu_hw")


def test_operators_of_onnx_runtimes_own_domain() -> None:
    class QuickGelu(CustomOperator):
        def results(self, x: Any) -> Any:
            return x

        def onnx(self, b: Any, x: Any) -> Any:
            return b.map("com.microsoft:QuickGelu", x, alpha=1.0)

    ir = popxl.Ir()
    with ir.main_graph:
        y = QuickGelu()(popxl.variable(X))
        out = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(out, y)
    with popxl.Session(ir) as session:
        found = session.run()[out]
    np.testing.assert_allclose(found, X / (1 + np.exp(-X)), rtol=1e-5)


def test_mistakes_are_named() -> None:
    class Empty(CustomOperator):
        def results(self, x: Any) -> Any:
            return x

    class Tanh(Empty):
        def numpy(self, x: Any) -> Any:
            return x

    class Wrong(Tanh):
        def numpy(self, x: Any) -> Any:
            return x[:1]

    class WrongNodes(Empty):
        def onnx(self, b: Any, x: Any) -> Any:
            return b.reshape(x, (6,))

    def built(operator: Any) -> popxl.Ir:
        ir = popxl.Ir()
        with ir.main_graph:
            y = operator(popxl.variable(X))
            ops.host_store(popxl.d2h_stream(y.shape, y.dtype), y)
        return ir

    with pytest.raises(NotImplementedError, match="neither `onnx` nor `numpy`"):
        built(Empty())
    with pytest.raises(ValueError, match="set `type`"):
        built(Tanh())
    with pytest.raises(NotImplementedError, match="override `results`"):
        built(type("None_", (CustomOperator,), {"numpy": lambda self, x: x})())
    with pytest.raises(popir.IrError, match=r"the nodes of WrongNodes give"):
        popxl.Session(built(WrongNodes()))
    with (
        popxl.Session(built(Wrong())) as session,
        pytest.raises(popir.RunError, match="the NumPy function Wrong returned"),
    ):
        session.run()
    with popxl.Ir().main_graph as graph:
        x = popxl.variable(X)
        forward = graph.ir.create_graph(lambda t: QuietTanh()(t), x)
        with pytest.raises(popir.IrError, match="Unable to provide"):
            autodiff(forward)


class QuietTanh(CustomOperator):
    """An operator without a gradient."""

    type = "QuietTanh"

    def results(self, x: Any) -> Any:
        return x

    def numpy(self, x: Any) -> Any:
        return np.tanh(x)
