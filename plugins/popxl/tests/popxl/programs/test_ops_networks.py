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
X = f32(4, 4)
I = np.array([0, 1], np.int32)
S = np.array([1, 2], np.uint32)
B = np.ones(2, bool)
vu = ops.var_updates


def test_softmax_ln():
    (r,) = run(lambda x: ops.softmax(x, 1), A)
    e = np.exp(A.reshape(2, -1))
    e /= e.sum(1, keepdims=True)
    np.testing.assert_allclose(r, e.reshape(A.shape), rtol=1e-5)
    (r,) = run(lambda x: ops.softmax(x, -1), A)
    e = np.exp(A)
    np.testing.assert_allclose(r, e / e.sum(-1, keepdims=True), rtol=1e-5)
    w, b = f32(3), f32(3)
    (r,) = run(lambda x, w, b: ops.layer_norm(x, w, b), A, w, b)
    m = A.reshape(2, -1)
    n = (
        (m - m.mean(1, keepdims=True)) / np.sqrt(m.var(1, keepdims=True) + 1e-5)
    ).reshape(A.shape)
    np.testing.assert_allclose(
        r, n * w[None, :, None] + b[None, :, None], rtol=1e-4, atol=1e-5
    )


def test_pools():
    a = f32(1, 1, 4, 4)
    (r,) = run(lambda x: ops.max_pool(x, [2, 2]), a)
    assert r.shape == (1, 1, 3, 3)
    (r,) = run(
        lambda x: ops.average_pool(x, (2, 2), stride=(2, 2), padding=(1, 1, 1, 1)), a
    )
    assert r.shape == (1, 1, 3, 3)
    np.testing.assert_allclose(r[0, 0, 0, 0], a[0, 0, 0, 0])
    (r,) = run(lambda x: ops.max_pool(x, [3, 3], [2, 2], ceil_mode=True), a)
    assert r.shape == (1, 1, 2, 2)
    (r,) = run(lambda x: ops.max_pool(x, (2, 2), storage_order="column"), a)
    (r,) = run(
        lambda x: ops.max_pool(
            x, (2, 2), (1, 1), (0, 0, 0, 0), (0, 0), (1, 1), (1, 1), "not_set"
        ),
        a,
    )
    assert r.shape == (1, 1, 3, 3)
    (r,) = run(
        lambda x: ops.average_pool(
            x, (2, 2), (1, 1), (0, 0, 0, 0), (0, 0), (1, 1), (1, 1), "not_set"
        ),
        a,
    )
    assert r.shape == (1, 1, 3, 3)


@pytest.mark.parametrize("pool", [ops.max_pool, ops.average_pool])
@pytest.mark.parametrize(
    ("kernel", "padding", "dilation"),
    [
        ((2, 2), (2, 0, 0, 0), (1, 1)),
        ((1, 1), (0, 0, 0, 1), (1, 1)),
        ((2, 2), (0, -1, 0, 0), (1, 1)),
        ((2, 0), (0, 0, 0, 0), (1, 1)),
        ((2, 2), (0, 0, 0, 0), (0, 1)),
    ],
)
def test_windows_that_no_pool_has(pool, kernel, padding, dilation):
    with pytest.raises(popart.popart_exception, match="less than its kernel"):
        run(lambda x: pool(x, kernel, None, padding, None, dilation), f32(1, 1, 4, 4))


def test_conv():
    (r,) = run(lambda x, w: ops.conv(x, w), f32(1, 2, 5, 5), f32(3, 2, 3, 3))
    assert r.shape == (1, 3, 3, 3)
    (r,) = run(
        lambda x, w: ops.conv(x, w, (1,), (0, 0), (1,)), f32(1, 2, 5), f32(3, 2, 3)
    )
    assert r.shape == (1, 3, 3)
    (r,) = run(
        lambda x, w: ops.conv(x, w, (1,) * 3, (0,) * 6, (1,) * 3),
        f32(1, 2, 5, 5, 5),
        f32(3, 2, 3, 3, 3),
    )
    assert r.shape == (1, 3, 3, 3, 3)
    (r,) = run(
        lambda x, w: ops.conv(x, w, pad_type="same_upper"),
        f32(1, 2, 5, 5),
        f32(3, 2, 3, 3),
    )
    assert r.shape == (1, 3, 5, 5)
    (r,) = run(lambda x, w: ops.conv(x, w, groups=2), f32(1, 4, 5, 5), f32(2, 2, 3, 3))
    assert r.shape == (1, 2, 3, 3)
    (r,) = run(
        lambda x, w: ops.conv_transpose(x, w, (2, 2)), f32(1, 2, 5, 5), f32(2, 3, 3, 3)
    )
    assert r.shape == (1, 3, 11, 11)
    with pytest.raises(popart.popart_exception):
        run(
            lambda x, w: ops.conv_transpose(x, w, dilation=(2, 2)),
            f32(1, 2, 5, 5),
            f32(2, 3, 3, 3),
        )
    ir = popxl.Ir()
    with ir.main_graph:
        ops.conv(
            popxl.variable(f32(1, 2, 5, 5)),
            popxl.variable(f32(3, 2, 3, 3)),
            available_memory_proportions=[0.3],
            partials_types=["half"] if 0 else None,
            enable_conv_dithering=[True],
        )
        o = ir.main_graph._pb_graph.getOps()[-1]
        c = o.getConvOptions()
        assert np.allclose(list(c.availableMemoryProportions), [0.3])
        c.availableMemoryProportions = [0.1]
        o.setConvOptions(c)
        assert np.allclose(o.getConvOptions().availableMemoryProportions, [0.1])


