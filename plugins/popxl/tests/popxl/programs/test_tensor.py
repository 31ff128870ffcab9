import numpy as np
import pytest

import popart
import popxl
from popxl import ops
from popxl.tensor import Tensor, TensorSpec


@pytest.fixture
def ir():
    ir = popxl.Ir()
    with ir.main_graph:
        yield ir


def test_ctor():
    with pytest.raises(RuntimeError):
        Tensor()


def test_repr(ir):
    a = popxl.variable(np.ones((1, 2, 3)), popxl.float16, "a")
    c = popxl.constant(1, name="c")
    t = a + 1
    assert repr(a) == "Variable[a popxl.dtypes.float16 (1, 2, 3)]"
    assert repr(c) == "Constant[c popxl.dtypes.int32 ()]"
    assert repr(t) == "Tensor[add_out popxl.dtypes.float16 (1, 2, 3)]"
    assert (a == c) is False
    assert (a == a) is True
    assert (a != c) is True
    assert (a == 1) is False
    assert len({a, a, c}) == 2
    assert a.rank == 3
    assert a.nelms == 6
    assert c.nelms == 1
    assert c.rank == 0
    assert a.strides() == (12, 6, 2)
    assert tuple(a.strides((2, 2))) == (4, 2)
    assert a.spec == TensorSpec((1, 2, 3), popxl.float16)
    assert a.meta_shape == ()


def test_ids(ir):
    a = popxl.variable(1)
    assert a.id == "t"
    b = popxl.variable(1)
    assert b.id.startswith("t__t")
    with popxl.name_scope("s") as sc:
        assert sc == ["s"]
        c = popxl.variable(1, name="c")
        assert c.id == "s/c"
        assert c.name == "s/c"
        g = ir.create_graph(lambda x: x + 1, c)
    assert g.inputs[0].id.startswith(g.id + "/")
    assert g.inputs[0].scope == g.id
    assert c.scope == ""
    (o,) = ops.call(g, c)


def test_g_scope(ir):
    a = popxl.variable(1.0, name="a")

    def f(x):
        with popxl.name_scope("foo"):
            return x + 1

    g = ir.create_graph(f, a)
    assert g.outputs[0].id == g.id + "/foo/add_out"
    assert g.outputs[0].name == "foo/add_out"


def test_ipu(ir):
    v = popxl.variable(1.0)
    c = popxl.constant(1.0)
    for t in (v, c):
        with pytest.raises(popxl.errors.UndefinedValue):
            t.ipu
        with pytest.raises(popxl.errors.UndefinedValue):
            t.tile_set
    y = v + c
    assert y.ipu == 0
    assert v.ipu == 0
    assert y.tile_set == "compute"
    w = popxl.variable(2.0)
    with popxl.ipu(3):
        q = w * 2
    assert q.ipu == 3
    assert w.ipu == 3
    with popxl.io_tiles():
        r = popxl.variable(1.0) + 1
    assert r.tile_set == "io"
    assert ops.io_tile_copy(r).tile_set == "compute"
    assert ops.io_tile_copy(y).tile_set == "io"
    with pytest.raises(ValueError, match="different IPUs"):
        q + y
    with pytest.raises(ValueError, match="tile sets"):
        y + r
    z = ops.ipu_copy(y, 1)
    assert z.ipu == 1
    assert z.name == "add_out_c1"
    with pytest.raises(ValueError, match="Could not infer the ipu"):
        ops.ipu_copy(popxl.variable(1.0), 1)
    with pytest.raises(ValueError, match="Please specify `source`"):
        ops.ipu_copy(popxl.variable(1.0), 1)
    assert ops.ipu_copy(popxl.variable(1.0), 1, 0).ipu == 1
    with pytest.raises(TypeError):
        popxl.variable(1.0).copy_to_ipu(1)
    popxl.variable(1.0).copy_to_ipu(1, 0)


def test_loc(ir):
    v = popxl.variable(1.0)
    assert v.location_info.isRemote() is False
    assert v.location_info.isSharded() is False
    assert v.replica_grouping.num_groups == 1
    assert v.retrieval_mode == "one_per_group"
    assert v.shape_on_host == ()
    assert v.shape_on_replica == ()
    assert v.in_sync_with_ipu


