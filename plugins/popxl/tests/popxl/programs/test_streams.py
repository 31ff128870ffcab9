import numpy as np
import pytest

import popxl
from popxl import ops


def one(shape=(2,), n=1, dt=popxl.float32):
    ir = popxl.Ir()
    ir.num_host_transfers = n
    with ir.main_graph:
        a = popxl.h2d_stream(shape, dt, "a")
        o = popxl.d2h_stream(shape, dt, "o")

        def f():
            ops.host_store(o, ops.host_load(a))

        g = ir.create_graph(f)
        if n > 1:
            ops.repeat(g, n)
        else:
            ops.call(g)
    return ir, a, o


def test_stream_attrs():
    ir = popxl.Ir()
    with pytest.raises(NotImplementedError):
        popxl.streams.Stream()
    with ir.main_graph:
        a = popxl.h2d_stream((2,), popxl.float32)
        b = popxl.h2d_stream([2], popxl.int32, "foo")
        c = popxl.d2h_stream((), popxl.float16)
        b2 = popxl.h2d_stream((2,), popxl.int32, "foo")
        assert a.tensor_id == "h2d_stream"
        assert c.tensor_id == "d2h_stream"
        assert b.tensor_id == "foo"
        assert b2.tensor_id.startswith("foo__t")
        assert b.shape == (2,)
        assert b.dtype == popxl.int32
        assert b.spec == popxl.TensorSpec((2,), popxl.int32)
        assert str(a).startswith("HostToDeviceStream ")
        assert repr(c).startswith("DeviceToHostStream ")
        assert a == a
        assert a != b
        assert len({a, b, c, a}) == 3
    g = ir.create_empty_graph()
    with g:
        d = popxl.d2h_stream((3,), popxl.float32, "d")
    assert d.tensor_id == "d"
    assert ir.main_graph.get_tensor("d").shape == (3,)
    assert not g.tensors


def test_load_names():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.h2d_stream((2,), popxl.float32, "a")
        x = ops.host_load(a)
        y = ops.host_load(a, "foo")
        assert x.name == "a_hostload"
        assert y.name == "foo_hostload"
        ids = {t.id for t in ir.main_graph.tensors}
        assert ids == {"a", "a_init", "a_hostload", "foo_init", "foo_hostload"}
        with pytest.raises(ValueError):
            ops.host_store(popxl.d2h_stream((3,), popxl.float32), x)
        with pytest.raises(ValueError):
            ops.host_store(popxl.d2h_stream((2,), popxl.float16), x)
        assert ops.host_store(popxl.d2h_stream((2,), popxl.float32), x) is None


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 2), (2, 3)])
def test_shapes(n, shape):
    ir, a, o = one(shape, n)
    lead = (n,) if n > 1 else ()
    full = lead + shape
    x = np.arange(np.prod(full, dtype=int), dtype=np.float32).reshape(full)
    with popxl.Session(ir) as s:
        r = s.run({a: x})[o]
        assert r.shape == full
        assert (r == x).all()
        assert s.create_host_outputs()[o].shape == full
        r = s.run({a: x.tolist()})[o]
        assert (r == x).all()
        r = s.run({a: x.astype(np.float64)})[o]
        assert (r == x).all()
        r = s.run({a: x.astype(np.int64)})[o]
        assert (r == x).all()
        with pytest.raises(ValueError, match="Unexpected/Missing"):
            s.run({})
        with pytest.raises(ValueError, match="Unexpected/Missing"):
            s.run()
        with pytest.raises(ValueError):
            s.run({a: np.zeros(full + (7,), np.float32)})
        if n > 1:
            with pytest.raises(ValueError):
                s.run({a: x[:2]})
            big = np.concatenate([x, x])
            assert (s.run({a: big})[o] == x).all()
        s._validate_run_inputs({a: x})
        s._validate_run_outputs({o: x})
        out = {o: np.zeros(full, np.float32)}
        assert s.run_with_outputs({a: x}, out) is None
        assert (out[o] == x).all()
        with pytest.raises(ValueError, match="Unexpected/Missing"):
            s.run_with_outputs({a: x}, {})
        with pytest.raises(ValueError, match="Unexpected/Missing"):
            s.run_with_outputs({a: x})


def test_loophole():
    ir, a, o = one(())
    with popxl.Session(ir) as s:
        for v in (
            1.0,
            1,
            np.float32(1),
            np.ones(1, np.float32),
            [1.0],
            np.ones((1, 1), np.float32),
            True,
        ):
            r = s.run({a: v})[o]
            assert r.shape == ()
            assert r == 1
    ir, a, o = one((1,))
    with popxl.Session(ir) as s:
        for v in (1.0, np.float32(1), np.ones(1, np.float32)):
            r = s.run({a: v})[o]
            assert r.shape == (1,)
            assert r[0] == 1
    ir, a, o = one((), 3)
    with popxl.Session(ir) as s:
        for v in ([1, 2, 3], np.ones((3, 1)), [[1], [2], [3]]):
            r = s.run({a: v})[o]
            assert r.shape == (3,)


def test_out_shape_bad():
    ir, a, o = one((2,))
    with popxl.Session(ir) as s:
        with pytest.raises(ValueError, match="Shape mismatch"):
            s.run_with_outputs(
                {a: np.zeros(2, np.float32)}, {o: np.zeros(3, np.float32)}
            )
        with pytest.raises(ValueError, match="Shape mismatch"):
            s.run({a: np.zeros(3, np.float32)})


def test_alternate():
    ir = popxl.Ir()
    ir.num_host_transfers = 4
    with ir.main_graph, popxl.in_sequence():
        a = popxl.h2d_stream((), popxl.float32, "a")
        o = popxl.d2h_stream((), popxl.float32, "o")
        p = popxl.d2h_stream((), popxl.float32, "p")

        def f():
            with popxl.in_sequence():
                x = ops.host_load(a)
                y = ops.host_load(a)
                ops.host_store(o, x)
                ops.host_store(p, y)

        ops.repeat(ir.create_graph(f), 2)
    with popxl.Session(ir) as s:
        r = s.run({a: np.arange(4)})
        assert r[o][:2].tolist() == [0, 2]
        assert r[p][:2].tolist() == [1, 3]


def test_downcast():
    ir, a, o = one((2,), dt=popxl.int32)
    with popxl.Session(ir) as s:
        assert s.run({a: np.array([1, 2], np.int64)}, downcast_inputs=False)[
            o
        ].tolist() == [1, 2]
        assert s.run({a: np.array([1.7, 2])})[o].tolist() == [1, 2]


def test_dtypes():
    for d in (
        popxl.bool,
        popxl.int8,
        popxl.uint8,
        popxl.int32,
        popxl.uint32,
        popxl.float16,
        popxl.float32,
        popxl.int16,
        popxl.uint16,
    ):
        ir, a, o = one((2,), dt=d)
        with popxl.Session(ir) as s:
            r = s.run({a: np.array([0, 1], d.as_numpy())})[o]
            assert r.dtype == d.as_numpy()
            assert r.tolist() == [0, 1]


def test_transfers_larger_unread():
    ir = popxl.Ir()
    ir.num_host_transfers = 3
    with ir.main_graph:
        a = popxl.h2d_stream((), popxl.float32, "a")
        o = popxl.d2h_stream((), popxl.float32, "o")
        ops.host_store(o, ops.host_load(a) + 1)
    with popxl.Session(ir) as s:
        out = {o: np.full(3, 7, np.float32)}
        s.run_with_outputs({a: [1, 2, 3]}, out)
        assert out[o].tolist() == [2, 7, 7]
