import functools
from typing import List, Tuple

import numpy as np
import pytest

import popxl
from popxl import TensorByRef, ops
from popxl.tensor import Tensor


def ctx():
    return popxl.Ir()


def test_graph_type():
    with pytest.raises(TypeError):
        popxl.Graph()


def test_eq():
    ir = popxl.Ir()
    g = ir.main_graph
    with pytest.raises(TypeError):
        g == 1
    with pytest.raises(TypeError):
        1 in g
    g1 = ir.create_empty_graph()
    g2 = ir.create_empty_graph("foo")
    assert g1.name == "graph_subgraph(0)"
    assert g2.name == "foo_subgraph(1)"
    assert g1 != g2
    assert hash(g1) != hash(g2)
    assert repr(g2) == "Graph[id=foo_subgraph(1) name=foo_subgraph(1)]"
    assert g2.main_graph is g
    assert g2.ir is ir


def test_two_irs():
    a, b = popxl.Ir(), popxl.Ir()
    with a.main_graph:
        with pytest.raises(RuntimeError):
            with b.main_graph:
                pass


def test_sub_alone():
    ir = popxl.Ir()
    g = ir.create_empty_graph()
    with g:
        assert popxl.gmg() is ir.main_graph
        assert popxl.gcg() is g
        assert popxl.gir() is ir
    for f in (popxl.gcg, popxl.gmg, popxl.gir):
        with pytest.raises(RuntimeError):
            f()


def test_inputs_outputs():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((2, 2)))

        def f(a, b, c=3, *, d):
            assert c == 3
            assert d == {"q": 1}
            return a, b

        g = ir.create_graph(f, x, x.spec, d={"q": 1})
        assert [t.name for t in g.inputs] == ["a", "b"]
        assert g.inputs == g.outputs
        assert list(g.inputs_by_name) == ["a", "b"]
        assert g.inputs_by_name["a"] is g.inputs[0]
        with pytest.raises(ValueError):
            ir.create_graph(f, x)
        g = ir.create_graph(lambda *xs, **kw: list(xs) + list(kw.values()), x, x, foo=x)
        assert [t.name for t in g.inputs] == ["xs_0", "xs_1", "foo"]
        g = ir.create_graph(lambda xs: xs, [x, x])
        assert [t.name for t in g.inputs] == ["xs_0", "xs_1"]
        g = ir.create_graph(lambda xs: xs, (x, x.spec))
        assert [t.name for t in g.inputs] == ["xs_0", "xs_1"]
        with pytest.raises(TypeError):
            ir.create_graph(lambda xs: xs, [x, 1])
        with pytest.raises(TypeError):
            ir.create_graph(lambda *xs: xs, x, 1)
        with pytest.raises(TypeError):
            ir.create_graph(lambda **xs: xs, a=x, b=1)
        with pytest.raises(TypeError):
            ir.create_graph(functools.partial(f), x)
        with pytest.raises(TypeError):
            ir.create_graph(1)
        with pytest.raises(ValueError):
            ir.create_graph(lambda a: 1, x)
        with pytest.raises(ValueError):
            ir.create_graph(lambda a: [a, 1], x)
        g = ir.create_graph(lambda a: None, x)
        assert g.outputs == ()
        g = ir.create_graph(lambda a: (t for t in [a, a + 1]), x)
        assert len(g.outputs) == 2
        g = ir.create_graph(lambda a: {a: 1}, x)
        assert len(g.outputs) == 1

        def h(a):
            b = popxl.graph_input((2,), popxl.int32, "b")
            popxl.graph_output(b)
            return a

        g = ir.create_graph(h, x)
        assert [t.name for t in g.inputs] == ["a", "b"]
        assert [t.name for t in g.outputs] == ["b", "a"]


def test_by_ref():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0)

        def f(
            a: TensorByRef,
            b: Tensor,
            c: List[TensorByRef],
            d: Tuple[TensorByRef],
            *e: TensorByRef,
            **k: TensorByRef,
        ):
            pass

        g = ir.create_graph(f, x, x, [x, x], (x,), x, z=x)
        assert {t.name for t in g._by_ref_inputs} == {
            "a",
            "c_0",
            "c_1",
            "d_0",
            "e_0",
            "z",
        }

        def f(a: "TensorByRef"):
            pass

        assert not ir.create_graph(f, x)._by_ref_inputs


