"""Every update of a float16 target beside float64: one rounding, at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import popxl
from plugins.popxl.tests.popir.runs import run
from popxl import ops
from popxl.ops import var_updates as updates

RNG = np.random.default_rng(7)
#: Half of the distance between neighbours of float16, and what float32 loses besides.
ROUNDING = 2.0**-11 + 1e-6
#: Half of the smallest positive float16.
SMALLEST = 2.0**-25
FACTORS = (0.9, 0.99, 0.999, 0.9999)
SCALES = (1.0, 0.3, 1e-4, 1e-6, 1e-8)

Formula = Callable[[Any, Any, float], Any]
#: Each as it is called, and as float64 computes it.
MOVING: dict[str, tuple[Callable[..., Any], Formula]] = {
    "moving average": (
        updates.accumulate_moving_average_,
        lambda t, x, f: f * t + (1 - f) * x,
    ),
    "moving average of squares": (
        updates.accumulate_moving_average_square_,
        lambda t, x, f: f * t + (1 - f) * x * x,
    ),
    "scale": (lambda t, x, f: updates.accumulator_scale_(t, f), lambda t, x, f: f * t),
}
SCALED: dict[str, tuple[Callable[..., Any], Formula]] = {
    "accumulate_": (updates.accumulate_, lambda t, x, f: t + f * x),
    "accumulate_square_": (updates.accumulate_square_, lambda t, x, f: t + f * x * x),
    "sparse_accumulate_": (
        lambda t, x, f: updates.sparse_accumulate_(
            t, x, popxl.constant(np.arange(4), popxl.int32), f=f
        ),
        lambda t, x, f: t + f * x,
    ),
    "scaled_add_": (
        lambda t, x, f: ops.scaled_add_(t, x, b=f),
        lambda t, x, f: t + f * x,
    ),
    "scaled_add": (
        lambda t, x, f: ops.scaled_add(t, x, a=f),
        lambda t, x, f: f * t + x,
    ),
}


def near(found: Any, expected: Any) -> None:
    assert found.dtype == np.float16
    np.testing.assert_allclose(
        found.astype(np.float64), expected, rtol=ROUNDING, atol=SMALLEST
    )


def compare(update: tuple[Callable[..., Any], Formula], f: float, way: str) -> None:
    """Compare with float64, from zero and from elsewhere, for small and large x."""
    call, formula = update
    exact = f
    if way != "number":
        exact = float(np.dtype(way).type(f))
    for start in (0.0, 1.0):
        for size in (1.0, 100.0):
            t = (start * RNG.normal(size=4)).astype(np.float16)
            x = (size * RNG.normal(size=4)).astype(np.float16)

            def build(t: Any, x: Any) -> Any:
                given: Any = f
                if way != "number":
                    given = popxl.constant(f, popxl.dtype.from_name(way))
                return call(t, x, given)

            (found,) = run(build, t, x)
            wide = t.astype(np.float64), x.astype(np.float64)
            near(found, formula(*wide, exact))


@pytest.mark.parametrize("way", ["number", "float32", "float16"])
@pytest.mark.parametrize("f", FACTORS)
@pytest.mark.parametrize("name", MOVING)
def test_moving_averages_round_once(name: str, f: float, way: str) -> None:
    compare(MOVING[name], f, way)


@pytest.mark.parametrize("way", ["number", "float32", "float16"])
@pytest.mark.parametrize("f", SCALES)
@pytest.mark.parametrize("name", SCALED)
def test_scaled_sums_round_once(name: str, f: float, way: str) -> None:
    compare(SCALED[name], f, way)


@pytest.mark.parametrize("step", [0.0, 1.0, 2047.0, 5000.0])
def test_running_means_round_once(step: float) -> None:
    formula = (updates.accumulate_mean_, lambda t, x, n: (n * t + x) / (n + 1))
    compare(formula, step, "number")
    compare(formula, step, "float32")


def test_steps_too_small_for_float16_factors_still_move_the_target() -> None:
    zero = np.zeros((), np.float16)
    for f, expected in ((0.999, 1e-3), (0.9999, 1e-4)):
        (found,) = run(
            lambda t, x, f=f: updates.accumulate_moving_average_(t, x, f),
            zero,
            np.ones((), np.float16),
        )
        near(found, expected)
    (found,) = run(
        lambda t, x: ops.scaled_add_(t, x, b=1e-8), zero, np.array(60000, np.float16)
    )
    near(found, 6e-4)


@pytest.mark.parametrize("beta", [0.9, 0.99, 0.999, 0.9999])
@pytest.mark.parametrize("mode", ["adam", "lamb", "adamax"])
@pytest.mark.parametrize("way", ["number", "float32"])
def test_optimiser_directions_round_once(mode: str, beta: float, way: str) -> None:
    m, w = (RNG.normal(size=4).astype(np.float16) for _ in range(2))
    v = (np.abs(RNG.normal(size=4)) + 0.1).astype(np.float16)
    step, decay = np.array(3, np.float32), 1e-4
    exact = float(np.float32(beta))

    def build(m: Any, v: Any, w: Any, s: Any) -> Any:
        def given(number: float) -> Any:
            if way == "number":
                return number
            return popxl.constant(number, popxl.float32)

        betas = [given(beta)] * (1 if mode == "adamax" else 2)
        make = getattr(updates, f"{mode}_updater")
        return make(m, v, w, s, given(decay), *betas)

    (found,) = run(build, m, v, w, step)
    first, second, weight = (a.astype(np.float64) for a in (m, v, w))
    rest = 1 - exact**4
    bottom = second if mode == "adamax" else np.sqrt(second / rest)
    expected = first / rest / (bottom + 1e-7) + decay * weight
    np.testing.assert_allclose(found, expected, rtol=2**-11 + 3e-4)


@pytest.mark.parametrize("rate", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("way", ["number", "float32"])
def test_optimiser_steps_round_once(rate: float, way: str) -> None:
    w = np.zeros(4, np.float16)
    x = (RNG.normal(size=4) * 1000).astype(np.float16)
    squares = [np.array(n, np.float32) for n in (9.0, 4.0)]

    def build(t: Any, x: Any, r1: Any, r2: Any) -> Any:
        given = rate if way == "number" else popxl.constant(rate, popxl.float32)
        return updates.adam_var_update(t, x, r1, r2, given, 10.0)

    (found,) = run(build, w, x, *squares)
    near(found, -rate * 1.5 * x.astype(np.float64))


def test_losses_scale_and_count_in_float32() -> None:
    rows = 70_000  # more than float16 holds
    probs = np.full((rows, 2), 0.5, np.float16)
    labels = np.zeros(rows, np.int32)

    def build(p: Any, at: Any) -> Any:
        return [ops.nll_loss(p, at), *ops.nll_loss_with_softmax_grad(p, at, 2.0**17)]

    loss, again, dx = run(build, probs, labels)
    near(loss, np.log(2.0))
    near(again, np.log(2.0))
    near(dx[:2], [[-0.5 * 2**17 / rows, 0.5 * 2**17 / rows]] * 2)


def test_int32_gradients_add_to_float16() -> None:
    t, x = np.ones(3, np.float16), np.array([1, 2, 3000], np.int32)
    (found,) = run(updates.accumulate_, t, x)
    near(found, [2, 3, 3001])
