# programs of the guide
from typing import Tuple

import numpy as np
import pytest

import popxl
import popxl.ops as ops
import popxl.transforms as transforms


def test_simple_addition():
    ir = popxl.Ir()
    main = ir.main_graph
    with main:
        a = popxl.variable(2, dtype=popxl.int8, name="variable_a")
        b = popxl.constant(3, dtype=popxl.int8, name="constant_b")
        o = a + b
        o_d2h = popxl.d2h_stream(o.shape, o.dtype, name="output_stream")
        ops.host_store(o_d2h, o)
    with popxl.Session(ir, "ipu_model") as session:
        outputs = session.run()
    assert outputs[o_d2h] == 5


def test_vars():
    ir = popxl.Ir()
    main = ir.main_graph
    with main, popxl.in_sequence():
        input0 = popxl.h2d_stream([2, 2], popxl.float32, name="input0_stream")
        input1 = popxl.h2d_stream([2, 2], popxl.float32, name="input1_stream")
        a = ops.host_load(input0, "a")
        b = ops.host_load(input1, "b")
        v = popxl.variable(np.ones((2, 2)), popxl.float32)
        o = ops.add(a, b) + v
        out = popxl.d2h_stream(o.shape, o.dtype, name="output_stream")
        ops.host_store(out, o)
    with popxl.Session(ir, "ipu_model") as session:
        r = session.run(
            {input0: np.ones((2, 2), np.float32), input1: np.ones((2, 2), np.float32)}
        )
    assert (r[out] == 3).all()


def test_multi_graphs():
    ir = popxl.Ir()
    main = ir.main_graph
    with main:
        w1 = popxl.variable(1)
        w2 = popxl.variable(2)

        def increment_fn(x: popxl.Tensor, value: int) -> popxl.Tensor:
            return x + value

        x = popxl.variable(1)
        g1 = ir.create_graph(increment_fn, x, 1)
        g2 = ir.create_graph(increment_fn, x, 2)
        (a,) = ops.call(g1, x)
        (b,) = ops.call(g2, a)
        o = popxl.d2h_stream(b.shape, b.dtype)
        ops.host_store(o, b)
    with popxl.Session(ir, "ipu_model") as s:
        assert s.run()[o] == 4


def test_loops():
    class Linear(popxl.Module):
        def __init__(self):
            self.W = None
            self.b = None

        def build(
            self, x: popxl.Tensor, out_features: int, bias: bool = True
        ) -> Tuple[popxl.Tensor, ...]:
            self.W = popxl.graph_input((x.shape[-1], out_features), popxl.float32, "W")
            y = x @ self.W
            if bias:
                self.b = popxl.graph_input((out_features,), popxl.float32, "b")
                y = y + self.b
            return y

    ir = popxl.Ir()
    main = ir.main_graph
    with main:
        x_h2d = popxl.h2d_stream((2, 2), popxl.float32, name="x_stream")
        x = ops.host_load(x_h2d, "x")
        W_data = np.ones((2, 2), np.float32)
        b_data = np.ones((2,), np.float32)
        W = popxl.variable(W_data, name="W")
        b = popxl.variable(b_data, name="b")
        linear = Linear()
        lg = ir.create_graph(linear, x, out_features=2)
        i = ops.repeat_with_info(lg, 8, x, inputs_dict={linear.W: W, linear.b: b})
        (o,) = i.outputs
        od = popxl.d2h_stream(o.shape, o.dtype, name="y_stream")
        ops.host_store(od, o)
    with popxl.Session(ir, "ipu_model") as s:
        r = s.run({x_h2d: np.ones((2, 2), np.float32)})[od]
    e = np.ones((2, 2))
    for _ in range(8):
        e = e @ W_data + b_data
    np.testing.assert_allclose(r, e)


def test_code_loading():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(1.0)
        g = ir.create_graph(lambda x: x + 1, x)
        ops.remote_code_load(g, destination="executable")
        (y,) = ops.call(g, x)

        def outer(x):
            ops.remote_code_load(g, "executable")
            return ops.repeat(g, 3, x)[0]

        h = ir.create_graph(outer, x)
        (z,) = ops.call(h, y)
        o = popxl.d2h_stream((), popxl.float32)
        ops.host_store(o, z)
    with popxl.Session(ir) as s:
        assert s.run()[o] == 5


def test_fp8_conv():
    ir = popxl.Ir()
    n_h2d_in = 1
    with ir.main_graph:
        a = popxl.h2d_stream((1, 2, 5, 5), popxl.float16, "a")
        img = ops.host_load(a)
        img8 = ops.pow2scale_cast_to_fp8(
            img, popxl.constant(-1, popxl.int32), popxl.float8_143
        )
        w = np.random.default_rng(0).normal(size=(3, 2, 3, 3)).astype(np.float32)
        w8 = popxl.utils.host_pow2scale_cast_to_fp8(w, popxl.float8_143, -1)
        W = popxl.variable(w8, popxl.float8_143)
        o = ops.conv_pow2scaled(
            img8, W, popxl.constant(2, popxl.int32), available_memory_proportions=[0.3]
        )
        st = popxl.d2h_stream(o.shape, o.dtype)
        ops.host_store(st, o)
    with popxl.Session(ir, "ipu_model") as s:
        r = s.run({a: np.ones((1, 2, 5, 5), np.float16)})[st]
    assert r.dtype == np.float16
    assert r.shape == (1, 3, 3, 3)
    np.testing.assert_allclose(r[0, :, 0, 0], w.sum((1, 2, 3)), rtol=0.1, atol=0.3)