def test_nll():
    p = np.abs(f32(3, 4)) + 0.1
    p /= p.sum(1, keepdims=True)
    l = np.array([0, 2, 3], np.int32)
    e = -np.log(p[np.arange(3), l])
    for red, f in (("mean", np.mean), ("sum", np.sum), ("none", lambda x: x)):
        (r,) = run(lambda p, l: ops.nll_loss(p, l, reduction=red), p, l)
        np.testing.assert_allclose(r, f(e), rtol=1e-5)
    (r,) = run(lambda p, l: ops.nll_loss(p, l, ignore_index=2), p, l)
    np.testing.assert_allclose(r, (e[0] + e[2]) / 2, rtol=1e-5)
    (r,) = run(lambda p, l: ops.nll_loss(p, l, log_prob=True), np.log(p), l)
    np.testing.assert_allclose(r, e.mean(), rtol=1e-5)
    r, dx = run(lambda p, l: ops.nll_loss_with_softmax_grad(p, l, 2.0), p, l)
    oh = np.eye(4)[l]
    np.testing.assert_allclose(dx, (p - oh) * 2 / 3, rtol=1e-5, atol=1e-6)
    (r,) = run(
        lambda p, l: ops.nll_loss(p, l, ignore_index=0), p, np.zeros(3, np.int32)
    )
    assert r == 0


def test_scatter_red():
    d, i = f32(4, 2), np.array([0, 2, 0, 2], np.int32)
    for red, f in (("sum", np.sum), ("max", np.max), ("min", np.min)):
        (r,) = run(lambda d, i: ops.scatter_reduce(d, i, red, axis_size=3), d, i)
        assert r.shape == (3, 2)
        np.testing.assert_allclose(r[0], f(d[[0, 2]], 0), rtol=1e-6)
        assert (r[1] == 0).all()
    (r,) = run(
        lambda d, i, v: ops.scatter_reduce(d, i, "sum", v),
        d,
        i,
        np.ones((3, 2), np.float32),
    )
    assert (r[1] == 1).all()


def test_rand():
    s = np.array([3, 4], np.uint32)
    a, b = run(
        lambda s: (
            ops.random_uniform(s, (1000,), 2.0, 3.0),
            ops.random_normal(s, (1000,), 1.0, 2.0, popxl.float16),
        ),
        s,
    )
    assert a.min() >= 2
    assert a.max() < 3
    assert abs(b.astype(np.float32).mean() - 1) < 0.3
    assert b.dtype == np.float16
    a, b = run(lambda s: (ops.random_uniform(s, (5,)), ops.random_uniform(s, (5,))), s)
    assert (a == b).all()
    a, b = run(
        lambda s: (ops.random_uniform(s, (5,)), ops.random_uniform(s + 1, (5,))), s
    )
    assert (a != b).any()
    r = run(lambda s: ops.split_random_seed(s, 3), s)
    assert len(r) == 3
    assert all(x[0] == 3 for x in r)
    assert len({int(x[1]) for x in r}) == 3


def test_seeds():
    from popxl.random_seed import (
        MAX_UINT64,
        create_seeds,
        two_uint32_to_uint64,
        uint64_to_two_uint32,
    )

    assert popxl.create_seeds(1).shape == (2,)
    assert create_seeds(1, batches_per_step=3).shape == (3, 2)
    assert create_seeds(1, 0, 2, 3, 4).shape == (2, 3, 4, 2)
    assert create_seeds(1).dtype == np.uint32
    e = np.random.default_rng(1).integers(
        0, MAX_UINT64, 1, dtype=np.uint64, endpoint=True
    )[0]
    assert tuple(create_seeds(1)) == uint64_to_two_uint32(int(e))
    assert two_uint32_to_uint64(*uint64_to_two_uint32(2**40 + 3)) == 2**40 + 3
    for f in (
        lambda: uint64_to_two_uint32(2**64),
        lambda: uint64_to_two_uint32(-1),
        lambda: two_uint32_to_uint64(2**32, 0),
    ):
        with pytest.raises(ValueError):
            f()


