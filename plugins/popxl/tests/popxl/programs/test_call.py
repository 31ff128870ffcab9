import numpy as np
import pytest

import popart
import popxl
from popxl import TensorByRef, ops


@pytest.fixture
def ir():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        yield ir


def out(ir, *ts, kind="cpu"):
    st = []
    with ir.main_graph, popxl.in_sequence():
        for t in ts:
            st.append(popxl.d2h_stream(t.shape, t.dtype))
            ops.host_store(st[-1], t)
    with popxl.Session(ir, kind) as s:
        r = s.run()
    return [r[x] for x in st]


def test_call_errors(ir):
    a = popxl.variable(1.0, name="a")
    b = popxl.variable(2.0, name="b")
    g = ir.create_graph(lambda x, y: x + y, a, b)
    with pytest.raises(ValueError, match="Too many inputs have been provided"):
        ops.call(g, a, b, a)
    with pytest.raises(ValueError, match="Not enough inputs have been provided"):
        ops.call(g, a)
    with pytest.raises(ValueError, match="Graph input tensor is specified twice"):
        ops.call(g, a, b, inputs_dict={g.inputs[0]: a})
    with pytest.raises(ValueError, match="not in the called graph"):
        ops.call(g, a, b, inputs_dict={a: a})
    h = ir.create_graph(lambda x: x, a)
    with pytest.raises(ValueError):
        ops.call(g, a, h.inputs[0])
    for bad in ("x", None):
        with pytest.raises(TypeError):
            ops.call(g, a, bad)
    with pytest.raises(popart.popart_exception):
        ops.call(g, a, popxl.variable(np.ones(2, np.float32)))
    with pytest.raises(popart.popart_exception):
        ops.call(g, a, popxl.variable(1))
    n = len(ir.main_graph.constants)
    i = ops.call_with_info(g, a, 3)
    assert i.inputs[1].dtype == popxl.float32
    assert len(ir.main_graph.constants) == n + 1
    ops.call(g, [a, b])
    ops.call(g, (a, b))
    ops.call(g, a, inputs_dict={g.inputs[1]: 2})
    ops.call(g, inputs_dict=dict(zip(g.inputs, (a, b))))
    i = ops.call_with_info(g, a, check_inputs=False)
    assert len(i.inputs) == 1
    ops.call(g, a, a)


def test_np_wrap(ir):
    g = ir.create_graph(lambda x: x + 1, popxl.TensorSpec((3,), popxl.float32))
    with pytest.raises(ValueError):
        ops.call(g, np.ones(3))
    ops.call(g, [np.ones(3)])


def test_info(ir):
    a = popxl.variable(1.0, name="a")
    b = popxl.variable(2.0, name="b")
    g = ir.create_graph(lambda x, y: (x + y, x * y), a, b)
    i = ops.call_with_info(g, a, b)
    assert i.called_graph is g
    assert i.inputs == (a, b)
    assert len(i.outputs) == 2
    assert i.parent_input(0) is a
    assert i.parent_output(1) is i.outputs[1]
    for f in (i.parent_input, i.parent_output):
        with pytest.raises(IndexError):
            f(2)
    assert i.graph_to_parent_input_index(1) == 1
    assert i.parent_to_graph_input_index(1) == 1
    assert i.graph_to_parent_output_index(1) == 1
    assert i.parent_to_graph_output_index(0) == 0
    assert i.graph_to_parent(g.inputs[1]) is b
    assert i.graph_to_parent(g.outputs[0]) is i.outputs[0]
    with pytest.raises(ValueError):
        i.graph_to_parent(a)
    with pytest.raises(ValueError):
        i.parent_to_graph(i.outputs[0])
    assert i.parent_to_graph(b) is g.inputs[1]
    j = ops.call_with_info(g, a, a)
    assert j.parent_to_graph(a) is g.inputs[0]
    assert i.outputs[0].name == "add_out"


def test_by_value(ir):
    a = popxl.variable(1.0, name="a")

    def f(x):
        x += 1
        return x

    g = ir.create_graph(f, a)
    i = ops.call_with_info(g, a)
    x, y = out(ir, a, i.outputs[0])
    assert x == 1
    assert y == 2


