"""Programs become files, files are served: with the bits that the session gives.

Covers: plugins/popxl/src/popir/export.py,
    plugins/onnx/src/popgate_onnx/compiler/executable_rows.py,
    plugins/onnx/src/popgate_onnx/compiler/rows/varied_weights.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popir
import popxl
from engine import ModelRunner, ModelRunnerConfig
from popef_io import TensorType, load_model
from popxl import ops
from popxl.transforms import autodiff
from tests.app.served import ServedGateway


def trained() -> dict[str, Any]:
    """The weights of two layers, after some steps of a program that trains them."""
    ir = popxl.Ir()
    rng = np.random.default_rng(5)
    x = rng.normal(size=(8, 6)).astype(np.float32)
    y = rng.integers(0, 3, 8).astype(np.int32)
    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream((8, 6), popxl.float32, "x")
        ys = popxl.h2d_stream((8,), popxl.int32, "y")
        out = popxl.d2h_stream((), popxl.float32, "loss")
        weights = [
            popxl.variable(rng.normal(size=s) * 0.3, popxl.float32, f"w{n}")
            for n, s in enumerate([(6, 5), (5, 3)])
        ]
        graph = ir.create_graph(network, ops.host_load(xs), *weights)
        call = ops.call_with_info(graph, ops.host_load(xs), *weights)
        probs = ops.softmax(call.outputs[0], -1)
        loss, dx = ops.nll_loss_with_softmax_grad(probs, ops.host_load(ys))
        ops.host_store(out, loss)
        info: Any = autodiff(graph, grads_required=graph.inputs[1:])
        back = ops.call_with_info(info.graph, dx, inputs_dict=info.inputs_dict(call))
        grads = info.fwd_parent_ins_to_grad_parent_outs(call, back)
        for weight in weights:
            ops.scaled_add_(weight, grads[weight], b=-0.5)
    ir.num_host_transfers = 2
    with popxl.Session(ir, "ipu_model") as session:
        losses = [
            float(session.run({xs: np.stack([x, x]), ys: np.stack([y, y])})[out][0])
            for _ in range(20)
        ]
    assert losses[-1] < losses[0] / 2
    return {w.name: session.get_tensor_data(w) for w in weights}


def network(x: Any, w0: Any, w1: Any) -> Any:
    return ops.gelu(x @ w0) @ w1


def answering(weights: dict[str, Any]) -> tuple[popxl.Ir, Any, Any]:
    ir = popxl.Ir()
    with ir.main_graph:
        xs = popxl.h2d_stream((8, 6), popxl.float32, "x")
        out = popxl.d2h_stream((8, 3), popxl.float32, "probabilities")
        made = [popxl.variable(data, name=name) for name, data in weights.items()]
        x = ops.print_tensor(ops.host_load(xs))
        ops.host_store(out, ops.softmax(network(x, *made), -1))
    return ir, xs, out


def test_what_was_trained_is_served_with_the_bits_of_the_session(
    tmp_path: Path,
) -> None:
    ir, xs, out = answering(trained())
    x = np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)
    report = popir.export_popef(ir, tmp_path / "net.popef", description="a net")
    assert report.batch.rows, report.batch
    with popxl.Session(ir) as session:
        expected = session.run({xs: x})[out]
    with ServedGateway(tmp_path) as gateway:
        answer = gateway.wait_ready().client.post(
            "/v1/models/net/infer", json={"inputs": {"x": x.tolist()}}
        )
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["outputs"]
        alone = gateway.client.post(
            "/v1/models/net/infer", json={"inputs": {"x": x[:3].tolist()}}
        ).json()["outputs"][0]
    assert found["name"] == "probabilities"
    data = np.array(found["data"], np.float32).reshape(8, 3)
    np.testing.assert_array_equal(data, expected)
    first = np.array(alone["data"], np.float32).reshape(3, 3)
    np.testing.assert_array_equal(first, expected[:3])


@pytest.mark.parametrize("frozen", [True, False], ids=["one value", "zeros"])
def test_rows_that_only_equal_values_keep_alike_are_not_mixed(
    tmp_path: Path, frozen: bool
) -> None:
    """A variable with a row for each place in the batch may be frozen over."""
    ir = popxl.Ir()
    with ir.main_graph:
        xs = popxl.h2d_stream((2, 2), popxl.float32, "x")
        out = popxl.d2h_stream((2, 2), popxl.float32, "y")
        data = np.ones((2, 2), np.float32) if frozen else np.zeros((2, 2), np.float32)
        w = popxl.variable(data, name="w")
        ops.host_store(out, ops.host_load(xs) + w)
    path = tmp_path / "m.popef"
    report = popir.export_popef(ir, path)
    assert not report.batch.rows
    assert "with other values of its weights" in report.batch.reason
    places = np.array([[1, 1], [2, 2]], np.float32)
    config = ModelRunnerConfig(frozen_inputs={"w": places})
    x = np.zeros((2, 2), np.float32)
    with ModelRunner(path, config) as runner:
        requests = [runner.execute_async({"x": x}) for _ in range(8)]
        for request in requests:
            request.wait()
            np.testing.assert_array_equal(request["y"], places)


def counting() -> popxl.Ir:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        step = ops.host_load(popxl.h2d_stream((1,), popxl.int32, "step"))
        total = popxl.variable(np.array([10], np.int32), name="total")
        popxl.variable(np.ones(2, np.float32), name="unused")
        ops.add_(total, step)
        ops.host_store(popxl.d2h_stream((1,), popxl.int32, "so_far"), total)
    return ir


def test_state_is_kept_from_run_to_run(tmp_path: Path) -> None:
    report = popir.export_popef(counting(), tmp_path / "m.popef")
    assert report.batch.reason == "it keeps state from run to run"
    with ModelRunner(tmp_path / "m.popef") as runner:
        found = [
            int(runner.execute({"step": np.array([n], np.int32)})["so_far"][0])
            for n in (1, 2, 3)
        ]
    assert found == [11, 13, 16]


def storing() -> popxl.Ir:
    """A program whose state is a row of remote memory."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        step = ops.host_load(popxl.h2d_stream((1,), popxl.int32, "step"))
        rows = popxl.remote_buffer((1,), popxl.int32, 1)
        total = ops.remote_load(rows, 0) + step
        ops.remote_store(rows, 0, total)
        ops.host_store(popxl.d2h_stream((1,), popxl.int32, "so_far"), total)
    return ir


