"""What programs look at below `popxl`: views of graphs, devices, sessions, logs.

Covers: plugins/popxl/src/popir/dot.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popart
import popart._internal.ir as _ir
import popxl
from popart.operators import OpView
from popxl import ops


def program() -> tuple[popxl.Ir, Any, Any]:
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(np.ones((2, 3), np.float32), name="a")
        x = popxl.h2d_stream((2, 3), popxl.float32, "x")
        y = popxl.d2h_stream((2, 3), popxl.float32, "y")
        with popxl.name_scope("here"), popxl.ipu(1), popxl.io_tiles():
            total = a + ops.host_load(x)
        ops.host_store(y, total)
    return ir, x, y


def test_views_of_graphs() -> None:
    ir, _, _ = program()
    below = ir._pb_ir
    main = below.getMainGraph()
    assert [op.opType() for op in main.getOps()] == [
        "Init",
        "HostLoad",
        "Add",
        "HostStore",
    ]
    assert "a" in main
    assert below.getTensor("a").tensorType() is _ir.TensorType.Variable
    add = main.getOps()[2]
    assert add.getVirtualGraphId() == 1
    assert add.getSettings().tileSet is _ir.TileSet.IO
    assert add.debugName() == "here/Add"
    assert [t.id for t in add.getOutputTensors()] == ["here/add_out"]
    info = add.outTensor(0).info
    assert (info.shape(), info.data_type_lcase()) == ([2, 3], "float32")
    assert main.getOp(add.id) == add
    assert main.getOpSchedule()[-1].opType() == "HostStore"
    with pytest.raises(popart.popart_exception):
        main.getTensor("nothing")
    assert popxl.Ir._from_pb(below) is ir
    assert popxl.Graph._from_pb(main) is ir.main_graph
    handle = popxl.Tensor._from_pb_tensor(below.getTensor("a"))
    assert handle is ir.main_graph.get_tensor("a")
    assert isinstance(handle, popxl.tensor.Variable)


def test_what_the_original_calls_operators() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        t = popxl.variable(np.ones((2, 4), np.float32), name="t")
        at = popxl.constant(np.array([1], np.int32))
        seen: list[OpView] = []
        handle = ir.main_graph.register_op_created_hook(seen.append)
        t - ops.negate(t)
        ops.tied_gather(t, at)
        ops.group_norm(t, t[0], t[1], 2)
        view = ops.reshape_(t, (8,))
        ops.var_updates.accumulator_scale_(t, 0.5)
        ir.main_graph.remove_op_created_hook(handle)
    types = [op.opType() for op in seen]
    assert types[:3] == ["Neg", "Sub", "PopartTiedGather"]
    assert "GroupNormalization" in types
    assert types[-1] == "AccumulatorScale"
    assert seen[-1].getFactor().val() == 0.5
    assert seen[-1].modifiesIndex(0)
    assert seen[1].className() == "SubtractOp"
    assert t._pb_tensor.isAliased()
    assert not view._pb_tensor.isAliased()


def test_inputs_that_are_connected_later() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        a, b = (popxl.variable(n, popxl.float32, f"v{n}") for n in (2, 3))
        graph = ir.create_graph(lambda p, q: p * q, a, b)
        info = ops.call_with_info(graph, a, check_inputs=False)
        assert info.inputs == (a,)
        out = popxl.d2h_stream((), popxl.float32)
        ops.host_store(out, info.outputs[0])
        late = ops.repeat_with_info(graph, 2, a, check_inputs=False)
        with pytest.raises(popart.popart_exception, match="never connected"):
            popxl.Session(ir)
        info._op.connectInTensor(1, b.id)
        late._op.connectInTensor(3, b.id)
        assert list(info.inputs) == [a, b]
        assert late.parent_input(3) == b
    with popxl.Session(ir) as session:
        assert session.run()[out] == 6


def test_a_session_by_the_ids_of_streams() -> None:
    ir, x, y = program()
    device = popart.DeviceManager().createIpuModelDevice({"numIPUs": 1})
    session = popart.InferenceSession.fromIr(ir=ir._pb_ir, deviceInfo=device)
    session.prepareDevice()
    device.attach()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    data = np.full((2, 3), 4, np.float32)
    session.run(popart.PyStepIO({x.tensor_id: data}, anchors))
    np.testing.assert_array_equal(anchors[y.tensor_id], data + 1)


def test_compiling_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("prepareDevice", "weightsFromHost"):
        monkeypatch.setattr(
            popart.InferenceSession,
            name,
            lambda *_, name=name, **__: calls.append(name),
        )
    ir, _, _ = program()
    with popxl.Session(ir, "ipu_model", weights_to_host_on_exit=False):
        pass
    assert calls == ["prepareDevice", "weightsFromHost"]


def test_log_lines_that_programs_count(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        ops.add_(popxl.variable(1.0, name="v"), popxl.constant(1.0))
    with popxl.Session(ir) as session:
        session.run()
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("POPART_LOG_LEVEL", "TRACE")
    with popxl.Session(ir) as session:
        session.run()
    text = capfd.readouterr().err
    assert text.count("Starting compilation") == 1
    assert text.count("Writing weights from host, ") == 1
    assert text.count("Writing weights to host complete.") == 1
    assert "Reusing TensorData for d2hWeightBuffer of tensor v" in text
    monkeypatch.setenv("POPART_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("POPART_LOG_FORMAT", "%n %l: %v")
    (tmp_path / "config").write_text(json.dumps({"mine": "INFO"}))
    monkeypatch.setenv("POPART_LOG_CONFIG", str(tmp_path / "config"))
    logger = popart.getLogger("mine")
    logger.debug("not this")
    logger.info("this")
    logger.setLevel("DEBUG")
    logger.debug("and this")
    assert (tmp_path / "log").read_text() == (
        "popart:mine info: this\npopart:mine debug: and this\n"
    )


def test_dot_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POPART_DOT_CHECKS", raising=False)
    ir, _, _ = program()
    popxl.Session(ir, "ipu_model")
    assert list(tmp_path.glob("*.dot")) == []
    (tmp_path / "there").mkdir()
    ir.dot_checkpoint("mine", tmp_path / "there")
    (made,) = (tmp_path / "there").iterdir()
    assert made.suffix == ".dot"
    assert made.read_text().startswith("digraph")
    popxl.Session(ir, "ipu_model")
    assert len(list(tmp_path.glob("*.dot"))) == 1, "FINAL"
    other, _, _ = program()
    monkeypatch.setenv("POPART_DOT_CHECKS", "")
    other.dot_checkpoint("none")
    monkeypatch.setenv("POPART_DOT_CHECKS", "some:Other")
    other.dot_checkpoint("OTHER")
    names = {path.stem for path in tmp_path.glob("*.dot")}
    assert names == {"FINAL", "OTHER"}


def test_devices() -> None:
    manager = popart.DeviceManager()
    assert manager.createCpuDevice().type is popart.DeviceType.Cpu
    with pytest.raises(popart.popart_exception):
        manager.createOfflineIpuFromSystemString("nothing", 1)
    offline = manager.createOfflineIpuFromSystemString("ipu2", 2)
    with pytest.raises(popart.poplar_exception):
        offline.attach()
    assert manager.enumerateDevices(numIpus=1)
    settings = popart.VariableSettings(2, 2, popart.VariableRetrievalMode.OnePerGroup)
    assert settings.groups(4) == [[0, 2], [1, 3]]
    assert settings.shapeOnReplica((2, 5), 4, "v") == (5,)
    with pytest.raises(ValueError, match="one unit"):
        popxl.utils._to_device_info("cpu", 2)
    with pytest.raises(ValueError, match="Incorrect device type"):
        popxl.Session(program()[0], "gpu")
