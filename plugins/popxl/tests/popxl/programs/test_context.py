import numpy as np
import pytest

import popart
import popxl
import popxl.context as pc
from popxl import ops


@pytest.fixture
def ir():
    ir = popxl.Ir()
    with ir.main_graph:
        yield ir


def test_yields(ir):
    with popxl.ipu(2) as n:
        assert n == 2
    with popxl.ipu(None) as n:
        assert n is None
    with popxl.name_scope("a") as s:
        with popxl.name_scope("b") as s2:
            assert s2 == ["a", "b"]
    with pytest.raises(TypeError, match="`None` cannot be passed to"):
        with popxl.in_sequence(None):
            pass
    with popxl.in_sequence("foo"):
        with pytest.raises(ValueError):
            popxl.variable(1) + 1
    with popxl.in_sequence(3):
        with pytest.raises(ValueError):
            popxl.variable(1) + 1


def test_decorators(ir):
    @popxl.ipu(2)
    def f(x):
        return x + 1

    assert f(popxl.variable(1.0)).ipu == 2

    @popxl.name_scope("q")
    def g(x):
        return x + 1

    assert g(popxl.variable(1.0)).name == "q/add_out"

    @popxl.in_sequence(True)
    def h(x):
        return x + 1

    h(popxl.variable(1.0))

    @popxl.io_tiles()
    def i(x):
        return x + 1

    assert i(popxl.variable(1.0)).tile_set == "io"

    @pc.op_debug_context
    def j(x):
        return x + 1

    @pc.op_debug_context("zz")
    def k(x):
        return x + 1

    j(popxl.variable(1.0))
    k(popxl.variable(1.0))


def test_context_obj(ir):
    with popxl.name_scope("a"):
        c = pc.get_current_context()
        assert c.graph is ir.main_graph
        assert c.main_graph is ir.main_graph
        assert c.ir is ir
        assert list(c.name_scopes) == ["a"]
        s = c._get_op_settings("foo")


def test_restore(ir):
    try:
        with popxl.ipu(3), popxl.name_scope("x"), popxl.in_sequence(), popxl.io_tiles():
            raise KeyError
    except KeyError:
        pass
    t = popxl.variable(1.0) + 1
    assert t.ipu == 0
    assert t.name == "add_out"
    assert t.tile_set == "compute"


def amb(ir, **k):
    return popxl.Session(ir)


def test_ambiguity():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        ops.relu_(x)
        ops.relu_(x)
    with pytest.raises(popart.popart_exception, match="^Inplacing ambiguity detected."):
        popxl.Session(ir)
    ir._pb_ir.getSessionOptions().enableInplaceAmbiguityChecking = False
    popxl.Session(ir)


def test_ambiguity_seq():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones(2, np.float32))
        ops.relu_(x)
        ops.relu_(x)
    popxl.Session(ir)


def test_ambiguity_chain():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        y = ops.relu_(x)
        ops.relu_(y)
    popxl.Session(ir)


def test_ambiguity_read():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        y = x + 1
        ops.var_updates.copy_var_update_(x, y * 2)
        z = x * 3
    with pytest.raises(popart.popart_exception, match="^Inplacing ambiguity detected."):
        popxl.Session(ir)


def test_ambiguity_view():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((2, 2), np.float32))
        v = x.reshape_((4,))
        ops.relu_(v)
        x + 1
    with pytest.raises(popart.popart_exception, match="^Inplacing ambiguity detected."):
        popxl.Session(ir)


def test_ambiguity_sub():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((2, 2), np.float32))

        def f(a):
            ops.relu_(a)
            return a + 1

        g = ir.create_graph(f, x)
        ops.call(g, x)
    with pytest.raises(popart.popart_exception, match="^Inplacing ambiguity detected."):
        popxl.Session(ir)


def test_ambiguity_byref_calls():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((2, 2), np.float32))

        def f(a: popxl.TensorByRef):
            ops.relu_(a)

        g = ir.create_graph(f, x)
        ops.call(g, x)
        ops.call(g, x)
    with pytest.raises(popart.popart_exception, match="^Inplacing ambiguity detected."):
        popxl.Session(ir)


def test_slices_disjoint():
    # refused or not: two views of disjoint regions
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((4,), np.float32), name="x")
        a = ops.slice_(x, 0, 2)
        b = ops.slice_(x, 2, 4)
        with popxl.in_sequence():
            ops.add_(a, popxl.constant(1.0))
            ops.add_(b, popxl.constant(2.0))
    with popxl.Session(ir) as s:
        s.run()
    assert s.get_tensor_data(x).tolist() == [2, 2, 3, 3]


def test_seq_false():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((4,), np.float32), name="x")
        with popxl.in_sequence(True):
            ops.add_(x, popxl.constant(1.0))
            with popxl.in_sequence(False):
                y = x * 2
                z = x * 3
            ops.add_(x, popxl.constant(1.0))
        o = popxl.d2h_stream((4,), popxl.float32)
        ops.host_store(o, y + z)
    with popxl.Session(ir) as s:
        r = s.run()[o]
    assert r.tolist() == [10] * 4
    assert s.get_tensor_data(x).tolist() == [3] * 4


def test_seq_false_conflict():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((4,), np.float32), name="x")
        with popxl.in_sequence(False):
            ops.add_(x, popxl.constant(1.0))
            x * 2
    with pytest.raises(popart.popart_exception):
        popxl.Session(ir)


def test_seq_pass():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((4,), np.float32), name="x")
        with popxl.in_sequence(True):
            ops.add_(x, popxl.constant(1.0))
            with popxl.in_sequence("pass"):
                x * 2

    with pytest.raises(popart.popart_exception):
        popxl.Session(ir)


def test_fragment():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((4,), np.float32), name="x")
        with popxl.context._execution_context(
            popxl.ExecutionContext.WeightsFromHostFragment
        ):
            ops.var_updates.accumulate_(x, popxl.constant(np.ones(4, np.float32)))
        y = x * 2
        o = popxl.d2h_stream((4,), popxl.float32)
        ops.host_store(o, y)
    with popxl.Session(ir) as s:
        assert s.run()[o].tolist() == [4] * 4


def test_merge_exchange():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.h2d_stream((2,), popxl.float32, "a")
        b = popxl.h2d_stream((2,), popxl.float32, "b")
        o = popxl.d2h_stream((2,), popxl.float32, "o")
        with popxl.transforms.merge_exchange():
            x = ops.host_load(a)
            y = ops.host_load(b)
        ts = [op.opType() for op in ir.main_graph._pb_graph.getOps()]
        assert sorted(ts) == ["Init", "Init", "MultiExchange"], ts
        ops.host_store(o, x + y)
    with popxl.Session(ir) as s:
        assert s.run({a: np.ones(2, np.float32), b: np.ones(2, np.float32)})[
            o
        ].tolist() == [2, 2]


def test_io_exchange():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.h2d_stream((2,), popxl.float32, "a")
        o = popxl.d2h_stream((2,), popxl.float32, "o")
        with pytest.raises(RuntimeError):
            with popxl.transforms.io_tile_exchange():
                x = ops.host_load(a)
                x + 1
        with pytest.raises(RuntimeError):
            with popxl.transforms.io_tile_exchange():
                x = ops.host_load(a)
                ops.host_store(o, x)
        with popxl.transforms.io_tile_exchange(verify_overlap=False):
            x = ops.host_load(a)
            ops.host_store(o, x)
        with popxl.transforms.io_tile_exchange():
            x = ops.host_load(a)
            assert x.tile_set == "io"


def test_debug():
    with popxl.context.debug_context_frame_offset(1):
        pass
