import numpy as np
import pytest

import popart
import popxl
from popxl import ops
from popxl.transforms import (
    ExpectedConnection,
    ExpectedConnectionType,
    GradGraphInfo,
    autodiff,
    decompose_sum,
)


@pytest.fixture
def ir():
    ir = popxl.Ir()
    with ir.main_graph:
        yield ir


V = lambda *s: popxl.variable(
    np.random.default_rng(1).normal(size=s).astype(np.float32) + 2
)


def types(g):
    return [op.opType() for op in g._pb_graph.getOps()]


def test_basic(ir):
    x, W, b = V(2, 3), V(3, 4), V(4)
    g = ir.create_graph(lambda x, W, b: x @ W + b, x, W, b)
    i0 = ops.call_with_info(g, x, W, b)
    info = autodiff(g, grads_required=[g.inputs[1], g.inputs[2]])
    assert len(g.outputs) == 2
    assert len(i0.outputs) == 2
    assert i0.outputs[1].name.startswith("autodiff_output")
    assert isinstance(info, GradGraphInfo)
    assert info.forward_graph is g
    assert info.graph.name == g.name + "_bwd"
    assert [t.name for t in info.graph.outputs] == ["Gradient___W", "Gradient___b"]
    assert info.outputs == (g.inputs[1], g.inputs[2])
    e = info.expected_inputs
    assert e[0].fwd_tensor == g.outputs[0]
    assert e[0].connection_type == ExpectedConnectionType.FwdGrad
    assert e[1].connection_type == ExpectedConnectionType.Fwd
    assert e.index(e[1]) == 1
    assert isinstance(e, tuple)
    assert all(
        c.connection_type == ExpectedConnectionType.FwdGrad
        for c in info.expected_outputs
    )
    assert repr(info).startswith("GradGraphInfo[")
    assert "graph=" in repr(info)
    assert "expected_inputs=[" in repr(info)
    assert "expected_outputs=[" in repr(info)
    assert ExpectedConnectionType.Fwd.value == "Fwd"
    assert ExpectedConnectionType("FwdGrad") is ExpectedConnectionType.FwdGrad
    for c in (ExpectedConnection, GradGraphInfo):
        with pytest.raises(TypeError):
            c()
    d = info.inputs_dict(i0)
    assert info.graph.inputs[0] not in d
    assert set(d) == set(info.graph.inputs[1:])
    dy = popxl.constant(np.ones((2, 4), np.float32))
    bi = ops.call_with_info(info.graph, dy, inputs_dict=d)
    m = info.fwd_parent_ins_to_grad_parent_outs(i0, bi)
    assert set(m) == {W, b}
    m = info.fwd_graph_ins_to_grad_parent_outs(bi)
    assert set(m) == {g.inputs[1], g.inputs[2]}
    with pytest.raises(TypeError):
        info.inputs_dict(bi)
    with pytest.raises(TypeError):
        info.inputs_dict(ops.call_with_info(ir.create_graph(lambda x: x, x), x))
    assert info.inputs == tuple(c.fwd_tensor for c in e)


def test_add_asks(ir):
    x, y = V(2), V(2)
    g = ir.create_graph(lambda x, y: x + y, x, y)
    info = autodiff(g)
    assert len(info.inputs) == 4 or len(info.inputs) == 3, info
    assert len(g.outputs) == 1
    assert sorted(types(info.graph)) == ["AddArg0Grad", "AddArg1Grad"]


def test_mul_types(ir):
    x, y = V(2), V(2)
    info = autodiff(ir.create_graph(lambda x, y: x * y, x, y))
    assert sorted(types(info.graph)) == ["MulArg0Grad", "MulArg1Grad"]
    info = autodiff(ir.create_graph(lambda x, y: x * y + x, x, y))
    assert types(info.graph).count("Sum") == 1


def test_unable(ir):
    x, y = V(2), V(2)
    g = ir.create_graph(lambda x, y: (x + 1, y + 1), x, y)
    with pytest.raises(
        popart.popart_exception, match="Unable to provide required gradient output"
    ):
        autodiff(g, grads_provided=[g.outputs[0]], grads_required=[g.inputs[1]])


