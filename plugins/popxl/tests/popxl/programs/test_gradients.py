import numpy as np
import pytest

import popart
import popxl
from popxl import ops
from popxl.transforms import ExpectedConnectionType, autodiff

V = lambda *s: popxl.variable(
    np.abs(np.random.default_rng(1).normal(size=s)).astype(np.float32) + 1
)
W = lambda a: popxl.variable(a)
I = lambda *v: popxl.variable(np.array(v, np.int32))


def asked(fn, *args, required=None):
    ir = popxl.gir()
    g = ir.create_graph(fn, *args)
    before = len(g.outputs)
    info = autodiff(
        g, grads_required=None if required is None else [g.inputs[i] for i in required]
    )
    names = {}
    for n, t in enumerate(g.inputs):
        names[t] = f"i{n}"
    for n, t in enumerate(g.outputs[:before]):
        names[t] = f"o{n}"
    got = [
        names.get(e.fwd_tensor, e.fwd_tensor.name)
        for e in info.expected_inputs
        if e.connection_type == ExpectedConnectionType.Fwd
    ]
    return sorted(got), len(g.outputs) - before


CASES = [
    (lambda: asked(ops.add, V(2), V(2)), ["i0", "i1", "o0"], 0),
    (lambda: asked(ops.sub, V(2), V(2), required=[0]), ["i0", "i1", "o0"], 0),
    (lambda: asked(ops.mul, V(2), V(2)), ["i0", "i1", "o0"], 0),
    (lambda: asked(ops.div, V(2), V(2)), ["i0", "i1", "o0"], 0),
    (lambda: asked(ops.pow, V(2), V(2)), ["i0", "i1", "o0"], 0),
    (lambda: asked(ops.fmod, V(2), V(2), required=[0]), ["i0", "i1", "o0"], 0),
    (lambda: asked(ops.matmul, V(2, 3), V(3, 2)), ["i0", "i1"], 0),
    (lambda: asked(ops.conv, V(1, 1, 4, 4), V(1, 1, 2, 2)), ["i0", "i1"], 0),
    (lambda: asked(lambda x: ops.max_pool(x, (2, 2)), V(1, 1, 4, 4)), ["i0", "o0"], 0),
    (lambda: asked(lambda x: ops.average_pool(x, (2, 2)), V(1, 1, 4, 4)), ["o0"], 0),
    (lambda: asked(lambda x: ops.max(x, 0), V(2, 2)), ["i0", "o0"], 0),
    (lambda: asked(lambda x: ops.min(x, 0), V(2, 2)), ["i0", "o0"], 0),
    (lambda: asked(lambda x: ops.sum(x, 0), V(2, 2)), ["i0"], 0),
    (lambda: asked(lambda x: ops.mean(x, 0), V(2, 2)), ["i0"], 0),
    (
        lambda: asked(lambda p, l: ops.nll_loss(p, l), V(2, 3), I(0, 1), required=[0]),
        ["i0", "i1"],
        0,
    ),
    (
        lambda: asked(lambda t, i: ops.gather(t, i), V(2, 3), I(0, 1), required=[0]),
        ["i1"],
        0,
    ),
    (
        lambda: asked(
            lambda c, a, b: ops.where(c, a, b),
            W(np.array([True, False])),
            V(2),
            V(2),
            required=[1, 2],
        ),
        ["i0"],
        0,
    ),
    (
        lambda: asked(
            lambda t, s: ops.dropout(t, s, 0.5),
            V(2),
            W(np.array([1, 2], np.uint32)),
            required=[0],
        ),
        ["i1"],
        0,
    ),
    (lambda: asked(lambda t: ops.reshape(t, (4,)), V(2, 2)), [], 0),
    (lambda: asked(lambda t: t.T, V(2, 2)), [], 0),
    (lambda: asked(lambda t: t[0], V(2, 2)), [], 0),
    (lambda: asked(lambda t: ops.concat([t, t]), V(2, 2)), [], 0),
    (lambda: asked(lambda t: ops.split(t, 2), V(2, 2)), [], 0),
    (lambda: asked(lambda t: ops.cast(t, popxl.float16), V(2, 2)), [], 0),
    (lambda: asked(ops.relu, V(2)), ["o0"], 0),
    (lambda: asked(ops.sqrt, V(2)), ["o0"], 0),
    (lambda: asked(ops.tanh, V(2)), ["o0"], 0),
    (lambda: asked(ops.exp, V(2)), ["o0"], 0),
    (lambda: asked(lambda t: ops.softmax(t, -1), V(2)), ["o0"], 0),
    (lambda: asked(lambda t: ops.clip(t, 0, 1), V(2)), ["o0"], 0),
    (lambda: asked(ops.gelu, V(2)), ["i0"], 0),
    (lambda: asked(ops.geluerf, V(2)), ["i0"], 0),
    (lambda: asked(ops.swish, V(2)), ["i0"], 0),
    (lambda: asked(ops.abs, V(2)), ["i0"], 0),
    (lambda: asked(ops.log, V(2)), ["i0"], 0),
    (lambda: asked(ops.cos, V(2)), ["i0"], 0),
    (lambda: asked(ops.sin, V(2)), ["i0"], 0),
    (
        lambda: asked(
            lambda x, w, b: x @ w + b, V(2, 3), V(3, 2), V(2), required=[1, 2]
        ),
        ["i0", "i1", "i2", "matmul_out", "o0"],
        1,
    ),
    (lambda: asked(lambda t: ops.identity(t), V(2)), [], 0),
    (lambda: asked(ops.negate, V(2)), ["i0"], 0),
    (lambda: asked(lambda t: ops.l2(t, 0), V(2, 2)), ["i0"], 0),
    (lambda: asked(lambda t: ops.l1(t, 0), V(2, 2)), ["i0"], 0),
    (lambda: asked(lambda t: ops.sumsquare(t, 0), V(2, 2)), ["i0"], 0),
]


