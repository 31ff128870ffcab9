import numpy as np
import pytest

import popart
import popxl
from popxl import ops

rng = np.random.default_rng(0)


def run(build, *arrays, kind="ipu_model"):
    ir = popxl.Ir()
    with ir.main_graph:
        vs = [popxl.variable(a, popxl.dtype.as_dtype(a.dtype)) for a in arrays]
        made = build(*vs)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        st = [popxl.d2h_stream(t.shape, t.dtype) for t in made]
        for s, t in zip(st, made):
            ops.host_store(s, t)
    with popxl.Session(ir, kind) as s:
        r = s.run()
    return [r[x] for x in st]


f32 = lambda *s: rng.normal(size=s).astype(np.float32)
A = f32(2, 3, 4)
import math

erf = np.vectorize(math.erf)
UN = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "sign": np.sign,
    "cos": np.cos,
    "sin": np.sin,
    "tanh": np.tanh,
    "exp": np.exp,
    "exp_": np.exp,
    "negate": np.negative,
    "relu": lambda x: np.maximum(x, 0),
    "relu_": lambda x: np.maximum(x, 0),
    "gelu": lambda x: (
        0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    ),
    "geluerf": lambda x: 0.5 * x * (1 + erf(x / 2**0.5)),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "logical_not": lambda x: ~x.astype(bool),
    "detach": lambda x: x,
    "identity": lambda x: x,
    "print_tensor": lambda x: x,
}


@pytest.mark.parametrize("n", UN)
@pytest.mark.parametrize("dt", [np.float32, np.float16])
def test_un(n, dt):
    a = A.astype(dt)
    (r,) = run(getattr(ops, n), a)
    e = UN[n](a.astype(np.float32))
    assert r.dtype == (bool if e.dtype == bool else dt)
    np.testing.assert_allclose(
        r.astype(np.float32),
        e,
        rtol=3e-3 if dt == np.float16 else 1e-5,
        atol=3e-3 if dt == np.float16 else 1e-6,
    )


@pytest.mark.parametrize("n", ["sqrt", "log", "log2"])
def test_un_pos(n):
    a = np.abs(A) + 0.5
    (r,) = run(getattr(ops, n), a)
    np.testing.assert_allclose(r, getattr(np, n)(a), rtol=1e-5, atol=1e-6)


INT = {
    "abs": np.abs,
    "sign": np.sign,
    "negate": np.negative,
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("n", INT)
def test_un_int(n):
    a = np.array([-3, 0, 4], np.int32)
    (r,) = run(getattr(ops, n), a)
    assert r.dtype == np.int32
    assert (r == INT[n](a)).all()


X = f32(4, 4)
I = np.array([0, 1], np.int32)
S = np.array([1, 2], np.uint32)
B = np.ones(2, bool)


def test_print_errs():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0)
        for k in ("separator", "open_bracket", "close_bracket"):
            with pytest.raises(ValueError):
                ops.print_tensor(x, **{k: "ab"})
        with pytest.raises(KeyError):
            ops.print_tensor(x, float_format="zz")