def test_fp8_ops():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(X)
        s = popxl.constant(0, popxl.int32)
        with pytest.raises(TypeError):
            ops.pow2scale_cast_to_fp8(x, s, popxl.float16)
        with pytest.raises(ValueError, match="must be a scalar tensor"):
            ops.pow2scale_cast_to_fp8(
                x, popxl.constant([0, 0], popxl.int32), popxl.float8_143
            )
        with pytest.raises(TypeError, match="must be of type popxl.int32"):
            ops.pow2scale_cast_to_fp8(x, popxl.constant(0.0), popxl.float8_143)
        y = ops.pow2scale_cast_to_fp8(x, s, popxl.float8_143)
        with pytest.raises(TypeError):
            ops.pow2scale_cast_from_fp8(y, s, popxl.int32)
        with pytest.raises(TypeError):
            ops.matmul_pow2scaled(x, x, s)
        z = ops.matmul_pow2scaled(y, y, s)
        assert z.dtype == popxl.float16


def test_printing(capfd):
    run(lambda x: ops.print_tensor(x), X[:2, :2])
    e = capfd.readouterr().err
    assert "print_t" in e


def test_remote_code(ir=None):
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0)
        g = ir.create_graph(lambda x: x + 1, x)
        assert ops.remote_code_load(g, "executable") is None
        with pytest.raises(
            ValueError, match="The remote_code_load op cannot load the code"
        ):
            ops.remote_code_load(ir.main_graph, "executable")
        for d in ("compute_buffer", "io_buffer", "foo"):
            with pytest.raises(NotImplementedError):
                ops.remote_code_load(g, d)


def test_updates():
    a, b = f32(3), f32(3)

    def R(fn, *arrs):
        ir = popxl.Ir()
        with ir.main_graph:
            vs = [popxl.variable(x) for x in arrs]
            fn(*vs)
        with popxl.Session(ir) as s:
            s.run()
        return s.get_tensor_data(vs[0])

    T = np.testing.assert_allclose
    T(R(lambda t, x: vu.accumulate_(t, x), a, b), a + b, rtol=1e-5)
    T(R(lambda t, x: vu.accumulate_(t, x, 0.5), a, b), a + 0.5 * b, rtol=1e-5)
    T(
        R(lambda t, x: vu.accumulate_(t, x, popxl.constant(0.5)), a, b),
        a + 0.5 * b,
        rtol=1e-5,
    )
    T(R(lambda t, x: vu.accumulate_square_(t, x), a, b), a + b * b, rtol=1e-5)
    T(
        R(lambda t, x: vu.accumulate_mean_(t, x, 3.0), a, b),
        a * 3 / 4 + b / 4,
        rtol=1e-5,
    )
    T(
        R(lambda t, x: vu.accumulate_mean_(t, x, popxl.constant(3.0)), a, b),
        a * 3 / 4 + b / 4,
        rtol=1e-5,
    )
    T(
        R(lambda t, x: vu.accumulate_moving_average_(t, x, 0.9), a, b),
        0.9 * a + 0.1 * b,
        rtol=1e-5,
    )
    T(
        R(lambda t, x: vu.accumulate_moving_average_square_(t, x, 0.9), a, b),
        0.9 * a + 0.1 * b * b,
        rtol=1e-4,
    )
    T(R(lambda t: vu.accumulator_scale_(t, popxl.constant(0.5)), a), 0.5 * a)
    T(R(vu.accumulator_zero_, a), 0 * a)
    T(R(vu.copy_var_update_, a, b), b)
    T(
        R(lambda t, x: vu.accumulate_(t, x), a, np.array([1, 2, 3], np.int32)),
        a + [1, 2, 3],
        rtol=1e-5,
    )
    with pytest.raises(
        ValueError,
        match="Bias correction requires both beta1 and beta2 to not be None.",
    ):
        R(lambda a, b: vu.adam_updater(a, b, time_step=popxl.variable(1.0)), a, b)
    with pytest.raises(
        ValueError, match="Weight decay requires weight to not be None."
    ):
        R(lambda a, b: vu.adam_updater(a, b, weight_decay=0.1), a, b)
    with pytest.raises(ValueError, match="AdaMax requires time_step to not be None."):
        R(lambda a, b: vu.adamax_updater(a, b), a, b)