class Linear(popxl.Module):
    def __init__(self):
        self.W: popxl.Tensor = None
        self.b = None

    def build(self, x, out_features: int, gelu: bool = True):
        self.W = popxl.graph_input((x.shape[-1], out_features), popxl.float32, "W")
        self.b = popxl.graph_input((out_features,), popxl.float32, "b")
        y = x @ self.W + self.b
        return ops.gelu(y) if gelu else y


class Net(popxl.Module):
    def __init__(self):
        self.fc1 = Linear()
        self.fc2 = Linear()

    def build(self, x):
        x = x.reshape((-1, 64))
        return self.fc2.build(self.fc1.build(x, 32), 10, gelu=False)


def test_mnist():
    rng = np.random.default_rng(0)
    bs = 16
    X = rng.normal(size=(bs, 8, 8)).astype(np.float32)
    Y = rng.integers(0, 10, bs).astype(np.int32)

    def create(fwd, fwd_call, grad):
        pass

    ir = popxl.Ir()
    ir.num_host_transfers = 1
    with ir.main_graph:
        img_stream = popxl.h2d_stream((bs, 8, 8), popxl.float32, name="image")
        img_t = ops.host_load(img_stream)
        label_stream = popxl.h2d_stream((bs,), popxl.int32, name="labels")
        labels = ops.host_load(label_stream, "labels")
        net = Net()
        fg = ir.create_graph(net, img_t)
        params = {
            net.fc1.W: popxl.variable(
                rng.normal(0, 0.02, (64, 32)).astype(np.float32), name="fc1.W"
            ),
            net.fc1.b: popxl.variable(np.zeros(32, np.float32), name="fc1.b"),
            net.fc2.W: popxl.variable(
                rng.normal(0, 0.02, (32, 10)).astype(np.float32), name="fc2.W"
            ),
            net.fc2.b: popxl.variable(np.zeros(10, np.float32), name="fc2.b"),
        }
        info = ops.call_with_info(fg, img_t, inputs_dict=params)
        (logits,) = info.outputs
        probs = ops.softmax(logits, axis=-1)
        loss, dprobs = ops.nll_loss_with_softmax_grad(probs, labels)
        loss_stream = popxl.d2h_stream(loss.shape, loss.dtype, name="loss")
        ops.host_store(loss_stream, loss)
        bg_info = transforms.autodiff(fg)
        acts = bg_info.inputs_dict(info)
        grads_info = ops.call_with_info(bg_info.graph, dprobs, inputs_dict=acts)
        gt = bg_info.fwd_parent_ins_to_grad_parent_outs(info, grads_info)
        for t in params.values():
            ops.scaled_add_(t, gt[t], b=-0.5)
    with popxl.Session(ir, "ipu_model") as s:
        l = [
            float(s.run({img_stream: X, label_stream: Y})[loss_stream])
            for _ in range(100)
        ]
        data = s.get_tensors_data(list(params.values()))
    assert l[-1] < 0.2 < l[0], l[-1]
    names = {t.name: d for t, d in data.items()}
    assert set(names) == {"fc1.W", "fc1.b", "fc2.W", "fc2.b"}


def test_autodiff_guide():
    def build(x):
        pass

    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones((2, 3)), popxl.float32, name="x")
        W = popxl.variable(np.ones((3, 4)), popxl.float32, name="W")
        b = popxl.variable(np.ones(4), popxl.float32, name="b")
        lin = Linear()
        g = ir.create_graph(lin, x, out_features=4)
        ci = ops.call_with_info(g, x, inputs_dict={lin.W: W, lin.b: b})
        bwd = transforms.autodiff(
            g, grads_provided=g.outputs, grads_required=[g.inputs_by_name["W"], lin.b]
        )
        c = popxl.constant(np.ones(ci.outputs[0].shape), dtype=ci.outputs[0].dtype)
        bi = ops.call_with_info(bwd.graph, c, inputs_dict=bwd.inputs_dict(ci))
        gm = bwd.fwd_parent_ins_to_grad_parent_outs(ci, bi)
        assert set(gm) == {W, b}
        for t, gr in gm.items():
            ops.scaled_add_(t, gr, b=-0.1)
    with popxl.Session(ir, "ipu_model") as s:
        s.run()


def test_session_guide():
    ir = popxl.Ir()
    ir.num_host_transfers = 2
    with ir.main_graph:
        x = popxl.h2d_stream((3,), popxl.float32)
        o = popxl.d2h_stream((3,), popxl.float32)
        v = popxl.variable(np.zeros(3, np.float32))

        def step():
            with popxl.in_sequence():
                ops.host_store(o, ops.host_load(x) * 2)

        ops.repeat(ir.create_graph(step), 2)
        ops.var_updates.accumulate_(v, popxl.constant(np.ones(3, np.float32)))
    s = popxl.Session(ir, "ipu_model")
    with s:
        r = s.run({x: np.arange(6, dtype=np.float32).reshape(2, 3)})[o]
        assert r.shape == (2, 3)
        assert r[1, 2] == 10
        assert s.get_tensor_data(v).tolist() == [1, 1, 1]
        s.write_variable_data(v, np.full(3, 5, np.float32))
    assert s.get_tensor_data(v).tolist() == [5, 5, 5]


def test_replication_build():
    ir = popxl.Ir(replication=2)
    with ir.main_graph:
        x = popxl.variable(np.ones(4, np.float32))
        y = ops.collectives.replicated_all_reduce(x)
        z = ops.collectives.replicated_reduce_scatter(y)
        assert z.shape == (2,)
        w = ops.collectives.replicated_all_gather(z)
        assert w.shape == (4,)
        assert ops.collectives.replicated_slice(x).shape == (2,)
        with pytest.raises(ValueError):
            ops.collectives.replicated_slice(popxl.variable(np.ones(3, np.float32)))
    with popxl.Session(ir, "ipu_model") as session:
        session.run()
