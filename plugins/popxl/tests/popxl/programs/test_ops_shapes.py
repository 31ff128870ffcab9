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


@pytest.mark.parametrize("axis", [None, 0, -1, [0, 2], (1,), [-1, -2]])
@pytest.mark.parametrize("keep", [False, True])
def test_reduce(axis, keep):
    a = np.abs(A) + 0.1
    ax = tuple(axis) if isinstance(axis, (list, tuple)) else axis
    E = {
        "sum": np.sum,
        "mean": np.mean,
        "max": np.max,
        "min": np.min,
        "prod": np.prod,
        "l1": lambda x, **k: np.abs(x).sum(**k),
        "l2": lambda x, **k: np.sqrt((x * x).sum(**k)),
        "logsum": lambda x, **k: np.log(x.sum(**k)),
        "logsumexp": lambda x, **k: np.log(np.exp(x).sum(**k)),
        "sumsquare": lambda x, **k: (x * x).sum(**k),
    }
    res = run(lambda x: [getattr(ops, n)(x, axis, keep) for n in E], a)
    for n, r in zip(E, res):
        e = E[n](a, axis=ax, keepdims=keep)
        assert r.shape == np.shape(e)
        np.testing.assert_allclose(r, e, rtol=1e-4, err_msg=n)
    (m,) = run(lambda x: ops.median(x, axis, keep), A)
    flat = A
    if ax is None:
        e = np.sort(A.reshape(-1))[(A.size - 1) // 2]
        e = e.reshape((1, 1, 1)) if keep else e
    else:
        axs = [x % 3 for x in ((ax,) if isinstance(ax, int) else ax)]
        rest = [i for i in range(3) if i not in axs]
        t = A.transpose(rest + axs).reshape([A.shape[i] for i in rest] + [-1])
        e = np.sort(t, -1)[..., (t.shape[-1] - 1) // 2]
        if keep:
            e = e.reshape([1 if i in axs else A.shape[i] for i in range(3)])
    assert m.shape == e.shape
    assert (m == e).all()


def test_order_ops():
    a = np.array([[1, 3, 3], [2, 0, 2]], np.float32)
    (r,) = run(lambda x: ops.argmax(x, 1), a)
    assert r.dtype == np.int32
    assert r.tolist() == [1, 0]
    (r,) = run(lambda x: ops.argmin(x, -1, True), a)
    assert r.tolist() == [[0], [1]]
    v, i = run(lambda x: ops.topk(x, 2, 1, True, True), a)
    assert v.tolist() == [[3, 3], [2, 2]]
    assert i.dtype == np.int32
    v, i = run(lambda x: ops.topk(x, 1, 0, False, True), a)
    assert v.tolist() == [[1, 0, 2]]
    with pytest.raises(popart.popart_exception):
        run(lambda x: ops.topk(x, 4, 1, True, True), a)
    (r,) = run(lambda x: ops.cumsum(x, 1), a)
    assert (r == np.cumsum(a, 1)).all()
    (r,) = run(lambda x: ops.cumsum(x, -1), a)
    assert (r == np.cumsum(a, 1)).all()
    ir = popxl.Ir()
    with ir.main_graph:
        ops.cumsum(popxl.variable(a), 1)
        (c,) = ir.main_graph.constants
        assert c.name == "dim"
        assert c.dtype == popxl.int64
    (r,) = run(lambda x: ops.histogram(x, [1.0, 2.5], False), a)
    assert r.tolist() == [1, 3, 2]
    assert r.dtype == np.uint32
    (r,) = run(lambda x: ops.histogram(x, [1.0, 2.5], True), -a)
    assert r.tolist() == [1, 3, 2]
    with pytest.raises(ValueError):
        run(lambda x: ops.histogram(x, [1.0, 1.0], True), a)
    (r,) = run(ops.lamb_square, a.astype(np.float16))
    assert r.dtype == np.float32
    assert r.shape == ()
    assert r == (a * a).sum()


def test_shape_errs():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(A)
        P = popart.popart_exception
        with pytest.raises(
            ValueError, match=r"Invalid shape value in reshape.*\(0, 2\)"
        ):
            x.reshape((0, 2))
        with pytest.raises(
            ValueError, match="Reshape shape can contain at most one '-1' value"
        ):
            x.reshape((-1, -1))
        with pytest.raises(P):
            x.reshape((5,))
        with pytest.raises(
            ValueError, match="Values in permutation must be less than .*rank 3"
        ):
            x.transpose((0, 1, 3))
        with pytest.raises(P):
            x.transpose((0, 0, 1))
        with pytest.raises(
            TypeError,
            match="^All inputs to a concat operation must have the same type:",
        ):
            ops.concat([x, popxl.variable(1)])
        with pytest.raises(P):
            ops.concat([x, popxl.variable(X)])
        y = popxl.variable(np.zeros((1, 2, 1), np.float32))
        assert ops.squeeze(y).shape == (2,)
        assert ops.squeeze(y, [0]).shape == (2, 1)
        assert ops.squeeze(y, [-1]).shape == (1, 2)
        for bad in ([0, 0], [3], [1]):
            with pytest.raises(ValueError):
                ops.squeeze(y, bad)
        assert ops.slice(x) is x
        with pytest.raises(ValueError):
            ops.slice(x, [0, 0], [1])
        with pytest.raises(P):
            ops.slice(x, 0, 2, 2)
        assert ops.slice(x, [0, 1], [2, 3]).shape == (2, 2, 4)
        assert ops.slice(x, 1, 3, axis=1).shape == (2, 2, 4)
        assert ops.slice(x, step=-1).shape == A.shape
        assert ops.slice(x, start=[None, 1]).shape == (2, 2, 4)
        l = [2]
        assert ops.subsample(x, l).shape == (1, 3, 4)
        assert l == [2, 1, 1]
        with pytest.raises(ValueError):
            ops.subsample(x, [1, 1, 1, 1])
        with pytest.raises(P):
            ops.subsample(x, 0)
        with pytest.raises(ValueError):
            ops.split(x, 3)
        with pytest.raises(P):
            ops.split(x, [1, 3])
        assert isinstance(ops.split(x, [1, 1]), list)
        with pytest.raises(ValueError):
            ops.init((2,), popxl.float32, init_type="foo")
        with pytest.raises(ValueError):
            ops.nll_loss(x, x, reduction="foo")
        for k in ("mode", "nearest_mode", "coordinate_transformation_mode"):
            with pytest.raises(ValueError):
                ops.interpolate(popxl.variable(f32(1, 1, 2, 2)), **{k: "foo"})
        with pytest.raises(P):
            ops.batch_norm_inference(
                popxl.variable(f32(2, 3)),
                *[popxl.variable(np.ones(3, np.float32)) for _ in range(4)],
            )
        with pytest.raises(ValueError):
            ops.conv(
                popxl.variable(f32(1, 1, 4, 4)),
                popxl.variable(f32(1, 1, 2, 2)),
                pad_type="foo",
            )
        with pytest.raises(TypeError):
            ops.cast(x, popxl.float8_143)
        with pytest.raises(P):
            ops.dropout(x, popxl.variable(S), 1.0)
        with pytest.raises(ValueError):
            ops.split_random_seed(popxl.variable(np.ones(3, np.uint32)))
        with pytest.raises(ValueError):
            ops.scatter_reduce(x, popxl.variable(I), "sum")
        with pytest.raises(ValueError):
            ops.scatter_reduce(x, popxl.variable(I), "foo", axis_size=2)


def test_slice_vals():
    for k in [
        (slice(None, None, -1),),
        (slice(-2, None),),
        (slice(0, 100),),
        (slice(1, 0),),
        (slice(None), slice(2, 0, -1)),
        (slice(None), slice(None), slice(None, None, 3)),
        (slice(None), slice(None), slice(None, None, -2)),
        (1, slice(None), -1),
    ]:
        if np.zeros(A.shape)[k].size == 0:
            continue
        (r,) = run(lambda x: x[k], A)
        assert (r == A[k]).all() and r.shape == A[k].shape, k
    m = A > 0
    (r,) = run(lambda x: x[m], A)
    assert (r == np.where(m, A, 0)).all()
    (r,) = run(lambda x: x[[1, 0]], A)
    assert (r == A[[1, 0]]).all()
    (r,) = run(lambda x: ops.slice(x, [None, -2], [-1, None], [1, 1], [1, 2]), A)
    assert (r == A[:, :-1, -2:]).all()
    (r,) = run(lambda x: x.diag(), A[0])
    assert (r == np.diag(A[0])).all()


def test_gather_vals():
    i = np.array([[0, 1], [1, 0]], np.int32)
    for ax in (0, 1, -1):
        (r,) = run(lambda x, j: ops.gather(x, j, ax), A, i)
        assert (r == np.take(A, i, ax)).all()
    (r,) = run(
        lambda x, j: ops.gather(x, j, zero_OOR=True), A, np.array([-1, 1, 5], np.int32)
    )
    assert (r[0] == 0).all()
    assert (r[2] == 0).all()
    assert (r[1] == A[1]).all()
    run(lambda x, j: ops.gather(x, j), A, np.array([-1, 1, 5], np.int32))
    (r,) = run(lambda x, j: ops.gather(x, j), A, np.array([1, 0], np.uint32))
    assert (r == A[[1, 0]]).all()
    t, j = f32(2, 3, 4), np.array([[0, 2], [1, 1]], np.int32)
    (r,) = run(lambda x, j: ops.groupedgather(x, j, axis=1, group_size=2), t, j)
    assert (r == np.stack([t[g][j[g]] for g in range(2)])).all()


def test_dyn():
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    (r,) = run(
        lambda x, i: ops.dynamic_slice(x, i, [0, 1], [2, 2], True),
        a,
        np.array([1, 2], np.uint32),
    )
    assert (r == a[1:3, 2:4]).all()
    e = a.copy()
    e[:, 1:3] = 9
    (r,) = run(
        lambda x, i: ops.dynamic_update(
            x, i, popxl.constant(np.full((3, 2), 9, np.float32)), [1], [2], True
        ),
        a,
        np.array([1], np.uint32),
    )
    assert (r == e).all()
    (r,) = run(
        lambda x, i: ops.dynamic_update_(
            x, i, popxl.constant(np.full((3, 2), 9, np.float32)), [1], [2], True
        ),
        a,
        np.array([1], np.uint32),
    )
    assert (r == e).all()
