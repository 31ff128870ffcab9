import gc
from typing import List

import numpy as np
import pytest

import popart
import popxl
from popxl import TensorByRef, ops
from popxl.transforms import autodiff


def fetch(ir, *ts, kind="ipu_model", **ins):
    st = []
    with ir.main_graph, popxl.in_sequence():
        for t in ts:
            st.append(popxl.d2h_stream(t.shape, t.dtype))
            ops.host_store(st[-1], t)
    with popxl.Session(ir, kind) as s:
        r = s.run(ins.get("inputs"))
    return [r[x] for x in st]


V = lambda x, n=None: popxl.variable(np.asarray(x, np.float32), name=n)


def test_outside():
    for f in (
        lambda: popxl.variable(1),
        lambda: popxl.constant(1),
        lambda: popxl.h2d_stream((), popxl.float32),
        lambda: popxl.graph_input((), popxl.float32),
        lambda: popxl.remote_buffer((), popxl.float32, 1),
        lambda: ops.init((), popxl.float32),
    ):
        with pytest.raises(RuntimeError):
            f()


def test_view_chain():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = V(np.zeros((4, 4)), "x")
        y = ops.slice_(x, [1, 1], [3, 3])
        z = y.reshape_((4,))
        w = ops.slice_(z, 1, 3)
        w += popxl.constant(np.array([5.0, 6.0], np.float32))
        t = x.T_
        tt = ops.slice_(t, 0, 1)
        tt += 1
    (r,) = fetch(ir, x)
    e = np.zeros((4, 4))
    e[1, 2] = 5
    e[2, 1] = 6
    e[:, 0] += 1
    assert (r == e).all()


def test_concat_write():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a, b = V([1, 2]), V([3, 4])
        c = ops.concat_([a, b])
        c += popxl.constant(np.arange(4, dtype=np.float32))
        d = c * 1
    ra, rb, rd = fetch(ir, a, b, d)
    assert ra.tolist() == [1, 3]
    assert rb.tolist() == [5, 7]
    assert rd.tolist() == [1, 3, 5, 7]


def test_overlap_reverse():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a = V([1, 2, 3])
        r = ops.slice_(a, step=-1, axis=0)
        ops.var_updates.copy_var_update_(
            r, popxl.constant(np.array([7, 8, 9], np.float32))
        )
    assert fetch(ir, a)[0].tolist() == [9, 8, 7]


def test_by_ref_views_in_loop():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a = V(np.zeros(4))
        v = ops.slice_(a, 1, 3)

        def f(x: TensorByRef, y: TensorByRef):
            with popxl.in_sequence():
                x += 1
                y += popxl.constant(np.full(2, 10, np.float32))

        g = ir.create_graph(f, a, v)
        ops.repeat(g, 3, a, v)
    assert fetch(ir, a)[0].tolist() == [3, 33, 33, 3]


def test_list_byref():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a, b = V(1), V(2)

        def f(xs: List[TensorByRef]):
            for x in xs:
                x += 1

        ops.call(ir.create_graph(f, [a, b]), [a, b])
    assert [float(x) for x in fetch(ir, a, b)] == [2, 3]


def test_iadd_in_sub_is_value():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a = V(1)

        def f(x):
            x += 1
            x += 1
            return x

        (r,) = ops.call(ir.create_graph(f, a), a)
    assert [float(t) for t in fetch(ir, a, r)] == [1, 3]


def test_modified_views():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a = V(np.zeros(4))
        v = a.reshape_((2, 2))

        def f(x):
            x += 1

        i = ops.call_with_info(ir.create_graph(f, v), v)
        i.set_parent_input_modified(v)
        i.set_parent_input_modified(v, infer_modified_regions=True)
    assert fetch(ir, a)[0].tolist() == [1] * 4


def test_repeat_modified():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a, b = V(0), V(0)

        def f(x, y):
            y += x
            return x + 1

        g = ir.create_graph(f, a, b)
        i = ops.repeat_with_info(g, 4, a, b)
        i.set_parent_input_modified(b)
    ra, rb, rx = fetch(ir, a, b, i.outputs[0])
    assert (float(ra), float(rx)) == (0, 4)
    assert float(rb) == 6


def test_cond_in_loop():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a = V(0.0)
        t = ir.create_graph(lambda x: x + 1, a)
        e = ir.create_graph(lambda x: x + 100, a)

        def body(x):
            c = ops.greater(popxl.constant(np.float32(3)), x)
            return ops.conditional(c, t, e, [x], [x])[0]

        (r,) = ops.repeat(ir.create_graph(body, a), 5, a)
    assert float(fetch(ir, r)[0]) == 203


def test_print_loop(capfd):
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        a = V(0.0)

        def body(x):
            return ops.print_tensor(x, "it") + 1

        ops.repeat(ir.create_graph(body, a), 3, a)
    with popxl.Session(ir) as s:
        s.run()
    assert capfd.readouterr().err.count("it:") == 3