def test_methods(ir):
    v = popxl.variable(np.arange(6).reshape(2, 3).astype(np.float32))
    assert v.T.shape == (3, 2)
    assert v.T_.shape == (3, 2)
    assert v.transpose().shape == (3, 2)
    assert v.transpose((1, 0)).shape == (3, 2)
    assert v.transpose_([0, 1]).shape == (2, 3)
    assert v.reshape((6,)).shape == (6,)
    assert v.reshape_([3, -1]).shape == (3, 2)
    assert v.flatten().shape == (6,)
    assert v.flatten_().shape == (6,)
    assert v.detach().shape == (2, 3)
    assert v.detach_().shape == (2, 3)
    assert v.diag().shape == (2,)
    with pytest.raises(ValueError):
        v.flatten().diag()
    assert len(v) == 2
    with pytest.raises(ValueError):
        len(popxl.constant(1))
    with pytest.raises(TypeError):
        iter(v)
    with pytest.raises(TypeError):
        1 in v
    with pytest.raises(ValueError):
        l = []
        l += popxl.constant(1.0)
    assert isinstance(np.ones((2, 3), np.float32) + v, Tensor)
    assert isinstance(np.float32(2) * v, Tensor)


def test_spec():
    s = TensorSpec((1, 2), popxl.float32)
    assert dict(**s) == {"shape": (1, 2), "dtype": popxl.float32, "meta_shape": ()}
    assert s.to_dict() == dict(s)
    assert s.to_tuple() == ((1, 2), popxl.float32, ())
    assert hash(s) == hash(TensorSpec((1, 2), popxl.float32))
    assert s == TensorSpec((1, 2), popxl.float32)
    with pytest.raises((TypeError, AttributeError)):
        s["shape"] = 1
    with pytest.raises(AttributeError):
        s.shape = (1,)


def test_makers(ir):
    g = ir.create_empty_graph()
    with g:
        with pytest.raises(ValueError):
            popxl.variable(1)
        c = popxl.constant(1.5)
        assert c in g
        assert c.dtype == popxl.float32
    assert popxl.variable(1.5).dtype == popxl.float32
    assert popxl.variable(1).dtype == popxl.int32
    assert popxl.variable(np.ones(2)).dtype == popxl.float32
    assert popxl.variable(np.ones(2), downcast=False).dtype == popxl.float64
    assert popxl.variable(np.ones(2, np.int64), downcast=False).dtype == popxl.int64
    assert popxl.variable([1, 2]).shape == (2,)
    assert popxl.variable([[1.0]]).dtype == popxl.float32
    assert popxl.variable(True).dtype == popxl.bool
    assert popxl.variable((1, 2), popxl.float16).dtype == popxl.float16
    assert popxl.constant(np.uint64(3)).dtype == popxl.uint32
    d = np.ones(2, np.float32)
    v = popxl.variable(d)
    d[:] = 5
    (v + 1)
    with popxl.Session(ir) as s:
        pass
    assert s.get_tensor_data(v).tolist() == [1, 1]


def test_fp8_const(ir):
    a = popxl.fp8_utils.host_pow2scale_cast_to_fp8(
        np.ones(2, np.float32), popxl.float8_143
    )
    with pytest.raises(TypeError):
        popxl.constant(a)
    assert popxl.constant(a, popxl.float8_143).dtype == popxl.float8_143
    v = popxl.variable(
        np.ones(2), popxl.float8_152, log2_scale=2, nan_on_overflow=False
    )
    assert v.dtype == popxl.float8_152
    with pytest.raises(RuntimeError):
        popxl.variable(np.ones(2), popxl.float32, log2_scale=2)


