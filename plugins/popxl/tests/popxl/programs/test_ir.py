import gc

import pytest

import popart
import popxl
from popxl import ops


def test_ir_basics():
    ir = popxl.Ir()
    assert ir.main_graph.id == ""
    assert ir.main_graph.name == ""
    assert ir.replication_factor == 1
    assert ir.instance_replication_factor == 1
    ir2 = popxl.Ir(replication=4)
    assert ir2.replication_factor == 4
    assert ir2.instance_replication_factor == 4
    assert ir2._pb_ir.getSessionOptions().replicatedGraphCount == 4
    assert ir2._pb_ir.getSessionOptions().enableReplicatedGraphs
    ir2.replication_factor = 2
    assert ir2._pb_ir.getSessionOptions().replicatedGraphCount == 2
    assert not ir._pb_ir.getSessionOptions().enableReplicatedGraphs
    assert repr(ir) == f"Ir[id={ir.id}]"
    assert ir2.id == ir.id + 1
    with pytest.raises(TypeError):
        ir == 1
    assert ir != ir2
    assert len({ir, ir2}) == 2
    assert ir.num_host_transfers == 1


def test_prepared():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1.0)
        a + 1
    popxl.Session(ir)
    with pytest.raises(RuntimeError):
        ir.replication_factor = 2


def test_streams_sets():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.h2d_stream((), popxl.float32)
        b = popxl.h2d_stream((), popxl.float32)
        c = popxl.d2h_stream((), popxl.float32)
        d = popxl.d2h_stream((), popxl.float32)
        x = ops.host_load(a)
        ops.host_store(c, x)
    assert ir.get_all_h2d_streams() == {a}
    assert ir.get_all_d2h_streams() == {c}


def test_cache():
    gc.collect()
    n = len(popxl.Ir._ir_cache)
    ir = popxl.Ir()
    rb = popxl.remote_buffer((2,), popxl.float32) if 0 else None
    with ir.main_graph:
        rb = popxl.remote_buffer((2,), popxl.float32)
    g = ir.main_graph
    del ir
    gc.collect()
    assert len(popxl.Ir._ir_cache) == n + 1
    del g
    gc.collect()
    assert len(popxl.Ir._ir_cache) == n
    rb.remote_buffer_id


def test_cache_many():
    gc.collect()
    n = len(popxl.Ir._ir_cache)

    def f():
        ir = popxl.Ir()
        with ir.main_graph:
            a = popxl.variable(1.0)
            g = ir.create_graph(lambda x: x + 1, a)
            info = ops.call_with_info(g, a)
            gg = popxl.transforms.autodiff(g)
            h = ir.main_graph.register_op_created_hook(lambda op: None)
            try:
                ops.reshape(a, (0,))
            except ValueError:
                pass
        with popxl.Session(ir) as s:
            s.run()

    f()
    gc.collect()
    assert len(popxl.Ir._ir_cache) == n


def test_options():
    ir = popxl.Ir()
    o = ir._pb_ir.getSessionOptions()
    assert o.virtualGraphMode == popart.VirtualGraphMode.Manual
    assert o.useHostCopyOps
    assert o.aliasZeroCopy
    assert o.enableExplicitMainLoops
    assert o.explicitRecomputation
    assert o.enableInplaceAmbiguityChecking
    assert o.decomposeGradSum is True
    assert o.enableVariablesCaching is False
    o.blah = 3
    assert ir._pb_ir.getSessionOptions().blah == 3
    o.enableDistributedReplicatedGraphs = True
    o.globalReplicationFactor = 8
    o.globalReplicaOffset = 0
    assert ir.replication_factor == 8
    assert ir.instance_replication_factor == 1


def test_cache_env(monkeypatch, tmp_path):
    monkeypatch.setenv("POPXL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("POPART_CACHE_DIR", "/zz")
    o = popxl.Ir()._pb_ir.getSessionOptions()
    assert o.enableEngineCaching is True
    assert o.cachePath == str(tmp_path)


def test_rg():
    ir = popxl.Ir(replication=8)
    assert ir.replica_grouping().assignment == [0] * 8
    assert ir.replica_grouping(2, 2).assignment == [0, 1, 0, 1, 2, 3, 2, 3]
    assert ir.replica_grouping(2, 4).assignment == [0, 1] * 4
    assert ir.replica_grouping(4, 2).assignment == [0, 1, 2, 3] * 2
    assert ir.replica_grouping(1, 1).assignment == list(range(8))
    assert ir.replica_grouping(stride=4, group_size=1).stride == 1
    for a in [(0, 1), (3, 1), (9, 1), (1, 0), (1, 9), (-1, 1)]:
        with pytest.raises(ValueError):
            ir.replica_grouping(*a)
    with pytest.raises(ValueError):
        ir.replica_grouping(4, 4).assignment


def test_fromids():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1)
        b = popxl.constant(1)
        c = a + b
    assert popxl.Ir._from_pb(ir._pb_ir) is ir
    assert popxl.Graph._from_pb(ir.main_graph._pb_graph) is ir.main_graph
    assert popxl.Tensor._from_pb_tensor(a._pb_tensor) is a
    assert popxl.Tensor._from_pb_tensor(b._pb_tensor) is b
    assert type(popxl.tensor.Tensor._from_pb_tensor(c._pb_tensor)) is popxl.Tensor


def test_dot(tmp_path, monkeypatch):
    monkeypatch.delenv("POPART_DOT_CHECKS", raising=False)
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1)
        a + 1
    ir.dot_checkpoint("ir", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["ir.dot"] or list(
        tmp_path.glob("*.dot")
    )


def test_dot_env(tmp_path, monkeypatch):
    monkeypatch.setenv("POPART_DOT_CHECKS", "ir")
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1)
        a + 1
    ir.dot_checkpoint("IR", tmp_path)
    ir.dot_checkpoint("other", tmp_path)
    assert len(list(tmp_path.glob("*.dot"))) == 1
    monkeypatch.setenv("POPART_DOT_CHECKS", "")
    ir.dot_checkpoint("x", str(tmp_path))
    assert len(list(tmp_path.glob("*.dot"))) == 1


def test_dot_final(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ir = popxl.Ir()
    ir._pb_ir.getSessionOptions().dotChecks = {"FINAL"}
    with ir.main_graph:
        a = popxl.variable(1)
        a + 1
    popxl.Session(ir)
    assert len(list(tmp_path.glob("*.dot"))) == 1


def test_dot_final_env(tmp_path, monkeypatch):
    monkeypatch.setenv("POPART_DOT_CHECKS", "ALL")
    ir = popxl.Ir()
    ir._pb_ir.getSessionOptions().logDir = str(tmp_path)
    with ir.main_graph:
        a = popxl.variable(1)
        a + 1
    popxl.Session(ir)
    assert len(list(tmp_path.glob("*.dot"))) == 1