@pytest.mark.parametrize("n", range(len(CASES)))
def test_asked(n):
    with popxl.Ir().main_graph:
        fn, want, added = CASES[n]
        got = fn()
        assert got == (want, added)


def test_pb():
    ir = popxl.Ir()
    with ir.main_graph:
        v = popxl.variable(np.ones(2), popxl.float8_143)
        assert v._pb_tensor.info.dataType() == popart.DataType.FLOAT8_143
        assert popxl.variable(1.0)._pb_tensor.info.dataType() == popart.DataType.FLOAT
        assert v._pb_tensor.info.data_type_lcase() == "float8_143"


def test_meta():
    ir = popxl.Ir()
    with ir.main_graph:
        s = ops.collectives.replica_sharded_slice(V(2, 2))
        assert (s + 1).meta_shape == (2, 2)
        assert (s * 2).meta_shape == (2, 2)
        assert ops.relu(s).meta_shape in ((2, 2), ())


def test_scatter_group():
    from popxl.ops.scatter_reduce import grouped_scatter_reduce

    ir = popxl.Ir()
    with ir.main_graph:
        d = popxl.variable(np.arange(12, dtype=np.float32).reshape(2, 3, 2))
        i = popxl.variable(np.array([[0, 0, 1], [2, 1, 2]], np.int32))
        r = grouped_scatter_reduce(d, i, "sum", axis=1, axis_size=3, group_size=2)
        o = popxl.d2h_stream(r.shape, r.dtype)
        ops.host_store(o, r)
        d2 = popxl.variable(np.arange(6, dtype=np.float32).reshape(3, 2))
        j = popxl.variable(np.array([[0, 1], [1, 0], [0, 0]], np.int32))
        q = ops.scatter_reduce(d2, j, "sum", axis_size=2, enable_index_broadcast=False)
        p = popxl.d2h_stream(q.shape, q.dtype)
        ops.host_store(p, q)
    with popxl.Session(ir) as s:
        f = s.run()
    assert f[o].tolist() == [[[2, 4], [4, 5], [0, 0]], [[0, 0], [8, 9], [16, 18]]]
    assert f[p].tolist() == [[0 + 4, 3 + 5], [2, 1]]


def test_multi_exchange_store():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.h2d_stream((2,), popxl.float32, "a")
        o = popxl.d2h_stream((2,), popxl.float32, "o")
        v = popxl.variable(np.ones(2, np.float32))
        with popxl.transforms.merge_exchange():
            x = ops.host_load(a)
            ops.host_store(o, v)
        p = popxl.d2h_stream((2,), popxl.float32, "p")
        ops.host_store(p, x * 2)
        assert [q.opType() for q in ir.main_graph._pb_graph.getOps()].count(
            "MultiExchange"
        ) == 1
    with popxl.Session(ir) as s:
        r = s.run({a: np.ones(2)})
        assert r[o].tolist() == [1, 1]
        assert r[p].tolist() == [2, 2]


def test_fp8_autodiff_refuses():
    ir = popxl.Ir()
    with ir.main_graph:
        for f in (
            lambda x: ops.pow2scale_cast_from_fp8(
                ops.pow2scale_cast_to_fp8(
                    x, popxl.constant(0, popxl.int32), popxl.float8_143
                ),
                popxl.constant(0, popxl.int32),
                popxl.float32,
            ),
        ):
            g = ir.create_graph(f, V(2))
            with pytest.raises(popart.popart_exception):
                autodiff(g)


def test_stops():
    ir = popxl.Ir()
    with ir.main_graph:
        for f in (
            lambda x: ops.detach(x),
            lambda x: ops.cast(ops.argmax(x), popxl.float32),
            lambda x: ops.cast(ops.cast(x, popxl.int32), popxl.float32),
            lambda x: ops.cast(ops.isnan(x), popxl.float32),
        ):
            g = ir.create_graph(f, V(2))
            with pytest.raises(
                popart.popart_exception,
                match="Unable to provide required gradient output",
            ):
                autodiff(g)


def test_zero_grads():
    ir = popxl.Ir()
    with ir.main_graph:
        for f in (ops.ceil, ops.floor, ops.sign):
            x = V(2)
            g = ir.create_graph(f, x)
            i = autodiff(g)
            c = ops.call_with_info(g, x)
            (d,) = ops.call(
                i.graph,
                popxl.constant(np.ones(2, np.float32)),
                inputs_dict=i.inputs_dict(c),
            )
            o = popxl.d2h_stream((2,), popxl.float32)
            ops.host_store(o, d)
    with popxl.Session(ir) as s:
        assert all((v == 0).all() for v in s.run().values())