def test_ops_conv(ir):
    v = popxl.variable(np.ones((2, 2), np.float16))
    y = v + 1
    assert y.dtype == popxl.float16
    assert (2 - v).dtype == popxl.float16
    assert (v / 2).dtype == popxl.float16
    assert (1 / v).shape == (2, 2)
    assert (v % 2).dtype == popxl.float16
    assert (2 % v).shape == (2, 2)
    assert (v @ np.ones((2, 2))).dtype == popxl.float16
    assert (np.ones((2, 2)) @ v).shape == (2, 2)
    assert ([[1, 1], [1, 1]] @ v).shape == (2, 2)
    with pytest.raises(popart.popart_exception):
        v**2
    w = popxl.variable(np.ones(2, np.float32))
    assert (w**2.0).dtype == popxl.float32
    with pytest.raises(popart.popart_exception):
        w**2
    assert (2**w).dtype == popxl.float32
    b = popxl.variable([True, False])
    assert (b & True).dtype == popxl.bool
    assert (b | [False, True]).dtype == popxl.bool
    assert (~b).dtype == popxl.bool
    assert (True & b).dtype == popxl.bool
    assert (w & 1).dtype == popxl.bool
    assert (-w).name == "negate_out"
    with pytest.raises(ValueError):
        w + []
    with pytest.raises(ValueError):
        w + np.zeros((0,))
    for f in (
        lambda: v // 2,
        lambda: abs(v),
        lambda: v ^ 1,
        lambda: v < 1,
        lambda: v > 1,
        lambda: v <= 1,
        lambda: v >= v,
    ):
        with pytest.raises(TypeError):
            f()
    old = w
    w += 1
    assert w is old
    old = w
    w *= 2
    assert w is not old
    assert w.name == "mul_out"
    n = len(ir.main_graph.constants)
    w + w
    assert len(ir.main_graph.constants) == n


def test_names_of_consts(ir):
    w = popxl.variable(np.ones(2, np.float32), name="w")
    n = len(ir.main_graph.tensors)
    w + 1
    assert len(ir.main_graph.tensors) == n + 2


def test_index(ir):
    v = popxl.variable(np.arange(24).reshape(2, 3, 4).astype(np.float32))
    for k in [
        0,
        -1,
        slice(None),
        slice(0, 1),
        (0, 1),
        (0, slice(1, 3)),
        (slice(None), 1),
        slice(None, None, 2),
        (slice(None), slice(None, None, -1)),
        (slice(None), slice(None, None, -2)),
        (0, 1, 2),
    ]:
        r = v[k]
        assert r.shape == np.zeros((2, 3, 4))[k].shape, k
    assert v[np.array([0, 1, 1])].shape == (3, 3, 4)
    assert v[[0, 1, 0]].shape == (3, 3, 4)
    assert v[popxl.constant([0, 1], popxl.int32)].shape == (2, 3, 4)
    m = np.zeros((2, 3, 4), bool)
    assert v[m].shape == (2, 3, 4)
    assert v[popxl.constant(m)].shape == (2, 3, 4)
    assert v[m.tolist()].shape == (2, 3, 4)
    for k in ["a", True, 1.0, None, ..., (..., 1), (0, None), (0, "a"), (0, 1.5)]:
        with pytest.raises(TypeError):
            v[k]


def test_setitem(ir):
    v = popxl.variable(np.zeros((2, 2), np.float32), name="v")
    with pytest.raises(TypeError, match="does not support item assignment"):
        v[1] = popxl.constant(np.ones(2, np.float32))
    row = ops.slice_(v, 1, 2)
    row += popxl.constant(np.ones((1, 2), np.float32))
    with popxl.Session(ir) as s:
        s.run()
    assert s.get_tensor_data(v).tolist() == [[0, 0], [1, 1]]


def test_named_wants_tensor(ir):
    a = popxl.variable(1.0)
    with pytest.raises(TypeError, match="The input `rhs` is not a Tensor"):
        ops.add(a, 1)
    with pytest.raises(TypeError, match="The input `lhs` is not a Tensor"):
        ops.add(1, a)
    g = ir.create_empty_graph()
    with g:
        with pytest.raises(ValueError, match="is not in the current Graph"):
            ops.add(a, a)
        with pytest.raises(ValueError):
            popxl.graph_output(a)


def test_get_tensors(ir):
    a = popxl.variable(1.0)
    assert a.ir is ir
    assert a in ir.main_graph.tensors


def test_scalar_input(ir):
    def f():
        a = popxl.graph_input((), popxl.float32)
        b = popxl.graph_input([2], popxl.int32, by_ref=True)
        return a

    g = ir.create_graph(f)
    assert g.inputs[0].name == "t"
    assert g.inputs[1].name.startswith("t__t")
    assert g._by_ref_inputs == {g.inputs[1]}
    s = popxl.TensorSpec((2, 2), popxl.float32)
    with ir.create_empty_graph():
        t = popxl.graph_input(**s)
        assert t.shape == (2, 2)