def test_naming():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0)

        def f(a):
            return a + 1

        class Foo:
            def m(self, a):
                return a

            @staticmethod
            def s(a):
                return a

            @classmethod
            def c(cls, a):
                return a

        assert ir.create_graph(f, x).name == "test_naming.f_subgraph(0)"
        assert ir.create_graph(Foo().m, x).name == "test_naming.Foo.m_subgraph(1)"
        assert ir.create_graph(Foo.s, x).name == "test_naming.Foo.s_subgraph(2)"
        assert ir.create_graph(Foo.c, x).name == "test_naming.Foo.c_subgraph(3)"

        class Mod(popxl.Module):
            def __init__(self):
                self.w = None

            def build(self, a):
                self.w = popxl.graph_input((), popxl.float32, "w")
                return a * self.w

        m = Mod()
        g = ir.create_graph(m, x)
        w1 = m.w
        assert g.name == "test_naming.Mod_subgraph(4)"
        g2 = ir.create_graph(m, x)
        assert m.w in g2
        assert w1 in g
        assert w1 is not m.w

        class Bad(popxl.Module):
            pass

        with pytest.raises(NotImplementedError):
            ir.create_graph(Bad(), x) if 0 else Bad().build()
        with pytest.raises(NotImplementedError):
            Bad()()
        info = popxl.transforms.autodiff(g)
        assert info.graph.name == g.name + "_bwd"
        l = ops.repeat_with_info(ir.create_graph(f, x), 2, x)
        assert (
            l.called_graph.name == "test_naming.f_subgraph(6)__loop_wrapper_subgraph(7)"
        )


def test_members():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0, name="x")
        c = popxl.constant(2.0, name="c")
        y = x + c
        s = popxl.h2d_stream((), popxl.float32)
    m = ir.main_graph
    assert m.variables == (x,)
    assert m.constants == (c,)
    assert set(m.tensors) >= {x, c, y}
    assert len(m.tensors) == 4
    assert m.get_tensor("x") is x
    with pytest.raises(Exception):
        m.get_tensor("nope")
    assert x in m
    assert x not in ir.create_empty_graph()


def test_hooks():
    ir = popxl.Ir()
    got = []
    got2 = []
    with ir.main_graph:
        x = popxl.variable(1.0)
        h = ir.main_graph.register_op_created_hook(lambda op: got.append(op.opType()))
        h2 = ir.main_graph.register_op_created_hook(lambda op: got2.append(op.opType()))
        x + 1
        ir.main_graph.remove_op_created_hook(h)
        x * 1
        g = ir.create_graph(lambda a: a - 1, x)
        with pytest.raises(ValueError):
            ir.main_graph.remove_op_created_hook(h)
    assert got == ["Add"]
    assert got2 == ["Add", "Mul"]


def test_called():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0)
        g = ir.create_graph(lambda a: a + 1, x)
        h = ir.create_graph(lambda a: a * 2, x)
        ops.call(g, x)
        ops.call(g, x)
        ops.call(h, x)
        assert set(ir.main_graph.called_graphs) == {g, h}
        assert len(ir.main_graph.called_graphs) == 2


def test_meta_shape():
    ir = popxl.Ir()
    with ir.main_graph:

        def f(a):
            return a

        g = ir.create_graph(f, popxl.TensorSpec((2,), popxl.float16, (4,)))
        assert g.inputs[0].meta_shape == (4,)


def test_module_init_args():
    ir = popxl.Ir()

    class Lin(popxl.Module):
        def build(self, x, out: int, bias: bool = True):
            self.W = popxl.graph_input((x.shape[-1], out), popxl.float32, "W")
            y = x @ self.W
            if bias:
                self.b = popxl.graph_input((out,), popxl.float32, "b")
                y = y + self.b
            return y

    with ir.main_graph:
        x = popxl.variable(np.ones((2, 3), np.float32))
        l = Lin()
        g = ir.create_graph(l, x, out=4)
        assert [t.name for t in g.inputs] == ["x", "W", "b"]
        W = popxl.variable(np.ones((3, 4), np.float32))
        b = popxl.variable(np.ones(4, np.float32))
        (y,) = ops.call(g, x, inputs_dict={l.W: W, l.b: b})
        assert y.shape == (2, 4)
        g = ir.create_graph(l, x, 4, bias=False)


def test_default_tensor_arg_none():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0)

        def f(a, b=None):
            assert b is None
            return a

        ir.create_graph(f, x)
        ir.create_graph(f, a=x)
        ir.create_graph(f, x, None)


def test_create_graph_outside_context():
    ir = popxl.Ir()
    g = ir.create_graph(lambda a: a + 1, popxl.TensorSpec((2,), popxl.float32))
    assert g.outputs[0].shape == (2,)


def test_other_ir_tensor():
    a, b = popxl.Ir(), popxl.Ir()
    with a.main_graph:
        x = popxl.variable(1.0)
    b.create_graph(lambda t: t + 1, x)