def test_modified(ir):
    a = popxl.variable(1.0, name="a")

    def f(x):
        x += 1

    g = ir.create_graph(f, a)
    i = ops.call_with_info(g, a)
    i.set_parent_input_modified(a)
    (x,) = out(ir, a)
    assert x == 2


def test_by_ref(ir):
    a = popxl.variable(np.zeros(2, np.float32), name="a")

    def f(x: TensorByRef):
        y = ops.slice_(x, 0, 1)
        y += 1
        return x * 1

    g = ir.create_graph(f, a)

    def h(x: TensorByRef):
        return ops.call(g, x)[0]

    k = ir.create_graph(h, a)
    (y,) = ops.call(k, a)
    x, y = out(ir, a, y)
    assert x.tolist() == [1, 0] == y.tolist()


@pytest.mark.parametrize("n", [0, 1, 3])
def test_repeat(ir, n):
    a = popxl.variable(1.0, name="a")
    w = popxl.variable(3.0, name="w")
    g = ir.create_graph(lambda x, w: x + w, a, w)
    k = len(ir.main_graph.tensors)
    i = ops.repeat_with_info(g, n, a, inputs_dict={g.inputs[1]: w})
    assert len(ir.main_graph.tensors) == k + 1
    assert i.called_graph.name.startswith(g.name + "__loop_wrapper_subgraph(")
    assert len(i.called_graph.inputs) == 4
    assert i.called_graph.inputs[0].dtype == popxl.int32
    assert i.called_graph.inputs[1].dtype == popxl.bool
    assert i.called_graph.inputs[0].shape == ()
    assert len(i.called_graph.outputs) == 2
    assert i.called_graph.outputs[0].dtype == popxl.bool
    (y,) = out(ir, *i.outputs)
    assert y == 1 + 3 * n


def test_repeat_errs(ir):
    a = popxl.variable(1.0)
    g = ir.create_graph(lambda x: x, a)
    with pytest.raises(ValueError, match="Repeat count must be >= 0"):
        ops.repeat(g, -1, a)
    h = ir.create_graph(lambda x: (x, x + 1), a)
    with pytest.raises(ValueError, match="To repeat the subgraph"):
        ops.repeat(h, 2, a)
    with pytest.raises(ValueError, match="Not enough inputs"):
        ops.repeat(g, 2)
    with pytest.raises(ValueError, match="Too many inputs"):
        ops.repeat(g, 2, a, a)


def test_repeat_info(ir):
    a = popxl.variable(1.0, name="a")
    b = popxl.variable(2.0)
    g = ir.create_graph(lambda x, y: (x + y, y), a, b)
    i = ops.repeat_with_info(g, 2, a, b)
    assert i.parent_input(2) is a
    assert i.parent_input(3) is b
    assert i.graph_to_parent_input_index(2) == 2
    assert i.parent_to_graph_input_index(2) == 2
    assert i.graph_to_parent_output_index(1) == 0
    assert i.parent_to_graph_output_index(0) == 1
    w = i.called_graph
    assert i.graph_to_parent(w.inputs[2]) is a
    assert i.graph_to_parent(w.outputs[1]) is i.outputs[0]
    assert i.parent_to_graph(a) is w.inputs[2]


def test_repeat_byref(ir):
    a = popxl.variable(1.0, name="a")
    s = popxl.variable(0.0, name="s")

    def f(x, acc: TensorByRef):
        acc += x
        return x + 1

    g = ir.create_graph(f, a, s)
    (y,) = ops.repeat(g, 4, a, s)
    y, t, x = out(ir, y, s, a)
    assert y == 5
    assert t == 10
    assert x == 1