def test_modifying(ir):
    x = V(2)

    def f(x):
        ops.relu_(x)
        return x * 1

    g = ir.create_graph(f, x)
    with pytest.raises(
        popart.popart_exception, match="^The graph .* contains a modifying op"
    ):
        autodiff(g)
    g = ir.create_graph(
        lambda x: ops.concat_(
            [x.reshape_((2,)).detach_(), x.reshape_((1, 2)).flatten_().T_]
        ),
        x,
    )
    autodiff(g)


def test_unsafe(ir):
    x = V(2)
    h = ir.create_graph(lambda x: x * 2, x)
    hi = autodiff(h)
    h._pb_graph.setCanBeRecursivelyAutodiffed(False)
    g = ir.create_graph(lambda x: ops.call(h, x)[0], x)
    with pytest.raises(
        popart.popart_exception, match="has been marked as unsafe to autodiff"
    ):
        autodiff(g)
    autodiff(g, called_graphs_grad_info={h: hi})


def test_all(ir):
    x = V(2)
    h = ir.create_graph(lambda x: x * 2, x)
    g = ir.create_graph(lambda x: ops.call(h, x)[0], x)
    d = autodiff(g, return_all_grad_graphs=True)
    assert set(d) == {h, g}
    assert all(isinstance(v, GradGraphInfo) for v in d.values())


def test_outside():
    ir = popxl.Ir()
    g = ir.create_graph(lambda x: x * x, popxl.TensorSpec((2,), popxl.float32))
    autodiff(g)


def test_kept_even_unused(ir):
    x, y = V(2), V(2)
    g = ir.create_graph(lambda x, y: (x * 2, y * 2), x, y)
    info = autodiff(g, grads_required=[g.inputs[0]])
    assert (
        len(
            [
                e
                for e in info.expected_inputs
                if e.connection_type == ExpectedConnectionType.FwdGrad
            ]
        )
        == 2
    )
    assert "MulArg1Grad" not in types(info.graph)


def test_cond_no_stitch(ir):
    x, c = V(2), popxl.variable(True)
    g = ir.create_graph(lambda x: ops.exp(x * 2), x)
    n = len(g.outputs)
    h = ir.create_graph(lambda x: x, x)
    g2 = ir.create_graph(lambda x: ops.exp(ops.sin(x)) * 1, x)
    ops.conditional(c, g2, h, [x], [x])
    info = autodiff(g2)
    assert len(g2.outputs) == 1
    ops.repeat(g, 2, x)
    info = autodiff(g)
    assert len(g.outputs) == 1


def test_repeat_raises(ir):
    x = V(2)
    h = ir.create_graph(lambda x: x * 2, x)
    g = ir.create_graph(lambda x: ops.repeat(h, 2, x)[0], x)
    with pytest.raises(popart.popart_exception):
        autodiff(g)


def test_slice_inplace_raises(ir):
    x = V(4)
    g = ir.create_graph(lambda x: ops.slice_(x, 0, 2) * 2, x)
    with pytest.raises(popart.popart_exception):
        autodiff(g)


def test_groupnorm(ir):
    x, w, b = V(2, 4), V(4), V(4)
    g = ir.create_graph(lambda x, w, b: ops.group_norm(x, w, b, 2), x, w, b)
    info = autodiff(g, grads_required=[g.inputs[0]])
    (op,) = [
        o
        for o in info.graph._pb_graph.getOps()
        if o.opType() == "GroupNormalizationGrad"
    ]
    assert len(op.getOutputTensors()) == 3
    assert len(op.getInputTensors()) == 5
    assert len(g.outputs) == 3


def test_decompose(ir):
    x = V(2)
    g = ir.create_graph(lambda x: x * x * x * x, x)
    info = autodiff(g)

    def f(x):
        y = x * 1
        return y * 2 + y * 3 + y * 4 + y * 5

    g = ir.create_graph(f, x)
    info = autodiff(g)
    assert types(info.graph).count("Sum") == 1
    r = decompose_sum(info.graph)
    assert r is info.graph
    assert types(r).count("Sum") == 0
    assert types(r).count("Init") == 1
    assert types(r).count("Add") == 4