def test_bin():
    a, b = f32(3, 4), f32(4)
    for n, f in {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "fmod": np.fmod,
        "equal": np.equal,
        "greater": np.greater,
    }.items():
        (r,) = run(getattr(ops, n), a, b)
        np.testing.assert_allclose(r, f(a, b), rtol=1e-5, atol=1e-6)
    i, j = np.array([-7, 7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    (r,) = run(ops.div, i, j)
    assert r.tolist() == [-3, 3, -3, 3]
    assert r.dtype == np.int32
    (r,) = run(ops.fmod, i, j)
    assert r.tolist() == np.fmod(i, j).tolist()
    (r,) = run(lambda x: ops.maximum(x, x * 2, x * 3), a)
    np.testing.assert_allclose(r, np.maximum(a, a * 3))
    (r,) = run(lambda x: ops.maximum(x), a)
    h = np.ones(3, np.float16)
    s = np.array(2.0, np.float32)
    (r,) = run(ops.mul, h, s)
    assert r.dtype == np.float16
    (r,) = run(ops.mul, s, h)
    assert r.dtype == np.float16
    for n in ("add", "sub", "div"):
        with pytest.raises(popart.popart_exception):
            run(getattr(ops, n), h, s)
    with pytest.raises(
        popart.popart_exception, match="np broadcasting failed .*incompatible types"
    ):
        run(ops.add, i, a[0])
    with pytest.raises(popart.popart_exception):
        run(ops.add, a, f32(3))
    with pytest.raises(popart.popart_exception):
        run(ops.add_, b, a)


def test_scaled_add():
    a, b = f32(3), f32(3)
    (r,) = run(lambda x, y: ops.scaled_add(x, y, 2, popxl.constant(3.0)), a, b)
    np.testing.assert_allclose(r, 2 * a + 3 * b, rtol=1e-5)
    (r,) = run(
        lambda x, y: ops.scaled_add(x, y, a=popxl.constant(2.0), b=0.5),
        a.astype(np.float16),
        b,
    )
    assert r.dtype == np.float16
    with pytest.raises(popart.popart_exception):
        run(ops.scaled_add, a, f32(1))


def test_matmul():
    for s1, s2 in [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 1, 2, 3), (7, 3, 4)),
        ((2, 3), (5, 3, 4)),
    ]:
        a, b = f32(*s1), f32(*s2)
        (r,) = run(ops.matmul, a, b)
        np.testing.assert_allclose(r, a @ b, rtol=1e-4, atol=1e-5)
    a, b = f32(2, 3), f32(3, 4)
    (r,) = run(lambda x, y: ops.matmul(x, y, 0.3, popxl.float16, popxl.float32), a, b)
    assert r.dtype == np.float16
    with pytest.raises(ValueError):
        run(lambda x, y: ops.matmul(x, y, partials_type=popxl.int32), a, b)
    with pytest.raises(popart.popart_exception):
        run(ops.matmul, np.float32(1).reshape(()), b)
    with pytest.raises(popart.popart_exception):
        run(ops.matmul, a, a)
    ir = popxl.Ir()
    o = ir._pb_ir.getSessionOptions()
    with ir.main_graph:
        x = popxl.variable(X)
        for v, e in (
            ("", "FLOAT"),
            ("float", "FLOAT"),
            ("half", "HALF"),
            ("HALF", "HALF"),
        ):
            o.partialsTypeMatMuls = v
            x @ x
            p = ir.main_graph._pb_graph.getOps()[-1].getPartialsType()
            assert str(p).upper().endswith(e), p
        o.partialsTypeMatMuls = "zz"
        with pytest.raises(ValueError):
            x @ x


def test_numbers_that_an_integer_type_does_not_hold():
    x, y = np.array([1, 5, 9], np.uint32), np.array([2, 3, 1], np.uint32)
    less, low, high = run(
        lambda x, y: (
            ops.scaled_add(x, y, 1, -1),
            ops.clip(x, -1, 5),
            ops.clip(ops.cast(x, popxl.int32), -1e10, 1e10),
        ),
        x,
        y,
    )
    np.testing.assert_array_equal(less, x - y)
    assert low.tolist() == [1, 5, 5]
    assert high.tolist() == [1, 5, 9]
    ir = popxl.Ir()
    with ir.main_graph:
        graph = ir.create_graph(lambda t: ops.clip(t, max=5), popxl.variable([1, 9]))
        info = popxl.transforms.autodiff(graph)
        call = ops.call_with_info(graph, popxl.variable([1, 9]))
        seed = popxl.constant([1, 1])
        (dx,) = ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
        out = popxl.d2h_stream(dx.shape, dx.dtype)
        ops.host_store(out, dx)
    with popxl.Session(ir) as session:
        assert session.run()[out].tolist() == [1, 0]


FRACTIONS = {
    **{n: getattr(ops, n) for n in "cos sin tanh exp log gelu geluerf swish".split()},
    "softmax": lambda x: ops.softmax(x, 0),
    "scaled_add": lambda x: ops.scaled_add(x, x, 1, -0.5),
    "scaled_add_": lambda x: ops.scaled_add_(x, x, b=-0.5),
    "increment_mod": lambda x: ops.increment_mod(x, 1.5, 4),
    "accumulate_": lambda x: ops.var_updates.accumulate_(x, x, 0.5),
    "moving": lambda x: ops.var_updates.accumulate_moving_average_(x, x, 0.9),
    "scale": lambda x: ops.var_updates.accumulator_scale_(x, 0.5),
}


@pytest.mark.parametrize("n", FRACTIONS)
@pytest.mark.parametrize("dt", [np.int32, np.uint8])
def test_fractions_of_integers_are_refused(n, dt):
    with pytest.raises(popart.popart_exception, match=r"cast\s+the tensor"):
        run(FRACTIONS[n], np.array([10, 20], dt))


def test_limits_between_integers_keep_the_integers_between():
    x = np.array([3, 4, 5, 9], np.int32)
    (clipped,) = run(lambda x: ops.clip(x, 3.5, 8.5), x)
    assert clipped.tolist() == [4, 4, 5, 8]
