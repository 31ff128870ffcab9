import numpy as np
import pytest

import popart
import popxl
from popxl import ops


def test_exc():
    for n in "exception error popart_internal_exception popart_runtime_error poplar_exception poplar_runtime_error poplar_application_runtime_error".split():
        assert issubclass(getattr(popart, n), Exception)
    assert issubclass(popart.popart_internal_exception, popart.popart_exception)
    assert issubclass(popart.popart_runtime_error, popart.popart_exception)
    assert issubclass(
        popart.poplar_application_runtime_error, popart.poplar_runtime_error
    )
    assert popart.error is popart.popart_exception


def test_dm():
    dm = popart.DeviceManager()
    d = dm.createCpuDevice()
    assert d.type == popart.DeviceType.Cpu
    d = dm.createIpuModelDevice({"numIPUs": 2})
    assert d.numIpus == 2
    assert d.type == popart.DeviceType.IpuModel
    dm.createSimDevice({"numIPUs": 1})
    with pytest.raises(popart.popart_exception):
        dm.createOfflineIpuFromSystemString("zzz", 1)
    dm.setOnDemandAttachTimeout(3)
    assert isinstance(dm.enumerateDevices(numIpus=1), list)
    d.attach()
    assert d.isAttached
    d.detach()
    assert not d.isAttached
    assert d.tryAttachUntilTimeout() is True
    d.detach()
    d.attach()
    with d as e:
        assert e is d
    assert not d.isAttached
    (
        popart.SyncPattern.Full,
        popart.DeviceConnectionType.OnDemand,
        popart.DeviceSelectionCriterion.Random,
        popart.ReductionType,
        popart.VariableRetrievalMode.AllReplicas,
        popart.DataType.FLOAT8_143,
        popart.CommGroupType.All,
    )
    dm.createOfflineIpuFromDeviceInfo(d)


def test_vs():
    v = popart.VariableSettings(2, 2, popart.VariableRetrievalMode.OnePerGroup)
    assert v.getStride() == 2
    assert v.getGroupSize() == 2
    assert v.getRetrievalMode() == popart.VariableRetrievalMode.OnePerGroup
    assert v.isUsingCommGroup() is False
    assert v.groups(4) == [[0, 2], [1, 3]]
    assert list(v.shapeOnReplica([2, 3], 4, "x")) == [3]
    ir = popxl.Ir(4)
    s = ir.replica_grouping(stride=2)._to_variable_settings("all_replicas")
    assert s.getStride() == 2
    assert s.getGroupSize() == 2
    popart.DataFlow(
        batchesPerStep=1, anchorTensors={"a": popart.AnchorReturnType("All")}
    )


def test_low():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(np.ones((2, 3), np.float32), name="a")
        h = popxl.h2d_stream((2, 3), popxl.float32, "h")
        o = popxl.d2h_stream((2, 3), popxl.float32, "o")
        x = ops.host_load(h)
        y = a + x
        ops.host_store(o, y)
        ops.reshape_(y, (6,))
    p = ir._pb_ir
    g = ir.main_graph._pb_graph
    assert "a" in p.getMainGraph()
    assert "zz" not in p.getMainGraph()
    assert len(p.getAllGraphs()) == 1
    t = p.getTensor("a")
    assert t.info.shape()
    assert list(t.info.shape()) == [2, 3]
    assert t.info.data_type_lcase() == "float32"
    assert t.hasTensorData()
    assert t.id == "a"
    assert p.getId() == ir.id
    assert p.isPrepared() is False
    ops_ = g.getOps()
    assert [o.opType() for o in ops_] == [
        "Init",
        "HostLoad",
        "Add",
        "HostStore",
        "ReshapeInplace",
    ]
    assert len(g.getOpIds()) == 5
    assert g.getOp(g.getOpIds()[2]).opType() == "Add"
    assert len(g.getOpSchedule()) == 5
    add = ops_[2]
    assert add.inTensor(0).id == "a"
    assert add.outTensor(0).id == y.id
    assert len(add.getInputTensors()) == 2
    assert add.hasVirtualGraphId()
    assert add.getVirtualGraphId() == 0
    assert not add.modifiesIndex(0)
    assert y._pb_tensor.isAliased()
    assert not a._pb_tensor.isAliased()
    (
        add.getSettings().tileSet,
        add.getSettings().executionContext,
        add.getSettings().vgraphId,
        add.getGraph(),
        add.debugName(),
        add.id,
    )
    p.logIr()
    p.updateVertices()
    s = popart.InferenceSession.fromIr(
        ir=p, deviceInfo=popart.DeviceManager().createIpuModelDevice({"numIPUs": 1})
    )
    p.setDataFlow(
        popart.DataFlow(
            batchesPerStep=1, anchorTensors={"o": popart.AnchorReturnType("All")}
        )
    )
    p.updateVertices()
    s.prepareDevice()
    s.weightsFromHost()
    an = s.initAnchorArrays()
    st = popart.PyStepIO(inputs={"h": np.ones((2, 3), np.float32)}, outputs=an)
    st.enableRuntimeAsserts(False)
    s.run(st)
    assert (an["o"] == 2).all()


def test_logger(capfd, monkeypatch):
    l = popart.getLogger()
    monkeypatch.setattr(l, "level", l.level)  # for the tests after this one
    l.setLevel("INFO")
    l.info("hello there")
    assert "hello there" in capfd.readouterr().err
    l.setLevel("WARN")
    l.debug("zz")
    assert "zz" not in capfd.readouterr().err