def test_print_hw(capfd):
    ir = popxl.Ir()
    with ir.main_graph:
        ops.print_tensor(V([1.5, 2]), "hw")
    with popxl.Session(ir, "ipu_hw") as s:
        s.run()
    assert "hw: [1.5 2. ]" in capfd.readouterr().err


def test_autodiff_nested_numeric():
    class L(popxl.Module):
        def build(self, x):
            self.w = popxl.graph_input((3, 3), popxl.float32, "w")
            return ops.tanh(x @ self.w)

    ir = popxl.Ir()
    rng = np.random.default_rng(0)
    with ir.main_graph, popxl.in_sequence():
        x, w1, w2 = (
            V(rng.normal(size=(2, 3))),
            V(rng.normal(size=(3, 3))),
            V(rng.normal(size=(3, 3))),
        )
        l = L()
        lg = ir.create_graph(l, x)

        def net(x, a, b):
            (y,) = ops.call(lg, x, inputs_dict={l.w: a})
            (z,) = ops.call(lg, y, inputs_dict={l.w: b})
            return ops.sum(z * z)

        ng = ir.create_graph(net, x, w1, w2)
        ci = ops.call_with_info(ng, x, w1, w2)
        d = autodiff(ng, return_all_grad_graphs=True)
        gi = d[ng]
        gr = ops.call_with_info(gi.graph, 1.0, inputs_dict=gi.inputs_dict(ci))
        m = gi.fwd_parent_ins_to_grad_parent_outs(ci, gr)
    r = fetch(ir, ci.outputs[0], m[x], m[w1], m[w2])
    X, A, B = (t._below.data.astype(np.float64) for t in (x, w1, w2))

    def f(X, A, B):
        return (np.tanh(np.tanh(X @ A) @ B) ** 2).sum()

    np.testing.assert_allclose(r[0], f(X, A, B), rtol=1e-5)
    for k, (P, g) in enumerate(zip((X, A, B), r[1:])):
        num = np.zeros_like(P)
        for idx in np.ndindex(P.shape):
            Q = [X.copy(), A.copy(), B.copy()]
            Q[k][idx] += 1e-5
            R = [X.copy(), A.copy(), B.copy()]
            R[k][idx] -= 1e-5
            num[idx] = (f(*Q) - f(*R)) / 2e-5
        np.testing.assert_allclose(g, num, rtol=1e-3, atol=1e-4)


def test_same_tensor_two_inputs():
    ir = popxl.Ir()
    with ir.main_graph:
        x = V([1, 2])
        g = ir.create_graph(lambda a, b: a * b, x, x)
        ci = ops.call_with_info(g, x, x)
        gi = autodiff(g)
        gr = ops.call_with_info(
            gi.graph,
            popxl.constant(np.ones(2, np.float32)),
            inputs_dict=gi.inputs_dict(ci),
        )
        m = gi.fwd_graph_ins_to_grad_parent_outs(gr)
        assert len(m) == 2
        gi.fwd_parent_ins_to_grad_parent_outs(ci, gr)


def test_autodiff_after_call_and_session():
    ir = popxl.Ir()
    with ir.main_graph:
        x = V([1, 2])
        g = ir.create_graph(lambda a: ops.exp(ops.sin(a)) * 2, x)
        c1 = ops.call_with_info(g, x)
        n1 = len(c1.outputs)
        gi = autodiff(g)
        c2 = ops.call_with_info(g, x)
        assert n1 == 1
        assert len(c1.outputs) == len(c2.outputs) == len(g.outputs) > 1
        a = ops.call(
            gi.graph,
            popxl.constant(np.ones(2, np.float32)),
            inputs_dict=gi.inputs_dict(c1),
        )
        b = ops.call(
            gi.graph,
            popxl.constant(np.ones(2, np.float32)),
            inputs_dict=gi.inputs_dict(c2),
        )
    r = fetch(ir, a[0], b[0])
    assert (r[0] == r[1]).all()


def test_accumulators():
    ir = popxl.Ir()
    ir.num_host_transfers = 4
    with ir.main_graph, popxl.in_sequence():
        xs = popxl.h2d_stream((2,), popxl.float32, "x")
        acc = V(np.zeros(2), "acc")
        w = V([1, 1], "w")

        def fwd(x, w):
            return ops.sum(x * w)

        fg = ir.create_graph(fwd, popxl.TensorSpec((2,), popxl.float32), w)
        gi = autodiff(fg, grads_required=[fg.inputs[1]])

        def step(w, acc: TensorByRef):
            x = ops.host_load(xs)
            c = ops.call_with_info(fg, x, w)
            (g,) = ops.call(gi.graph, 1.0, inputs_dict=gi.inputs_dict(c))
            ops.var_updates.accumulate_(acc, g)

        ops.repeat(ir.create_graph(step, w, acc), 4, w, acc)
        ops.scaled_add_(w, acc, b=-1.0)
        ops.var_updates.accumulator_zero_(acc)
    with popxl.Session(ir) as s:
        s.run({xs: np.arange(8).reshape(4, 2)})
    assert s.get_tensor_data(w).tolist() == [1 - 12, 1 - 16]
    assert s.get_tensor_data(acc).tolist() == [0, 0]


