"""Gradients agree with finite differences, for every operator that has one.

Covers: plugins/popxl/src/popir/autodiff.py,
    plugins/popxl/src/popir/gradient_records.py, plugins/popxl/src/popir/dependence.py,
    plugins/popxl/src/popir/ops/elementwise.py,
    plugins/popxl/src/popir/ops/arithmetic.py,
    plugins/popxl/src/popir/ops/reductions.py, plugins/popxl/src/popir/ops/shapes.py,
    plugins/popxl/src/popir/ops/indexing.py, plugins/popxl/src/popir/ops/losses.py,
    plugins/popxl/src/popir/ops/networks.py, plugins/popxl/src/popir/ops/randoms.py,
    plugins/popxl/src/popir/ops/common.py, plugins/popxl/src/popir/ops/resampling.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import popxl
from popxl import ops
from popxl.ops.scatter_reduce import grouped_scatter_reduce
from popxl.transforms import autodiff

Build = Callable[..., Any]
CASES: dict[str, tuple[Build, list[tuple[int, ...]]]] = {}


def case(name: str, build: Build, *shapes: tuple[int, ...]) -> None:
    assert name not in CASES
    CASES[name] = (build, list(shapes))


def _over(name: str, axis: Any, keep: bool, t: Any) -> Any:
    return getattr(ops, name)(t, axis, keepdims=keep)


def index(*values: int) -> Any:
    return popxl.constant(np.array(values, np.int32))


for _name in [
    "abs",
    "cos",
    "sin",
    "tanh",
    "exp",
    "relu",
    "sqrt",
    "gelu",
    "geluerf",
    "swish",
    "log",
    "log2",
]:
    case(_name, getattr(ops, _name), (2, 3))
for _name in ("ceil", "floor", "sign", "negate", "identity", "io_tile_copy"):
    case(_name, getattr(ops, _name), (2, 3))
case("clip", lambda t: ops.clip(t, 0.6, 1.2), (2, 5))
case("cast", lambda t: ops.cast(ops.cast(t, popxl.float32), popxl.float32), (2,))
for _name in ("add", "sub", "mul", "div", "pow", "maximum"):
    case(_name, getattr(ops, _name), (2, 3), (2, 3))
    case(f"{_name} broadcast", getattr(ops, _name), (2, 1, 3), (4, 1))
case("fmod", lambda t: ops.fmod(t, popxl.constant(np.float32(0.4))), (2, 3))
case("sum of three", lambda a, b: ops.add(ops.mul(a, b), ops.mul(a, a)), (3,), (3,))
case(
    "where",
    lambda a, b: ops.where(popxl.constant(np.array([True, False, True])), a, b),
    (2, 3),
    (1, 3),
)
case("matmul", ops.matmul, (2, 3), (3, 4))
case("matmul batches", ops.matmul, (2, 5, 2, 3), (5, 3, 4))
case("matmul one matrix", ops.matmul, (2, 5, 3), (3, 4))
case("matmul vectors", ops.matmul, (3,), (3,))
case("matmul vector left", ops.matmul, (3,), (2, 3, 4))
case("matmul vector right", ops.matmul, (2, 4, 3), (3,))
for _name in [
    "sum",
    "mean",
    "max",
    "min",
    "prod",
    "l1",
    "l2",
    "logsum",
    "logsumexp",
    "sumsquare",
    "median",
]:
    case(f"{_name} all", getattr(ops, _name), (2, 3))
    case(f"{_name} axes", partial(_over, _name, (0, -1), True), (2, 3, 2))
    case(f"{_name} one", partial(_over, _name, 1, False), (2, 1, 3))
case("topk", lambda t: ops.topk(t, 2, 1, True, True)[0], (3, 4))
case("cumsum", lambda t: ops.cumsum(t, 1), (2, 4))
case("reshape", lambda t: ops.reshape(t, (3, -1)), (2, 3))
case("reshape_", lambda t: ops.reshape_(t, (3, 2)), (2, 3))
case("transpose", lambda t: ops.transpose(t, (2, 0, 1)), (2, 3, 4))
case("transpose_", ops.transpose_, (2, 3))
case("slice", lambda t: ops.slice(t, (1, None), (None, 0), (1, -1)), (3, 4))
case("subsample", lambda t: ops.subsample(t, [2, 3]), (5, 7))
case("split", lambda t: ops.split(t, [1, 2], 1)[1], (2, 3))
case("concat", lambda a, b: ops.concat([a, b, a], 1), (2, 3), (2, 1))
case("concat_", lambda a, b: ops.concat_([a, b], 0), (2, 3), (1, 3))
for _mode in ("nearest", "linear", "cubic"):
    for _where in ("half_pixel", "align_corners", "asymmetric"):
        case(
            f"interpolate {_mode} {_where}",
            partial(
                ops.interpolate,
                scale_factor=(1.0, 1.0, 2.0, 1.5),
                mode=_mode,
                coordinate_transformation_mode=_where,
            ),
            (1, 2, 3, 4),
        )
case(
    "interpolate odd axes",
    lambda t: ops.interpolate(t, (2.0, 1.0, 1.5), "linear"),
    (2, 1, 4),
)
case(
    "roi_align",
    lambda t: ops.roi_align(
        t,
        popxl.constant(
            np.array([[0, 0, 3, 2], [1, 1, 3.5, 2.7], [0.2, 0.1, 9, 9]], np.float32)
        ),
        index(0, 1, 0),
        (2, 3),
        1.0,
        2,
    ),
    (2, 2, 3, 4),
)
case(
    "groupedgather",
    lambda t: ops.groupedgather(
        t, popxl.constant(np.array([[0, 3], [1, 1]], np.int32)), 1, 2
    ),
    (2, 4, 3),
)
case(
    "grouped_scatter_reduce",
    lambda t: grouped_scatter_reduce(
        t,
        popxl.constant(np.array([[0, 2], [1, 1]], np.int32)),
        "sum",
        axis=1,
        axis_size=3,
        group_size=2,
    ),
    (2, 2, 3),
)
case("squeeze", ops.squeeze, (2, 1, 3, 1))
case("item", lambda t: t[1, ::2], (2, 5))
case("gather", lambda t: ops.gather(t, index(2, 0, 2), 1), (2, 3))
case("gather zero", lambda t: ops.gather(t, index(9, 1), 0, zero_OOR=True), (2, 3))
case("tied_gather", lambda t: ops.tied_gather(t, index(1, 1)), (2, 3))
case(
    "scatter",
    lambda t, v: ops.scatter(
        t, popxl.constant(np.array([[1, 0, 1]], np.int32)), v, axis=0
    ),
    (2, 3),
    (1, 3),
)
for _name in ("sum", "max", "min"):
    case(
        f"scatter_reduce {_name}",
        lambda t, s, r=_name: ops.scatter_reduce(t, index(0, 2, 0), r, s),
        (3, 2),
        (3, 2),
    )
    case(
        f"scatter_reduce {_name} sized",
        lambda t, r=_name: ops.scatter_reduce(t, index(0, 2, 0), r, axis_size=4),
        (3, 2),
    )
case(
    "onehot", lambda v: ops.onehot(index(1, 0), popxl.constant(np.int32(3)), v, 0), (2,)
)
_start = np.array([1], np.uint32)
case(
    "dynamic_slice",
    lambda t: ops.dynamic_slice(t, popxl.constant(_start), [1], [2], True),
    (2, 4),
)
case(
    "dynamic_update",
    lambda t, u: ops.dynamic_update(t, popxl.constant(_start), u, [1], [2], True),
    (2, 4),
    (2, 2),
)
case("softmax", lambda t: ops.softmax(t, -1), (2, 3))
case("softmax of two axes", lambda t: ops.softmax(t, 1), (2, 3, 2))
case("group_norm", lambda t, w, b: ops.group_norm(t, w, b, 2), (2, 4, 3), (4,), (4,))
case("layer_norm", ops.layer_norm, (3, 5), (5,), (5,))
case(
    "batch_norm_inference", ops.batch_norm_inference, (2, 3, 2), (3,), (3,), (3,), (3,)
)
case("conv", ops.conv, (2, 3, 5, 4), (2, 3, 3, 2))
case(
    "conv in every way",
    lambda t, w: ops.conv(t, w, (2, 1), (1, 0, 2, 1), (1, 2), groups=2),
    (1, 4, 6, 5),
    (2, 2, 3, 2),
)
case(
    "conv of one axis",
    lambda t, w: ops.conv(t, w, (2,), (0, 0), (1,), pad_type="same_upper"),
    (2, 1, 5),
    (1, 1, 2),
)
case(
    "average_pool",
    lambda t: ops.average_pool(t, (2, 2), (2, 1), (1, 0, 0, 1)),
    (1, 2, 4, 3),
)
case("max_pool", lambda t: ops.max_pool(t, (2, 2), (1, 2), (0, 1, 0, 0)), (1, 2, 4, 3))
for _name in ("mean", "sum", "none"):
    case(
        f"nll_loss {_name}",
        lambda t, r=_name: ops.nll_loss(t, index(2, 0, 1), 0, r),
        (3, 4),
    )
case("nll_loss log", lambda t: ops.nll_loss(t, index(2, 0), log_prob=True), (2, 3))
_seed = np.array([7, 9], np.uint32)
case("dropout", lambda t: ops.dropout(t, popxl.constant(_seed), 0.4), (3, 4))
case(
    "shaped_dropout",
    lambda t: ops.shaped_dropout(t, popxl.constant(_seed), (3, 1), 0.4),
    (3, 4),
)


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    build, shapes = CASES[name]
    check(build, shapes, len(name))


def check(build: Build, shapes: list[tuple[int, ...]], seed: int) -> None:
    """Compare the gradients of `build` over inputs of these shapes with differences."""
    rng = np.random.default_rng(seed)
    # Away from each other, from 0 and from whole numbers: steps stay on one side.
    values = []
    for n, shape in enumerate(shapes):
        size = int(np.prod(shape))
        order = rng.permutation(size).reshape(shape)
        spread = 0.31 + min(0.1, 1.5 / size) * order + 0.013 * n
        values.append(spread.astype(np.float32))
    ir = popxl.Ir()
    with ir.main_graph:
        given = [popxl.h2d_stream(each.shape, popxl.float32) for each in values]
        inputs = [ops.host_load(each) for each in given]
        graph = ir.create_graph(lambda *ts: build(*ts), *inputs)
        call = ops.call_with_info(graph, *inputs)
        (result,) = call.outputs
        weight = rng.normal(size=result.shape).astype(np.float32)
        total = ops.sum(ops.mul(result, popxl.constant(weight)))
        out = popxl.d2h_stream((), popxl.float32)
        ops.host_store(out, total)
        gradients = autodiff(graph)
        assert not isinstance(gradients, dict)
        back = ops.call_with_info(
            gradients.graph,
            popxl.constant(weight),
            inputs_dict=gradients.inputs_dict(call),
        )
        streams = []
        for made in back.outputs:
            streams.append(popxl.d2h_stream(made.shape, made.dtype))
            ops.host_store(streams[-1], made)
    fed = dict(zip(given, values, strict=True))
    with popxl.Session(ir) as session:
        found = session.run(fed)
        step = 2e-3
        for source, value, stream in zip(given, values, streams, strict=True):
            expected = np.zeros_like(value)
            for at in np.ndindex(value.shape):
                sides = []
                for sign in (1, -1):
                    moved = value.copy()
                    moved[at] += sign * step
                    sides.append(float(session.run({**fed, source: moved})[out]))
                expected[at] = (sides[0] - sides[1]) / (2 * step)
            limit = 2e-3 * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(found[stream], expected, 1e-2, limit)


def test_what_a_gradient_needs_becomes_an_output_of_calls_that_there_are() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x, w, b = (popxl.variable(np.ones((2, 2), np.float32)) for _ in range(3))
        graph = ir.create_graph(lambda x, w, b: x * w + b, x, w, b)
        before = ops.call_with_info(graph, x, w, b)
        info = autodiff(graph, grads_required=graph.inputs[1:])
        assert not isinstance(info, dict)
    assert len(before.outputs) == 2
    assert before.outputs[1].name.startswith("autodiff_output")
    assert graph.outputs[1].name == "mul_out"
    assert [e.connection_type.value for e in info.expected_inputs] == [
        "FwdGrad",
        *["Fwd"] * 5,
    ]
    assert [t.name for t in info.graph.outputs] == [
        f"Gradient___{t.name}" for t in graph.inputs[1:]
    ]
    assert set(info.inputs_dict(before).values()) <= {x, w, b, *before.outputs}


def test_what_has_no_gradient_is_refused() -> None:
    import popart

    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        changing = ir.create_graph(lambda t: ops.gelu_(t), x)
        with pytest.raises(popart.popart_exception, match="contains a modifying op"):
            autodiff(changing)
        stopped = ir.create_graph(lambda t: ops.detach(t), x)
        with pytest.raises(popart.popart_exception, match="Unable to provide"):
            autodiff(stopped)
        outer = ir.create_graph(lambda t: ops.call(stopped, t)[0] + t, x)
        stopped._below.can_be_differentiated = False
        autodiff(outer)  # nothing flows through it


def test_graphs_that_call_graphs() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.array([1.0, 2.0], np.float32))
        inner = ir.create_graph(lambda t: ops.exp(t * t), x)

        def twice(t: Any) -> Any:
            return ops.call(inner, ops.call(inner, t)[0] * 0.1)[0] * t

        outer = ir.create_graph(twice, x)
        made = autodiff(outer, return_all_grad_graphs=True)
        assert isinstance(made, dict)
        assert set(made) == {outer, inner}
        call = ops.call_with_info(outer, x)
        one = popxl.constant(np.ones(2, np.float32))
        grads = made[outer]
        dx = ops.call(grads.graph, one, inputs_dict=grads.inputs_dict(call))[0]
        out = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(out, dx)
    with popxl.Session(ir) as session:
        found = session.run()[out]
    t = np.array([1.0, 2.0])
    u = np.exp(t * t) * 0.1
    y = np.exp(u * u)
    expected = y + t * y * 2 * u * (u * 2 * t)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("one_graph", [True, False])
def test_gradients_of_conditionals(condition: bool, one_graph: bool) -> None:
    """Of the branch that was taken; zero for what only the other one reads."""
    ir = popxl.Ir()
    with ir.main_graph:
        x, w = (popxl.variable(np.array(v, np.float32)) for v in ([1, 2], [3, 4]))
        chosen = popxl.variable(np.array(condition))
        then = ir.create_graph(lambda a, b: ops.exp(a) * b, x, w)
        other = then if one_graph else ir.create_graph(lambda a: a * a * a, x)

        def choose(x: Any, w: Any, chosen: Any) -> Any:
            inputs = [x, w] if one_graph else [x]
            return ops.conditional(chosen, then, other, [x, w], inputs)[0] * x

        graph = ir.create_graph(choose, x, w, chosen)
        call = ops.call_with_info(graph, x, w, chosen)
        info: Any = autodiff(graph, grads_required=graph.inputs[:2])
        one = popxl.constant(np.ones(2, np.float32))
        made = ops.call(info.graph, one, inputs_dict=info.inputs_dict(call))
        streams = [popxl.d2h_stream((2,), popxl.float32) for _ in made]
        for stream, gradient in zip(streams, made, strict=True):
            ops.host_store(stream, gradient)
    with popxl.Session(ir) as session:
        found = session.run()
    t, v = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    expected = [np.exp(t) * v * (1 + t), np.exp(t) * t]
    if not (condition or one_graph):
        expected = [4 * t**3, 0 * t]
    for stream, known in zip(streams, expected, strict=True):
        np.testing.assert_allclose(found[stream], known, rtol=1e-5)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("branch", [False, True])
def test_graphs_whose_outputs_are_one_tensor(known: bool, branch: bool) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.array([1.0, 2.0], np.float32))
        inner = ir.create_graph(lambda t: [ops.exp(t)] * 3, x)

        def both(t: Any) -> Any:
            if branch:
                yes = popxl.constant(True)
                _, a, b = ops.conditional(yes, inner, inner, [t], [t])
            else:
                _, a, b = ops.call(inner, t)
            return a * 3.0 + b * b

        outer = ir.create_graph(both, x)
        ready: Any = {inner: autodiff(inner)} if known else None
        info: Any = autodiff(outer, called_graphs_grad_info=ready)
        call = ops.call_with_info(outer, x)
        one = popxl.constant(np.ones(2, np.float32))
        (dx,) = ops.call(info.graph, one, inputs_dict=info.inputs_dict(call))
        out = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(out, dx)
    with popxl.Session(ir) as session:
        found = session.run()[out]
    y = np.exp([1.0, 2.0])
    np.testing.assert_allclose(found, 3 * y + 2 * y * y, rtol=1e-5)