def test_print_gradient(ir, capfd):
    x = V(2)
    g = ir.create_graph(
        lambda x: ops.print_tensor(x, "foo", print_self=False, print_gradient=True) * 2,
        x,
    )
    c = ops.call_with_info(g, x)
    info = autodiff(g)
    ops.call(
        info.graph,
        popxl.constant(np.ones(2, np.float32)),
        inputs_dict=info.inputs_dict(c),
    )
    with popxl.Session(ir) as s:
        s.run()
    e = capfd.readouterr().err
    assert "foo_gradient" in e
    assert "foo:" not in e


def test_relu_inputs(ir):
    x = V(2)
    for f, fw in [
        (ops.relu, "o"),
        (ops.tanh, "o"),
        (ops.sqrt, "o"),
        (ops.exp, "o"),
        (lambda t: ops.softmax(t, 0), "o"),
        (ops.sin, "i"),
        (ops.log, "i"),
        (ops.abs, "i"),
        (ops.gelu, "i"),
        (lambda t: ops.max(t, 0), "io"),
        (ops.clip, "o"),
        (ops.sum, None),
    ]:
        g = ir.create_graph(f, x)
        info = autodiff(g)
        fwd = [
            e.fwd_tensor
            for e in info.expected_inputs
            if e.connection_type == ExpectedConnectionType.Fwd
        ]
        if fw == "o":
            assert fwd == [g.outputs[0]], (f, fwd)
        if fw == "i":
            assert fwd == [g.inputs[0]], (f, fwd)
        if fw == "io":
            assert set(fwd) == {g.inputs[0], g.outputs[0]}, fwd


def test_name_order(ir):
    x, y = V(2), V(2)
    g = ir.create_graph(lambda b, a: a * b, x, y)
    info = autodiff(g)
    names = [e.fwd_tensor.id for e in info.expected_inputs][1:]
    assert names == sorted(names)
    assert [t.name for t in info.graph.inputs][1:] == [
        e.fwd_tensor.name for e in info.expected_inputs
    ][1:]


def test_const_copied(ir):
    x = V(2)
    g = ir.create_graph(lambda x: x * popxl.constant(3.0, name="c"), x)
    n = len(g.outputs)
    info = autodiff(g)
    assert len(g.outputs) == n
    assert len(info.graph.constants) == 1


def test_dropout_grad(ir):
    x = V(100)
    s = popxl.variable(np.array([1, 2], np.uint32))
    g = ir.create_graph(lambda x, s: ops.dropout(x, s, 0.5), x, s)
    info = autodiff(g, grads_required=[g.inputs[0]])
    c = ops.call_with_info(g, x, s)
    d = ops.call_with_info(
        info.graph,
        popxl.constant(np.ones(100, np.float32)),
        inputs_dict=info.inputs_dict(c),
    )
    o = popxl.d2h_stream((100,), popxl.float32)
    p = popxl.d2h_stream((100,), popxl.float32)
    ops.host_store(o, c.outputs[0])
    ops.host_store(p, d.outputs[0])
    with popxl.Session(ir) as s:
        r = s.run()
    assert ((r[o] == 0) == (r[p] == 0)).all()
    assert set(r[p].tolist()) == {0.0, 2.0}


def test_int_input(ir):
    x, i = V(5, 2), popxl.variable(np.array([1, 2, 2], np.int32))
    g = ir.create_graph(lambda x, i: ops.gather(x, i), x, i)
    info = autodiff(g, grads_required=[g.inputs[0]])
    fwd = [e.fwd_tensor for e in info.expected_inputs[1:]]
    assert g.inputs[1] in fwd


def test_subset_outputs_order(ir):
    x = V(2)
    g = ir.create_graph(lambda x: (x * 2, x * 3), x)
    info = autodiff(g, grads_provided=[g.outputs[1], g.outputs[0]])
    assert info.inputs[0] is g.outputs[1]