def test_seed_stream():
    ir = popxl.Ir()
    with ir.main_graph:
        sd = popxl.h2d_stream((2,), popxl.uint32, "seed")
        s0 = ops.host_load(sd)
        x = V(np.ones(1000))
        y = ops.dropout(x, s0, 0.5)
        z = ops.dropout(x, s0 + 1, 0.5)
        a, b = ops.split_random_seed(s0)
        w = ops.dropout(x, a, 0.5)
        o = [popxl.d2h_stream((1000,), popxl.float32) for _ in range(3)]
        for st, t in zip(o, (y, z, w)):
            ops.host_store(st, t)
    with popxl.Session(ir) as s:
        r1 = s.run({sd: popxl.create_seeds(3)})
        r2 = s.run({sd: popxl.create_seeds(3)})
        r3 = s.run({sd: popxl.create_seeds(4)})
    assert (r1[o[0]] == r2[o[0]]).all()
    assert (r1[o[0]] != r3[o[0]]).any()
    assert (r1[o[0]] != r1[o[1]]).any()
    assert 400 < (r1[o[0]] == 2).sum() < 600


def test_bool_int_vars():
    ir = popxl.Ir()
    with ir.main_graph:
        b = popxl.variable(np.array([True, False]), name="b")
        u = popxl.variable(np.array([1, 2], np.uint32))
        h = popxl.variable(np.array([1.5], np.float16))
        ~b
        u + 1
        h * 2
    with popxl.Session(ir) as s:
        s.write_variable_data(b, np.array([False, True]))
        assert s.get_tensor_data(b).tolist() == [False, True]
        assert s.get_tensor_data(b).dtype == bool
        assert s.get_tensor_data(u).dtype == np.uint32
        assert s.get_tensor_data(h).dtype == np.float16


def test_scalar_writes():
    ir = popxl.Ir()
    with ir.main_graph:
        a = popxl.variable(1.0)
        a + 1
    s = popxl.Session(ir)
    s.write_variable_data(a, np.array(3, np.float32))
    s.write_variable_data(a, np.float32(4))
    assert s.get_tensor_data(a) == 4
    with pytest.raises(TypeError):
        s.write_variable_data(a, np.ones((), np.float64))
    with pytest.raises((TypeError, ValueError)):
        s.write_variable_data(a, [1.0])


def test_const_sub_data():
    ir = popxl.Ir()
    with ir.main_graph:
        x = V(1)

        def f(x):
            c = popxl.constant(3.0, name="c")
            return x + c

        g = ir.create_graph(f, x)
        ops.call(g, x)
    s = popxl.Session(ir)
    assert s.get_tensor_data(g.constants[0]) == 3


def test_hook_in_autodiff():
    ir = popxl.Ir()
    n = []
    with ir.main_graph:
        x = V(1)
        g = ir.create_graph(lambda x: x * x, x)
        h = g.register_op_created_hook(lambda o: n.append(o))
        autodiff(g)
        assert n == []
        gi = ir.create_empty_graph()
        gi.register_op_created_hook(lambda o: n.append(o.id))
        with gi:
            popxl.constant(1.0) + 1
    assert len(n) == 1
    assert isinstance(n[0], int)


def test_order_inputs_ids():
    ir = popxl.Ir()
    with ir.main_graph:

        def f(x, *ys, z, **kw):
            return x

        g = ir.create_graph(f, V(1), V(2), V(3), z=V(4), q=V(5))
    assert [t.name for t in g.inputs] == ["x", "ys_0", "ys_1", "z", "q"]


def test_input_scope():
    ir = popxl.Ir()
    with ir.main_graph, popxl.name_scope("outer"):
        g = ir.create_graph(lambda x: x + 1, V(1))
    assert g.inputs[0].name.endswith("x")


def test_dtype_ops():
    ir = popxl.Ir()
    P = popart.popart_exception
    with ir.main_graph:
        a, i = V([1.0]), popxl.variable(np.array([1], np.int32))
        for f in (
            ops.add,
            ops.sub,
            ops.mul,
            ops.div,
            ops.fmod,
            ops.pow,
            ops.equal,
            ops.greater,
            ops.maximum,
            lambda x, y: ops.where(popxl.constant(True), x, y),
        ):
            with pytest.raises(P):
                f(a, i)
        with pytest.raises(P):
            a @ i
        assert (i + 1.7).dtype == popxl.int32
        assert (i / 2).dtype == popxl.int32
        h = popxl.variable(np.array([1], np.float16))
        assert (h * 2.5).dtype == popxl.float16
        assert (h + np.float64(1)).dtype == popxl.float16


