"""Optimiser steps beside their formulas; random operators as functions of a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import popxl
from plugins.popxl.tests.popir.runs import run
from popxl import ops
from popxl.ops import var_updates as updates

RNG = np.random.default_rng(4)
M, W = (RNG.normal(size=4).astype(np.float32) for _ in range(2))
V = np.abs(RNG.normal(size=4)).astype(np.float32)
STEP = np.array(4, np.float32)


def corrected(value: Any, beta: float) -> Any:
    return value / (1 - beta**5)


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "adam": (
        lambda m, v, w, s: updates.adam_updater(m, v, w, s, 0.1, 0.9, 0.99),
        corrected(M, 0.9) / (np.sqrt(corrected(V, 0.99)) + 1e-7) + 0.1 * W,
    ),
    "adam without bias correction": (
        lambda m, v, w, s: updates.adam_updater(m, v),
        M / (np.sqrt(V) + 1e-7),
    ),
    "lamb": (
        lambda m, v, w, s: updates.lamb_updater(m, v, w, s, 0.2, 0.9, 0.99),
        corrected(M, 0.9) / (np.sqrt(corrected(V, 0.99)) + 1e-7) + 0.2 * W,
    ),
    "adamax": (
        lambda m, v, w, s: updates.adamax_updater(m, v, w, s, 0.1, 0.9),
        corrected(M, 0.9) / (V + 1e-7) + 0.1 * W,
    ),
    "copy_var_update_": (lambda m, v, w, s: updates.copy_var_update_(m, v), V),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_their_formulas(name: str) -> None:
    build, expected = CASES[name]
    (found,) = run(build, M, V, W, STEP)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(("norm", "other"), [(3.0, 2.0), (30.0, 2.0), (0.0, 2.0)])
def test_adam_var_update_keeps_weights_within_their_norm(
    norm: float, other: float
) -> None:
    squares = [np.array(n * n, np.float32) for n in (norm, other)]

    def build(t: Any, x: Any, r1: Any, r2: Any) -> Any:
        return updates.adam_var_update(t, x, r1, r2, 0.1, 10.0)

    (found,) = run(build, W, M, *squares)
    ratio = min(norm, 10.0) / other if norm else 1.0
    np.testing.assert_allclose(found, W - 0.1 * ratio * M, rtol=1e-5)


def test_time_steps_count_in_place() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        m, v, step = (popxl.variable(a) for a in (M, V, STEP))
        updates.adam_updater(m, v, time_step=step, beta1=0.9, beta2=0.99)
    with popxl.Session(ir) as session:
        session.run()
        session.run()
        assert session.get_tensor_data(step) == 6


def test_a_view_is_computed_anew_after_writes_in_a_loop_and_behind_it() -> None:
    """What a loop computed of a view is not there outside of it."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        base = popxl.variable(np.zeros((2, 2), np.float32))
        view = ops.transpose_(ops.reshape_(base, (4,)).reshape_((2, 2)))

        def body(t: popxl.TensorByRef) -> None:
            ops.add_(t, popxl.constant(np.array([[1, 2], [3, 4]], np.float32)))

        body.__annotations__["t"] = popxl.TensorByRef
        ops.repeat(ir.create_graph(body, view), 3, view)
        streams = [popxl.d2h_stream((2, 2), popxl.float32) for _ in range(2)]
        ops.host_store(streams[0], view)
        ops.host_store(streams[1], base)
    with popxl.Session(ir) as session:
        found = session.run()
    expected = np.array([[3, 6], [9, 12]])
    np.testing.assert_array_equal(found[streams[0]], expected)
    np.testing.assert_array_equal(found[streams[1]], expected.T)


def test_random_numbers_follow_from_the_seed() -> None:
    seed = np.array([1, 2], np.uint32)

    def build(s: Any) -> list[Any]:
        return [
            ops.random_uniform(s, (4000,), -1, 2),
            ops.random_normal(s, (4000,), 3, 2),
            ops.random_uniform(ops.split_random_seed(s, 2)[1], (4000,), -1, 2),
            ops.random_normal(s, (10,), dtype=popxl.float16),
        ]

    uniform, normal, other, half = run(build, seed)
    again = run(build, seed)
    for one, two in zip((uniform, normal, other, half), again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert uniform.min() >= -1
    assert uniform.max() < 2
    assert abs(uniform.mean() - 0.5) < 0.1
    assert abs(uniform.std() - 3 / np.sqrt(12)) < 0.1
    assert abs(normal.mean() - 3) < 0.2
    assert abs(normal.std() - 2) < 0.2
    assert abs(np.corrcoef(uniform, other)[0, 1]) < 0.1
    assert half.dtype == np.float16


def test_uniform_numbers_are_below_the_end() -> None:
    seed = np.array([3, 4], np.uint32)

    def build(s: Any) -> list[Any]:
        size = (200_000,)
        return [
            ops.random_uniform(s, size, dtype=popxl.float16),
            ops.random_uniform(s, size, 1000, 1001),
        ]

    half, far = run(build, seed)
    assert half.max() == np.nextafter(np.float16(1), np.float16(0))
    assert far.max() == np.nextafter(np.float32(1001), np.float32(0))