def test_cond(ir):
    c = popxl.variable(True)
    x = popxl.variable(2.0)
    y = popxl.variable(5.0)
    t = ir.create_graph(lambda a: a + 1, x)
    e = ir.create_graph(lambda a, b: a * b, x, y)
    i = ops.conditional_with_info(c, t, e, [x], [x, y])
    assert i.called_graph == (t, e)
    assert i.inputs == (c, x, x, y)
    assert i.outputs[0].name == "add_out_or_mul_out"
    assert i.graph_to_parent_input_index(0) == 1
    assert i.graph_to_parent_input_index(1, then_branch=False) == 3
    assert i.parent_to_graph_input_index(1) == 0
    assert i.parent_to_graph_input_index(3) == 1
    for bad in (0, 4):
        with pytest.raises(IndexError):
            i.parent_to_graph_input_index(bad)
    with pytest.raises(IndexError):
        i.graph_to_parent_input_index(1)
    assert i.is_parent_index_in_then_branch(1)
    assert not i.is_parent_index_in_then_branch(2)
    with pytest.raises(NotImplementedError):
        i.set_parent_input_modified(x)
    assert i.graph_to_parent(e.inputs[1], then_branch=False) is y
    assert i.graph_to_parent(e.inputs[1]) is y
    d = popxl.variable(np.array([False]))
    (z,) = ops.conditional(d, t, t, [x], [y])
    a, b = out(ir, i.outputs[0], z)
    assert a == 3
    assert b == 6


def test_cond_errs(ir):
    c = popxl.variable(True)
    x = popxl.variable(2.0)
    t = ir.create_graph(lambda a: a + 1, x)
    t2 = ir.create_graph(lambda a: (a, a), x)
    t3 = ir.create_graph(lambda a: popxl.constant([1.0, 2.0]), x)

    def f(a: TensorByRef):
        return a

    r = ir.create_graph(f, x)
    with pytest.raises(ValueError):
        ops.conditional(c, t, t2, [x], [x])
    with pytest.raises(popart.popart_exception):
        ops.conditional(c, t, t3, [x], [x])
    with pytest.raises(NotImplementedError):
        ops.conditional(c, t, r, [x], [x])
    with pytest.raises(ValueError, match="Too many inputs"):
        ops.conditional(c, t, t, [x, x], [x])
    with pytest.raises(ValueError, match="Not enough inputs"):
        ops.conditional(c, t, t, [x])
    with pytest.raises(ValueError, match="not in the then_branch graph"):
        ops.conditional(c, t, t, then_inputs_dict={x: x}, else_inputs=[x])
    with pytest.raises(ValueError, match="not in the else_branch graph"):
        ops.conditional(c, t, t, else_inputs_dict={x: x}, then_inputs=[x])
    with pytest.raises(Exception):
        ops.conditional(x, t, t, [x], [x])


def test_cond_no_inputs(ir):
    c = popxl.variable(True)
    o = popxl.d2h_stream((), popxl.float32)

    def f():
        ops.host_store(o, popxl.constant(1.0))

    def g():
        ops.host_store(o, popxl.constant(2.0))

    ops.conditional(c, ir.create_graph(f), ir.create_graph(g))
    s = popxl.Session(ir)
    with s:
        assert s.run()[o] == 1
    s.write_variable_data(c, False)
    with s:
        assert s.run()[o] == 2


def test_input_is_output(ir):
    a = popxl.variable(1.0)
    g = ir.create_graph(lambda x: (x, x), a)
    x, y = ops.call(g, a)
    x += 1
    x, y, z = out(ir, x, y, a)
    assert x == 2
    assert y == 1
    assert z == 1


def test_nested_repeat(ir):
    a = popxl.variable(0.0)
    inc = ir.create_graph(lambda x: x + 1, a)
    o = ir.create_graph(lambda x: ops.repeat(inc, 3, x)[0], a)
    (y,) = ops.repeat(o, 4, a)
    (r,) = out(ir, y)
    assert r == 12


def test_uncalled_graph(ir):
    a = popxl.variable(1.0)
    ir.create_graph(lambda x: x + 1, a)
    (r,) = out(ir, a + 1)
    assert r == 2


def test_recursion(ir):
    g = ir.create_empty_graph()
    with g:
        with pytest.raises(Exception):
            ops.call(g)


def test_graph_reuse_weight_inputs(ir):
    a = popxl.variable(1.0)
    i = ops.call_with_info(ir.create_graph(lambda x: x + 1, a), a)
    assert i._op.opType() == "Call"