def test_empty_in_block():
    ir = popxl.Ir()
    with ir.main_graph, popxl.transforms.merge_exchange():
        pass
    with ir.main_graph, popxl.transforms.io_tile_exchange():
        pass


def test_weights_on_two_irs():
    ir1, ir2 = popxl.Ir(), popxl.Ir()
    vs = []
    for ir in (ir1, ir2):
        with ir.main_graph:
            w = popxl.variable(np.zeros(2, np.float32), name="w")
            ops.add_(w, popxl.constant([1.0, 2.0]))
            vs.append(w)
    a = popxl.Session(ir1)
    b = popxl.Session(ir2)
    with a:
        a.run()
    b.write_variables_data({vs[1]: a.get_tensor_data(vs[0])})
    with b:
        b.run()
    assert b.get_tensor_data(vs[1]).tolist() == [2, 4]
    assert a.get_tensor_data(vs[0]).tolist() == [1, 2]


def test_two_sessions_nested():
    ir1, ir2 = popxl.Ir(), popxl.Ir()
    for ir in (ir1, ir2):
        with ir.main_graph:
            w = popxl.variable(np.zeros(2, np.float32), name="w")
            ops.add_(w, popxl.constant([1.0, 2.0]))
    a, b = popxl.Session(ir1, "ipu_model"), popxl.Session(ir2, "ipu_model")
    with a, b:
        a.run()
        b.run()


def test_session_outputs_fresh():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.h2d_stream((), popxl.float32)
        o = popxl.d2h_stream((), popxl.float32)
        ops.host_store(o, ops.host_load(x))
    with popxl.Session(ir) as s:
        a = s.run({x: 1})[o]
        b = s.run({x: 2})[o]
        assert a == 1
        assert b == 2


def test_run_with_wrong_dtype_outputs():
    ir = popxl.Ir()
    with ir.main_graph:
        o = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(o, V([1, 2]))
    with popxl.Session(ir) as s:
        arr = np.zeros(2, np.float64)
        s.run_with_outputs(outputs={o: arr})
        assert arr.tolist() == [1, 2]
        arr = np.zeros(4, np.float32)[::2]
        s.run_with_outputs(outputs={o: arr})
        assert arr.tolist() == [1, 2]


def test_constant_store():
    ir = popxl.Ir()
    with ir.main_graph:
        o = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(o, popxl.constant([1.0, 2.0]))
    with popxl.Session(ir) as s:
        assert s.run()[o].tolist() == [1, 2]


def test_op_view_calls():
    ir = popxl.Ir()
    with ir.main_graph:
        x = V(1)
        g = ir.create_graph(lambda x: x + 1, x)
        c = ops.call_with_info(g, x)
        r = ops.repeat_with_info(g, 2, x)
        cc = ops.conditional_with_info(popxl.constant(True), g, g, [x], [x])
    assert [i._op.opType() for i in (c, r, cc)] == ["Call", "Loop", "If"]
    assert len(r.outputs) == 1
    assert cc.outputs[0].name == "add_out_or_add_out"


def test_loop_tensors_counts():
    ir = popxl.Ir()
    with ir.main_graph:
        x = V(1)
        g = ir.create_graph(lambda x, y: x + y, x, x)
        n = len(ir.main_graph.tensors)
        ops.repeat(g, 2, x, 1.0)
        assert len(ir.main_graph.tensors) == n + 2
    assert len(g.tensors) == 3


def test_transposed_perm_neg():
    ir = popxl.Ir()
    with ir.main_graph:
        x = V(np.ones((2, 3)))
        assert len(x) == 2
        assert ops.split(x, 3, axis=-1)[0].shape == (2, 1)
        assert ops.split(x, 3, 1)[0].shape == (2, 1)
        assert ops.concat([x, x], -1).shape == (2, 6)


def test_get_tensor_errs():
    ir = popxl.Ir()
    with pytest.raises((ValueError, popart.popart_exception)):
        ir.main_graph.get_tensor("x")


def test_ir_in_thread_free():
    gc.collect()
    n = len(popxl.Ir._ir_cache)

    def f():
        ir = popxl.Ir()
        with ir.main_graph:
            t = popxl.variable(1.0)
            s = popxl.h2d_stream((), popxl.float32)
            ops.host_load(s)
        return s

    s = f()
    gc.collect()
    assert len(popxl.Ir._ir_cache) == n + 1
    del s
    gc.collect()
    assert len(popxl.Ir._ir_cache) == n
