"""Gradients of float16 beside those of float32, and of more elements than float16 can
count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import popxl
from plugins.popxl.tests.popir.test_gradients import CASES
from popxl import ops
from popxl.transforms import autodiff

#: These cases hold a constant or a result of float32.
HALVES = sorted(CASES.keys() - {"cast", "fmod"})


def differentiate(
    build: Callable[..., Any], values: list[Any], weight: Any = None
) -> list[Any]:
    """Return the result of `build` and its gradients."""
    ir = popxl.Ir()
    with ir.main_graph:
        dtype = popxl.dtype.as_dtype(values[0].dtype)
        given = [popxl.h2d_stream(each.shape, dtype) for each in values]
        inputs = [ops.host_load(each) for each in given]
        graph = ir.create_graph(lambda *ts: build(*ts), *inputs)
        call = ops.call_with_info(graph, *inputs)
        result = call.outputs[0]
        if weight is None:
            weight = np.arange(result.nelms).reshape(result.shape) % 5 - 2
        info = autodiff(graph)
        assert not isinstance(info, dict)
        seed = popxl.constant(np.asarray(weight), dtype)
        back = ops.call(info.graph, seed, inputs_dict=info.inputs_dict(call))
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in (result, *back)]
        for stream, tensor in zip(streams, (result, *back), strict=True):
            ops.host_store(stream, tensor)
    with popxl.Session(ir) as session:
        found = session.run(dict(zip(given, values, strict=True)))
    return [found[stream] for stream in streams]


@pytest.mark.parametrize("name", HALVES)
def test_gradients_of_float16_agree_with_those_of_float32(name: str) -> None:
    build, shapes = CASES[name]
    rng = np.random.default_rng(len(name))
    values = []
    for shape in shapes:
        order = rng.permutation(int(np.prod(shape))).reshape(shape)
        values.append((0.31 + min(0.1, 1.5 / order.size) * order).astype(np.float16))
    halves = differentiate(build, values)
    wide = differentiate(build, [each.astype(np.float32) for each in values])
    for half, exact in zip(halves, wide, strict=True):
        assert half.dtype == np.float16
        limit = 3e-3 * max(1.0, float(np.abs(exact).max()))
        np.testing.assert_allclose(half, exact, rtol=3e-3, atol=limit)


def test_means_of_more_elements_than_float16_counts() -> None:
    x = np.zeros(100_000, np.float16)
    _, dx = differentiate(ops.mean, [x], 1000.0)
    np.testing.assert_array_equal(dx, np.full_like(x, 0.01))


def test_average_pools_of_many_elements() -> None:
    x = np.zeros((1, 1, 300, 310), np.float16)
    _, dx = differentiate(
        lambda t: ops.average_pool(t, (300, 310)), [x], np.full((1, 1, 1, 1), 930.0)
    )
    np.testing.assert_array_equal(dx, np.full_like(x, 0.01))
