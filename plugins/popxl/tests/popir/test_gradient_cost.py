"""What autodiff costs grows with the number of operators, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import popxl
from popxl import ops
from popxl.transforms import autodiff

SPEC = popxl.TensorSpec((2,), popxl.float32)


def lines_run(call: Callable[[], Any]) -> int:
    """Return how many lines, turns of loops included, `call` executes."""
    count = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def chain(count: int) -> popxl.Graph:
    def fn(x: popxl.Tensor) -> popxl.Tensor:
        for _ in range(count // 2):
            x = ops.tanh(x)
            x = ops.mul(x, x)
        return x

    ir = popxl.Ir()
    with ir.main_graph:
        graph = ir.create_graph(fn, SPEC)
        ops.call(graph, popxl.variable([1.0, 2.0]))
    return graph


def unrolled(count: int) -> popxl.Graph:
    ir = popxl.Ir()

    def step(x: popxl.Tensor, w: popxl.Tensor) -> popxl.Tensor:
        return ops.tanh(ops.mul(x, w) + w)

    def fn(x: popxl.Tensor, w: popxl.Tensor) -> popxl.Tensor:
        for _ in range(count // 4):
            (x,) = ops.call(cell, x, w)
        return x

    with ir.main_graph:
        cell = ir.create_graph(step, SPEC, SPEC)
        return ir.create_graph(fn, SPEC, SPEC)


@pytest.mark.parametrize("build", [chain, unrolled])
def test_twice_the_operators_cost_twice_as_much(
    build: Callable[[int], popxl.Graph],
) -> None:
    small, large = build(200), build(400)
    once = lines_run(lambda: autodiff(small))
    twice = lines_run(lambda: autodiff(large))
    assert twice < 2.2 * once


def test_graphs_know_what_calls_them() -> None:
    graph = chain(4)
    below = graph._below
    (call,) = below.callers
    assert call in below.ir.main.operators
    below.ir.main.remove(call)
    assert not below.callers
