"""Gradients of gradient graphs agree with finite differences of the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import popir
import popxl
from plugins.popxl.tests.popir.test_gradients import CASES, check
from popxl import ops
from popxl.transforms import autodiff


def gradients_of(build: Any, *tensors: Any) -> Any:
    """All gradients of `build`, one after the other."""
    graph = popxl.gir().create_graph(lambda *ts: build(*ts), *tensors)
    call = ops.call_with_info(graph, *tensors)
    rng = np.random.default_rng(1)
    up = rng.normal(size=call.outputs[0].shape).astype(np.float32)
    info: Any = autodiff(graph)
    made = ops.call(info.graph, popxl.constant(up), inputs_dict=info.inputs_dict(call))
    return ops.concat([each.flatten() for each in made])


#: Whose gradients have none of their own yet.
NOT_YET = {"conv", "conv in every way", "conv of one axis", "group_norm", "layer_norm"}


@pytest.mark.parametrize("name", sorted(CASES.keys() - NOT_YET))
def test_second_gradients_agree_with_finite_differences(name: str) -> None:
    build, shapes = CASES[name]

    def square(*tensors: Any) -> Any:
        """Of what is linear too the gradient changes then."""
        made = build(*tensors)
        return made * made

    check(lambda *ts: gradients_of(square, *ts), shapes, len(name))


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_what_has_no_second_gradient_says_so(name: str) -> None:
    build, shapes = CASES[name]
    with pytest.raises(popir.NotYet, match="gradients of gradients through"):
        check(lambda *ts: gradients_of(build, *ts), shapes, 1)


def test_a_third_gradient() -> None:
    def cubed(t: Any) -> Any:
        return ops.exp(t) * t * t

    def second(t: Any) -> Any:
        return gradients_of(cubed, t)

    check(lambda t: gradients_of(second, t), [(3,)], 3)


def test_a_gradient_graph_is_differentiated_as_any_other() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.array([1.0, 2.0], np.float32))
        one = popxl.constant(np.ones(2, np.float32))
        graph = ir.create_graph(lambda t: ops.exp(t), x)
        call = ops.call_with_info(graph, x)
        first: Any = autodiff(graph)
        back = ops.call_with_info(first.graph, one, inputs_dict=first.inputs_dict(call))
        second: Any = autodiff(first.graph)
        made = ops.call_with_info(
            second.graph, one, inputs_dict=second.inputs_dict(back)
        )
        found = second.fwd_parent_ins_to_grad_parent_outs(back, made)
        assert set(found) == {one, call.outputs[0]}
        out = popxl.d2h_stream((2,), popxl.float32)
        ops.host_store(out, found[one])
    with popxl.Session(ir) as session:
        np.testing.assert_allclose(session.run()[out], np.exp([1.0, 2.0]), 1e-5)