@pytest.mark.parametrize(("build", "first"), [(counting, 10), (storing, 0)])
def test_the_warm_up_of_a_server_changes_no_state(
    tmp_path: Path, build: Callable[[], popxl.Ir], first: int
) -> None:
    popir.export_popef(build(), tmp_path / "m.popef")
    with ServedGateway(tmp_path) as gateway:
        gateway.wait_ready()
        assert gateway.infer("m", step=[5])["so_far"] == [first + 5]
        assert gateway.infer("m", step=[1])["so_far"] == [first + 6]


def test_a_program_without_state_says_so(tmp_path: Path) -> None:
    popir.export_popef(counting(), tmp_path / "counting.popef")
    ir = popxl.Ir()
    with ir.main_graph:
        x = ops.host_load(popxl.h2d_stream((2,), popxl.float32, "x"))
        w = popxl.variable(np.ones(2, np.float32))
        ops.host_store(popxl.d2h_stream((2,), popxl.float32, "y"), x * w)
    popir.export_popef(ir, tmp_path / "plain.popef")
    options = {
        name: load_model(tmp_path / f"{name}.popef").metadata.option(
            "popgate.keeps_state"
        )
        for name in ("counting", "plain")
    }
    assert options == {"counting": "true", "plain": None}


def test_what_the_file_says(tmp_path: Path) -> None:
    ir = counting()
    ir.num_host_transfers = 3
    popir.export_popef(ir, tmp_path / "m.popef", user_metadata={"by": "me"})
    popir.export_popef(ir, tmp_path / "again.popef", user_metadata={"by": "me"})
    bytes_ = (tmp_path / "m.popef").read_bytes()
    assert bytes_ == (tmp_path / "again.popef").read_bytes()
    model = load_model(tmp_path / "m.popef")
    metadata = model.metadata
    assert metadata.is_inference
    assert (metadata.device_iterations, metadata.num_ipus) == (3, 1)
    assert metadata.executable.isdecimal()
    assert metadata.program_flow.load == (0,)
    assert metadata.program_flow.main == (5,)
    assert metadata.program_flow.save == ()
    assert metadata.option("user.by") == "me"
    found = {(a.name, a.handle, a.type, a.programs) for a in metadata.anchors}
    assert found == {
        ("step", "h2d_step", TensorType.INPUT, (5,)),
        ("so_far", "anchor_d2h_so_far", TensorType.OUTPUT, (5,)),
        ("total", "h2d_total", TensorType.INPUT, (0,)),
        ("total", "weight_d2h_total", TensorType.OUTPUT, (7,)),
        ("unused", "", TensorType.UNKNOWN, ()),
    }
    assert set(model.tensors) == {"total", "unused"}


def test_rows_that_depend_on_each_other_are_not_mixed(tmp_path: Path) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = ops.host_load(popxl.h2d_stream((4, 2), popxl.float32, "x"))
        y = x - ops.mean(x, 0, keepdims=True)
        ops.host_store(popxl.d2h_stream((4, 2), popxl.float32, "y"), y)
    report = popir.export_popef(ir, tmp_path / "m.popef")
    assert not report.batch.rows
    off = popir.export_popef(ir, tmp_path / "m.popef", batch="off")
    assert off.batch.reason == "batching is switched off"


def test_a_wrong_program_is_no_file(tmp_path: Path) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        t = popxl.variable(np.ones(2, np.float32))
        ops.relu_(t)
        ops.exp_(t)
    with pytest.raises(popir.IrError, match=r"^Inplacing ambiguity detected"):
        popir.export_popef(ir, tmp_path / "m.popef")
    assert not (tmp_path / "m.popef").exists()
