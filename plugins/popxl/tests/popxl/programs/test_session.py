import numpy as np
import pytest

import popart
import popxl
from popxl import ops


def prog():
    ir = popxl.Ir()
    with ir.main_graph:
        v = popxl.variable(np.zeros(2, np.float32), name="v")
        c = popxl.constant([1.0, 2.0], name="c")
        w = popxl.variable(np.ones(2, np.float32), name="w")
        o = popxl.d2h_stream((2,), popxl.float32)
        with popxl.in_sequence():
            ops.add_(v, c)
            ops.host_store(o, v * w)
    return ir, v, c, w, o


def test_members():
    ir, v, c, w, o = prog()
    with pytest.raises(ValueError):
        popxl.Session(ir, "foo")
    s = popxl.Session(ir, "ipu_model")
    assert s.ir is ir
    assert s.ir_ is ir
    assert not s.is_attached
    assert s.expected_inputs() == set()
    assert list(s.create_host_outputs()) == [o]
    for f in (s.run, s.weights_to_host, s.weights_from_host):
        with pytest.raises(ValueError):
            f()
    with pytest.raises(ValueError):
        s.run_with_outputs(None, s.create_host_outputs())
    s.device = 3
    assert s.get_tensor_data(c).tolist() == [1, 2]
    with s as q:
        assert q is s
        assert s.is_attached
        s.run()
        assert s.get_tensor_data(c).tolist() == [1, 2]
        assert s.get_tensors_data([v, c, w])[v].tolist() == [1, 2]
        with pytest.raises(TypeError, match="is not of type Constant or Variable"):
            s.get_tensor_data(
                v._from_pb_tensor(ir.main_graph._pb_graph.getTensor("mul_out"))
            )
        with pytest.raises(TypeError, match="is not of type Constant or Variable"):
            s.get_tensor_data(o)
        with pytest.raises(TypeError, match="^Tensor c is not of type"):
            s.write_variable_data(c, np.ones(2, np.float32))
        with pytest.raises(TypeError):
            s.write_variable_data(v, np.ones(2, np.int32))
        with pytest.raises(ValueError):
            s.write_variable_data(v, np.ones(3, np.float32))
        s.write_variables_data(
            {v: np.full(2, 10, np.float32), w: np.full(2, 3, np.float32)}
        )
        assert s.run()[o].tolist() == [33, 36]
    assert s.get_tensor_data(v).tolist() == [11, 12]
    assert s.get_tensor_data(v).flags.c_contiguous
    s.write_variable_data(v, np.zeros(2, np.float32))
    with s:
        assert s.run()[o].tolist() == [3, 6]


def test_write_stale():
    ir, v, c, w, o = prog()
    with popxl.Session(ir) as s:
        s.run()
        s.write_variable_data(w, np.full(2, 2, np.float32))
        assert s.run()[o].tolist() == [2, 4]  # v lost


def test_scalar_write():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1.0, popxl.float16)
        b = popxl.variable(np.ones((), np.float32), popxl.float8_143)
        c = popxl.variable(3)
        (a + 1)
        ops.copy = c + 1
        b.reshape((1,))
    s = popxl.Session(ir)
    s.write_variable_data(a, 3.5)
    assert s.get_tensor_data(a) == 3.5
    assert s.get_tensor_data(a).dtype == np.float16
    with pytest.raises(TypeError):
        s.write_variable_data(b, 3.5)
    s.write_variable_data(c, 5)
    assert s.get_tensor_data(c) == 5


def test_unreadable():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(np.ones(2, np.int8))
        u = popxl.variable(np.ones(2, np.uint8))
        ops.cast(a, popxl.int32)
        ops.cast(u, popxl.int32)
    with popxl.Session(ir) as s:
        for t in (a, u):
            with pytest.raises(ValueError):
                s.get_tensor_data(t)


def test_nested():
    ir, v, c, w, o = prog()
    s = popxl.Session(ir)
    with s:
        with s:
            with s:
                s.run()
            assert s.is_attached
        assert s.is_attached
        s.run()
    assert not s.is_attached
    assert s.get_tensor_data(v).tolist() == [2, 4]


def test_exc_no_back():
    ir, v, c, w, o = prog()
    s = popxl.Session(ir)
    with pytest.raises(KeyError):
        with s:
            s.run()
            raise KeyError
    assert not s.is_attached
    assert s.get_tensor_data(v).tolist() == [0, 0]


def test_no_back():
    ir, v, c, w, o = prog()
    s = popxl.Session(ir, weights_to_host_on_exit=False)
    with s:
        s.run()
    assert s.get_tensor_data(v).tolist() == [0, 0]
    with s:
        assert s.run()[o].tolist() == [1, 2]
        s.weights_to_host()
    assert s.get_tensor_data(v).tolist() == [1, 2]


def test_no_ops():
    ir = popxl.Ir()
    with ir.main_graph:
        popxl.variable(1)
    with pytest.raises(RuntimeError, match="has no graphs"):
        popxl.Session(ir)
    ir = popxl.Ir()
    with ir.main_graph:
        ops.print_tensor(popxl.variable(1))
    popxl.Session(ir)


def test_unused_var():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1.0)
        b = popxl.variable(2.0, name="b")
        a + 1
    with popxl.Session(ir) as s:
        assert s.get_tensor_data(b) == 2
        s.write_variable_data(b, 4.0)
        assert s.get_tensor_data(b) == 4
        s.run()
        assert s.get_tensor_data(b) == 4