def test_collectives_one():
    ir = popxl.Ir()
    c = ops.collectives
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(a)
        outs = [
            c.replicated_all_reduce(x),
            c.replicated_all_reduce(x, "mean"),
            c.replicated_all_gather(x),
            c.replicated_all_gather(x, output_shape="new_axis"),
            c.replicated_reduce_scatter(x),
            c.replica_sharded_slice(x),
            c.replicated_slice(x),
            *c.all_reduce([x, x], ipus=[0, 0]),
            *c.all_reduce_identical_inputs([x, x], ipus=[0, 0]),
            *c.all_reduce_identical_grad_inputs([x, x], [0, 0]),
        ]
        sc = c.replicated_reduce_scatter(
            x, configure_output_for_replicated_tensor_sharding=True
        )
        assert sc.meta_shape == (2, 3)
        assert sc.shape == (6,)
        outs.append(c.replicated_all_gather(sc))
        assert outs[-1].shape == (2, 3)
        with pytest.raises(ValueError):
            c.replicated_all_reduce(x, "foo")
        with pytest.raises(ValueError):
            c.replicated_all_gather(x, output_shape="foo")
        with pytest.raises(ValueError):
            c.replicated_all_gather(x, axis="foo")
        st = [popxl.d2h_stream(o.shape, o.dtype) for o in outs]
        for s, o in zip(st, outs):
            ops.host_store(s, o)
    with popxl.Session(ir, "ipu_model") as s:
        found = s.run()
    r = [found[k].tolist() for k in st]
    flat, rows = a.reshape(-1).tolist(), a.tolist()
    assert r == [
        rows,
        rows,
        rows,
        [rows],
        flat,
        flat,
        rows,
        (2 * a).tolist(),
        (2 * a).tolist(),
        rows,
        rows,
        (2 * a).tolist(),
        (2 * a).tolist(),
        rows,
    ]


def test_comm():
    from popxl.ops.collectives import CommGroup, CommGroupType

    ir = popxl.Ir(8)
    with ir.main_graph:
        assert CommGroup().toReplicaGrouping(8).assignment == [0] * 8
        assert (
            CommGroup(CommGroupType.Consecutive, 4).toReplicaGrouping(8).assignment
            == [0] * 4 + [1] * 4
        )
        assert (
            CommGroup(CommGroupType.Orthogonal, 4).toReplicaGrouping(8).assignment
            == [0, 1] * 4
        )
        assert CommGroup(CommGroupType.Ungrouped, 0).toReplicaGrouping(
            8
        ).assignment == list(range(8))
    assert CommGroupType.All.name == "All"
    assert isinstance(CommGroupType.All.value, int)


def test_rb():
    ir = popxl.Ir()
    with ir.main_graph:
        b = popxl.remote_buffer((2, 3), popxl.float32)
        b2 = popxl.RemoteBuffer((2,), popxl.float16, 3)
        assert b.remote_buffer_id == 1
        assert b2.remote_buffer_id == 2
        assert b.entries == 1
        assert b.tensor_shape == (2, 3)
        assert b.tensor_dtype == popxl.float32
        with pytest.raises(
            ValueError, match="Entries must be a non-zero, positive integer"
        ):
            popxl.remote_buffer((2,), popxl.float32, 0)
        for n in ("remote_buffer_id", "tensor_shape", "tensor_dtype"):
            with pytest.raises(AttributeError) as e:
                setattr(b, n, 1)
            assert str(e.value) == f"can't set attribute '{n}'"
        b.entries = 4
        b.meta_shape = (4,)
        assert b.entries == 4
        assert b.meta_shape == (4,)
        x = popxl.variable(np.ones((3,), np.float32), name="x")
        with pytest.raises(ValueError, match="^Tensor x does not match buffer."):
            b.validate_tensor_matches_buffer(x)
        b2.set_remote_buffer_info(popxl.float32, (3,), 1)
        b2.validate_tensor_matches_buffer(x)
        popxl.remote_buffer((0,), popxl.float32)


def test_rgs():
    ir = popxl.Ir(8)
    R = popxl.ReplicaGrouping
    with pytest.raises(RuntimeError):
        R()
    g = ir.replica_grouping(2, 4)
    assert (
        (g.stride, g.group_size, g.num_groups, g.is_const) == (2, 4, 2, True)
        and g.const_rg is g
        or g.const_rg == g
    )
    assert g.to_device_map is None
    assert g.to_host_map is None
    assert (
        repr(g)
        == "ReplicaGrouping(num_replicas=8, stride=2, group_size=4, num_groups=2)"
    )
    h = ir.replica_grouping_from_assignments([0, 0, 1, 1, 0, 0, 1, 1])
    assert not h.is_const
    with pytest.raises(NotImplementedError):
        h.stride
    assert h.const_rg.assignment == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(h.to_device_map) == [0, 1, 0, 1]
    assert list(h.to_host_map) == [0, 1]
    assert repr(h) == "ReplicaGrouping(assignment=[0, 0, 1, 1, 0, 0, 1, 1])"
    assert ir.replica_grouping(2, 2).transpose().assignment == [0, 0, 1, 1, 0, 0, 1, 1]
    with pytest.raises(TypeError):
        g == 1
    for bad in ([0] * 7, [0, 0, 0, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 1, 1, 1][:3]):
        with pytest.raises(ValueError):
            ir.replica_grouping_from_assignments(bad)
