"""Programs as users of `popxl` write them: they build, train and run."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popart
import popxl
from popxl import ops
from popxl.transforms import autodiff


class Linear(popxl.Module):
    """A layer whose weights are inputs that it keeps."""

    def build(self, x: Any, size: int) -> Any:
        self.w = popxl.graph_input((x.shape[-1], size), popxl.float32, "w")
        self.b = popxl.graph_input((size,), popxl.float32, "b")
        return x @ self.w + self.b


def test_a_linear_regression_finds_its_line() -> None:
    ir = popxl.Ir()
    rng = np.random.default_rng(3)
    x = rng.normal(size=(32, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.25
    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream((32, 3), popxl.float32, "x")
        ys = popxl.h2d_stream((32, 1), popxl.float32, "y")
        w = popxl.variable(np.zeros((3, 1)), popxl.float32, "w")
        b = popxl.variable(np.zeros(1), popxl.float32, "b")
        layer = Linear()
        data = ops.host_load(xs)
        graph = ir.create_graph(layer, data, 1)
        call = ops.call_with_info(graph, data, inputs_dict={layer.w: w, layer.b: b})
        error = call.outputs[0] - ops.host_load(ys)
        out = popxl.d2h_stream((), popxl.float32, "loss")
        ops.host_store(out, ops.mean(error * error))
        info = autodiff(graph, grads_required=[layer.w, layer.b])
        assert not isinstance(info, dict)
        scaled = error * (2 / 32)
        back = ops.call_with_info(
            info.graph, scaled, inputs_dict=info.inputs_dict(call)
        )
        grads = info.fwd_parent_ins_to_grad_parent_outs(call, back)
        for each in (w, b):
            ops.scaled_add_(each, grads[each], b=-0.2)
    session = popxl.Session(ir, "ipu_model")
    main: Any = session._session.program.executable.programs[5]
    (execute,) = [each for each in main.nodes if hasattr(each, "graph")]
    assert {"w", "b"} <= set(execute.outputs.values()), "one call of ONNX Runtime"
    with session:
        losses = [float(session.run({xs: x, ys: y})[out]) for _ in range(150)]
    assert losses[-1] < 1e-6 < losses[0]
    found = session.get_tensor_data(w)
    np.testing.assert_allclose(found, [[1.0], [-2.0], [0.5]], atol=1e-3)
    np.testing.assert_allclose(session.get_tensor_data(b), [0.25], atol=1e-3)


def test_weights_move_when_the_original_moves_them() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        v = popxl.variable(np.zeros(2, np.float32), name="v")
        ops.add_(v, popxl.constant(np.ones(2, np.float32)))
    session = popxl.Session(ir)
    with pytest.raises(ValueError, match="not attached"):
        session.run()
    with session:
        session.run()
        assert not v.in_sync_with_ipu
        assert v._below.data is not None
        assert v._below.data.tolist() == [0, 0], "the host's copy is stale"
        assert session.get_tensor_data(v).tolist() == [1, 1]
        assert v.in_sync_with_ipu
        session.run()
        session.write_variable_data(v, np.array([5, 5], np.float32))
        with session:
            session.run()
        assert session.is_attached, "an inner `with` does not detach"
    assert not session.is_attached
    assert session.get_tensor_data(v).tolist() == [6, 6]
    quiet = popxl.Session(ir, weights_to_host_on_exit=False)
    with quiet:
        quiet.run()
    assert quiet.get_tensor_data(v).tolist() == [6, 6]
    with pytest.raises(TypeError, match="has type"):
        session.write_variable_data(v, np.zeros(2, np.float64))
    with pytest.raises(ValueError, match="has shape"):
        session.write_variable_data(v, np.zeros(3, np.float32))


def test_a_memory_mapped_variable_owns_its_file(tmp_path: Path) -> None:
    file = np.memmap(tmp_path / "v", np.float32, "w+", shape=(2,))
    ir = popxl.Ir()
    with ir.main_graph:
        v = popxl.variable(file, name="v")
        ops.add_(v, popxl.constant(np.ones(2, np.float32)))
    session = popxl.Session(ir)
    with session:
        session.run()
    assert session.get_tensor_data(v) is file
    assert np.fromfile(tmp_path / "v", np.float32).tolist() == [1, 1]


def test_a_stream_counts_by_execution() -> None:
    ir = popxl.Ir()
    ir.num_host_transfers = 3
    with ir.main_graph:
        source = popxl.h2d_stream((), popxl.int32, "in")
        sink = popxl.d2h_stream((), popxl.int32, "out")

        def step(total: Any) -> Any:
            total = total + ops.host_load(source)
            ops.host_store(sink, total)
            return total

        start = popxl.constant(0, popxl.int32)
        graph = ir.create_graph(step, start)
        ops.repeat(graph, 3, start)
    with popxl.Session(ir) as session:
        for _ in range(2):
            found = session.run({source: np.array([1, 2, 3], np.int64)})
            assert found[sink].tolist() == [1, 3, 6]
        with pytest.raises(ValueError, match=r"^Unexpected/Missing"):
            session.run({})
        with pytest.raises(ValueError, match="first dimension"):
            session.run({source: np.zeros(2, np.int32)})
        with pytest.raises(ValueError, match="Shape mismatch"):
            session.run({source: np.zeros((3, 2), np.int32)})


def test_what_a_tensor_prints(capfd: pytest.CaptureFixture[str]) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        ops.print_tensor(popxl.variable(np.array([1.5, 2.0], np.float32)), title="here")
    with popxl.Session(ir) as session:
        session.run()
    assert capfd.readouterr().err == "here: [1.5 2. ]\n"


def test_an_ir_is_freed_with_its_last_handle() -> None:
    gc.collect()
    before = len(popxl.Ir._ir_cache)
    ir = popxl.Ir()
    with ir.main_graph:
        t = popxl.variable(1.0) + 1
    del ir
    gc.collect()
    assert len(popxl.Ir._ir_cache) == before + 1
    assert t.ir.main_graph is t.ir.main_graph
    del t
    gc.collect()
    assert len(popxl.Ir._ir_cache) == before


def test_names_and_texts() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(np.zeros((2, 3)), name="a")
        assert (a.id, a.dtype, a.strides()) == ("a", popxl.float32, (12, 4))
        assert repr(a) == "Variable[a popxl.dtypes.float32 (2, 3)]"
        with popxl.name_scope("one"), popxl.name_scope("two"):
            assert (a + 1).id == "one/two/add_out"
        graph = ir.create_graph(lambda x: x * 2, a)
        assert graph.id == ("test_names_and_texts.<lambda>_subgraph(0)")
        assert [t.name for t in graph.inputs] == ["x"]
        with pytest.raises(ValueError, match="Invalid shape value in reshape"):
            ops.reshape(a, (0, 6))
        with pytest.raises(popart.popart_exception, match="incompatible types"):
            a + popxl.constant(np.zeros((2, 3), np.int32))
        with pytest.raises(TypeError, match="The input `t` is not a Tensor"):
            ops.exp(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Not enough inputs"):
            ops.call(graph)
        with pytest.raises(TypeError):
            iter(a)
    with pytest.raises(RuntimeError, match="has no graphs"):
        popxl.Session(popxl.Ir())


def test_what_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match=r"popart\.Builder is not supported"):
        popart.Builder  # noqa: B018


def test_what_a_loop_carries_is_exchanged_at_once() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a, b = popxl.variable(1.0, name="a"), popxl.variable(2.0, name="b")
        graph = ir.create_graph(lambda x, y: (y, x), a, b)
        first, second = ops.repeat(graph, 3, a, b)
        out = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(out, ops.concat([first.flatten(), second.flatten()]))
    with popxl.Session(ir) as session:
        assert session.run()[out].tolist() == [2.0, 1.0]
