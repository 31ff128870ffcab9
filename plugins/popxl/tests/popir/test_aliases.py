"""Programs whose result depends on an order that nothing fixes are refused.

Covers: plugins/popxl/src/popir/aliases.py, plugins/popxl/src/popir/ops/updates.py,
    plugins/popxl/src/popir/ops/control.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import popart
import popxl
from popxl import ops
from popxl.ops import var_updates


def run(program: Callable[[Any], object], start: Any, order: bool = True) -> Any:
    """The value of a variable after one run of `program` on it."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence(order or "pass"):
        variable = popxl.variable(np.array(start, np.float32), name="w")
        program(variable)
    session = popxl.Session(ir)
    with session:
        session.run()
    return session.get_tensor_data(variable)


def two_writes(w: Any) -> None:
    ops.relu_(w)
    ops.relu_(w)


def read_beside_a_write(w: Any) -> None:
    ops.host_store(popxl.d2h_stream(w.shape, w.dtype), w + 1)
    var_updates.copy_var_update_(w, popxl.constant(np.ones(w.shape, np.float32)))


def write_through_a_view(w: Any) -> None:
    ops.relu_(ops.reshape_(w, (-1,)))
    ops.relu_(w.T_)


def write_in_a_called_graph(w: Any) -> None:
    def changes(t: popxl.TensorByRef) -> None:
        ops.relu_(t)

    # Annotations that are texts do not count, so the type itself is put there.
    changes.__annotations__["t"] = popxl.TensorByRef
    graph = popxl.gir().create_graph(changes, w)
    ops.call(graph, w)
    ops.relu_(w)


@pytest.mark.parametrize(
    "program",
    [two_writes, read_beside_a_write, write_through_a_view, write_in_a_called_graph],
)
def test_an_order_must_be_said(program: Callable[[Any], object]) -> None:
    with pytest.raises(
        popart.popart_exception, match=r"^Inplacing ambiguity detected\."
    ):
        run(program, [[1.0, -2.0]], order=False)
    run(program, [[1.0, -2.0]])


def test_data_are_an_order_too() -> None:
    def program(w: Any) -> None:
        ops.relu_(ops.relu_(w))
        popxl.gmg()

    assert run(program, [1.0, -2.0], order=False).tolist() == [1.0, 0.0]


def test_the_check_can_be_turned_off() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        two_writes(popxl.variable(np.ones(2, np.float32)))
    ir._below.options.enableInplaceAmbiguityChecking = False
    popxl.Session(ir)


def test_what_is_called_by_value_stays_inside_unless_it_is_marked() -> None:
    def program(mark: bool, w: Any) -> None:
        graph = popxl.gir().create_graph(lambda t: ops.add_(t, t), w)
        info = ops.call_with_info(graph, w)
        if mark:
            info.set_parent_input_modified(w)

    assert run(lambda w: program(False, w), [1.0]).tolist() == [1.0]
    assert run(lambda w: program(True, w), [1.0]).tolist() == [2.0]


def constant(*values: float) -> Any:
    return popxl.constant(np.array(values, np.float32))


UPDATES: list[tuple[Callable[[Any], object], list[float]]] = [
    (lambda w: var_updates.accumulate_(w, constant(1, 2)), [4, 6]),
    (lambda w: var_updates.accumulate_(w, constant(1, 2), 0.5), [3.5, 5]),
    (lambda w: var_updates.accumulate_square_(w, constant(1, 2), 2.0), [5, 12]),
    (lambda w: var_updates.accumulate_mean_(w, constant(1, 2), 1), [2, 3]),
    (
        lambda w: var_updates.accumulate_moving_average_(w, constant(1, 2), 0.25),
        [1.5, 2.5],
    ),
    (
        lambda w: var_updates.accumulate_moving_average_square_(
            w, constant(1, 2), 0.25
        ),
        [1.5, 4],
    ),
    (lambda w: var_updates.accumulator_scale_(w, 3.0), [9, 12]),
    (lambda w: var_updates.accumulator_zero_(w), [0, 0]),
    (
        lambda w: var_updates.sparse_accumulate_(
            w, constant(1, 2, 3), popxl.constant(np.array([1, 0, 1], np.int32)), f=2.0
        ),
        [7, 12],
    ),
    (lambda w: ops.scaled_add_(w, constant(1, 2), 2.0, constant(3)[0]), [9, 14]),
    (lambda w: ops.increment_mod_(w, 2.0, 3.0), [2, 0]),
]


@pytest.mark.parametrize("number", range(len(UPDATES)))
def test_updates(number: int) -> None:
    program, expected = UPDATES[number]
    np.testing.assert_allclose(run(program, [3.0, 4.0]), expected, rtol=1e-6)


def test_adam_counts_its_step_in_place() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        step = popxl.variable(np.float32(0), name="step")
        first, second = constant(0.5, 1.0), constant(0.04, 0.09)
        weight = popxl.variable(np.ones(2, np.float32), name="w")
        update = var_updates.adam_updater(
            first, second, weight, step, 0.1, beta1=0.9, beta2=0.8, epsilon=1e-3
        )
        one = popxl.constant(np.float32(4))
        var_updates.adam_var_update(weight, update, one, one, 0.5, 10.0)
    session = popxl.Session(ir)
    with session:
        session.run()
        session.run()
    assert session.get_tensor_data(step) == 2
    w = np.ones(2)
    for t in (1, 2):
        m = np.array([0.5, 1.0]) / (1 - 0.9**t)
        v = np.array([0.04, 0.09]) / (1 - 0.8**t)
        w = w - 0.5 * (m / (np.sqrt(v) + 1e-3) + 0.1 * w)
    np.testing.assert_allclose(session.get_tensor_data(weight), w, rtol=1e-5)


def test_what_optimisers_lack_is_said() -> None:
    with popxl.Ir().main_graph:
        t = constant(1)
        with pytest.raises(ValueError, match="Bias correction requires both"):
            var_updates.adam_updater(t, t, time_step=t, beta1=0.9)
        with pytest.raises(ValueError, match="Weight decay requires weight"):
            var_updates.lamb_updater(t, t, weight_decay=0.1)
        with pytest.raises(ValueError, match="AdaMax requires time_step"):
            var_updates.adamax_updater(t, t)