def test_view():
    ir, v, c, w, o = prog()
    s = popxl.Session(ir)
    d = s.get_tensor_data(v)
    with s:
        s.run()
    assert np.shares_memory(d, s.get_tensor_data(v))
    assert d.tolist() == [1, 2]


def test_sessions_of_one_ir():
    ir, v, c, w, o = prog()
    a = popxl.Session(ir)
    with a:
        a.run()
    b = popxl.Session(ir, "ipu_model")
    with b:
        b.run()
    assert b.get_tensor_data(v).tolist() == [2, 4]


def test_inside_main():
    ir, v, c, w, o = prog()
    with ir.main_graph:
        with popxl.Session(ir) as s:
            s.run()


def test_frozen():
    ir, v, c, w, o = prog()
    popxl.Session(ir)
    with ir.main_graph:
        with pytest.raises(Exception):
            v + 1


def test_device_info():
    ir, v, c, w, o = prog()
    d = popart.DeviceManager().createIpuModelDevice({"numIPUs": 1})
    s = popxl.Session(ir, d)
    with s:
        s.run()
    d = popart.DeviceManager().createCpuDevice()
    s = popxl.Session(ir, d)
    with s:
        s.run()
    d = popart.DeviceManager().createIpuModelDevice({"numIPUs": 1, "tilesPerIPU": 4})
    d.attach()
    s = popxl.Session(ir, d)
    assert s.is_attached
    s.run()


def test_multi_ipu_cpu():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1.0)
        with popxl.ipu(0):
            x = a + 1
        y = x.copy_to_ipu(1)
        with popxl.ipu(1):
            z = y + 1
    with pytest.raises(ValueError):
        popxl.Session(ir, "cpu")
    with popxl.Session(ir, "ipu_model") as s:
        s.run()


def test_memmap(tmp_path):
    f = tmp_path / "x"

    def mk(dt=np.float32, mode="w+", shape=(2, 2)):
        return np.memmap(f, dt, mode, shape=shape)

    ir = popxl.Ir()
    with ir.main_graph:
        with pytest.raises(
            ValueError,
            match="^When passing a memory-mapped NumPy array it must already be in C-ordered|^When passing a memory-mapped NumPy array, it must already be in C-ordered",
        ):
            popxl.variable(mk().T)
        with pytest.raises(
            ValueError,
            match="^When passing a memory-mapped NumPy array, the dtype None is not supported, as it requires downcasting",
        ):
            popxl.variable(mk(np.float64))
        with pytest.raises(
            ValueError,
            match="^When passing a memory-mapped NumPy array, the `dtype` parameter",
        ):
            popxl.variable(mk(), popxl.float16)
        v = popxl.variable(mk(np.float64), downcast=False)
        w = mk()
        w[:] = 3
        w.flush()
        ro = np.memmap(f, np.float32, "r", shape=(2, 2))
        r = popxl.variable(ro)
        ops.add_(r, popxl.constant(1.0).reshape((1, 1)))
    s = popxl.Session(ir)
    with s:
        s.run()
        with pytest.raises(Exception):
            s.weights_to_host()
    assert s.get_tensor_data(r) is ro
    assert ro[0, 0] == 3


def test_memmap_remote_flush(tmp_path, monkeypatch):
    m = np.memmap(tmp_path / "y", np.float32, "w+", shape=(2,))
    ir = popxl.Ir()
    with ir.main_graph:
        v = popxl.variable(m, popxl.float32)
        ops.add_(v, popxl.constant([1.0, 2.0]))
    with popxl.Session(ir) as s:
        s.run()
    assert s.get_tensor_data(v) is m
    assert m.tolist() == [1, 2]


def test_stub(monkeypatch):
    calls = []
    monkeypatch.setattr(
        popart.InferenceSession, "prepareDevice", lambda self, **k: calls.append("p")
    )
    monkeypatch.setattr(
        popart.InferenceSession, "weightsFromHost", lambda self: calls.append("w")
    )
    ir, v, c, w, o = prog()
    s = popxl.Session(ir, "ipu_hw") if 0 else popxl.Session(ir, "ipu_model")
    assert calls == ["p"]


def test_logs(capfd, monkeypatch):
    monkeypatch.setenv("POPART_LOG_LEVEL", "DEBUG")
    ir, v, c, w, o = prog()
    s = popxl.Session(ir)
    e = capfd.readouterr().err
    assert e.count("Starting compilation") == 1
    assert e.count("Writing weights from host, ") == 0
    with s:
        assert capfd.readouterr().err.count("Writing weights from host, ") == 1
        s.run()
        s.get_tensor_data(v)
        assert capfd.readouterr().err.count("Writing weights to host complete.") == 1
        s.get_tensor_data(v)
        s.get_tensor_data(c)
        assert capfd.readouterr().err.count("Writing weights to host complete.") == 0
        s.run()
        s.get_tensor_data(c)
        assert capfd.readouterr().err.count("Writing weights to host complete.") == 0
        s.write_variable_data(w, np.ones(2, np.float32))
        e = capfd.readouterr().err
        assert e.count("Writing weights from host, ") == 1
        s.run()
    e = capfd.readouterr().err
    assert e.count("Writing weights to host complete.") == 1
    with s:
        pass
    e = capfd.readouterr().err
    assert e.count("Writing weights from host, ") == 1
    assert e.count("Writing weights to host complete.") == 0
