"""Updates of variables: accumulators and optimiser steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from popart.attributes import OptimizerValue
from popxl import dtypes
from popxl.ops.utils import check_inputs, emit, emit_op, scalar
from popxl.tensor import Tensor, constant

_Scalar = float | Tensor


def handle_optimizer_value(value: _Scalar | None) -> OptimizerValue:
    """Return a factor in the operators' form: fixed, or in a tensor."""
    if value is None or isinstance(value, Tensor):
        return OptimizerValue(0.0, is_const=False)
    return OptimizerValue(value)


def _accumulate(t: Tensor, X: Tensor, mode: str, f: Any, word: str) -> Tensor:
    inputs = [t, X]
    attributes = {"mode": mode, "factor": scalar(f, inputs)}
    named = dict(zip(("t", "X", "f"), inputs, strict=False))
    name = f"{word}__{t.name}" if isinstance(t, Tensor) else None
    return emit("Accumulate", named, [name], attributes)[0]


def accumulate_(t: Tensor, X: Tensor, f: _Scalar | None = None) -> Tensor:
    """t += X, or f * X."""
    if isinstance(f, int | float) and f == 0:
        import popart

        raise popart.popart_internal_exception("accumulate_ by a constant factor of 0")
    return _accumulate(t, X, "add" if f is None else "scaled", f, "accumulate")


def accumulate_square_(t: Tensor, X: Tensor, f: _Scalar = 1.0) -> Tensor:
    """t += f * X * X."""
    return _accumulate(t, X, "square", f, "accumulate_square")


def accumulate_mean_(t: Tensor, X: Tensor, step: _Scalar) -> Tensor:
    """t = step / (step + 1) * t + X / (step + 1)."""
    if not isinstance(step, Tensor):
        step = constant(np.float32(step), dtypes.float32)
    return _accumulate(t, X, "mean", step, "accumulate_mean")


def accumulate_moving_average_(t: Tensor, X: Tensor, f: _Scalar) -> Tensor:
    """t = f * t + (1 - f) * X."""
    return _accumulate(t, X, "moving", f, "accumulate_moving_avg")


def accumulate_moving_average_square_(t: Tensor, X: Tensor, f: _Scalar) -> Tensor:
    """t = f * t + (1 - f) * X * X."""
    return _accumulate(t, X, "moving_square", f, "accumulate_moving_avg_square")


def sparse_accumulate_(
    t: Tensor,
    X: Tensor,
    indices: Tensor,
    axis: int = 0,
    f: _Scalar | None = None,
    W: Tensor | None = None,
) -> Tensor:
    """t[indices] += f * X along `axis`; `W` is a hint only."""
    check_inputs(t=t)
    inputs = [t, X, indices]
    factor = scalar(1.0 if f is None else f, inputs)
    named = dict(zip(("t", "X", "indices", "f"), inputs, strict=False))
    attributes = {"axis": axis, "factor": factor}
    name = f"sparse_accumulate__{t.name}"
    return emit("SparseAccumulate", named, [name], attributes)[0]


def accumulator_scale_(t: Tensor, f: _Scalar) -> Tensor:
    """t *= f."""
    inputs = [t]
    attributes = {"factor": scalar(f, inputs)}
    named = dict(zip(("t", "f"), inputs, strict=False))
    name = f"accumulator_scale__{t.name}" if isinstance(t, Tensor) else None
    return emit("AccumulatorScale", named, [name], attributes)[0]


def accumulator_zero_(t: Tensor) -> Tensor:
    """t = 0."""
    return accumulator_scale_(t, 0.0)


def copy_var_update_(t: Tensor, X: Tensor) -> Tensor:
    """t = X."""
    name = f"updated__{t.name}" if isinstance(t, Tensor) else None
    return emit("CopyVarUpdate", {"t": t, "X": X}, [name])[0]


def _updater(
    mode: str,
    first: Tensor,
    second: Tensor,
    weight: Tensor | None,
    time_step: Tensor | None,
    weight_decay: _Scalar | None,
    beta1: _Scalar | None,
    beta2: _Scalar | None,
    epsilon: float,
) -> Tensor:
    inputs = {"acc_first_order": first, "acc_second_order": second}
    attributes: dict[str, Any] = {"mode": mode, "epsilon": float(epsilon)}
    for name, tensor in (("weight", weight), ("time_step", time_step)):
        attributes[name] = None
        if tensor is not None:
            attributes[name] = len(inputs)
            inputs[name] = tensor
    scalars = (("weight_decay", weight_decay), ("beta1", beta1), ("beta2", beta2))
    for name, value in scalars:
        if isinstance(value, Tensor):
            attributes[name] = f"#{len(inputs)}"
            inputs[name] = value
        else:
            attributes[name] = None if value is None else float(value)
    if attributes["time_step"] is not None:
        attributes["changes"] = (attributes["time_step"],)
    operator = emit_op("AdamUpdater", inputs, ["Updater"], attributes)
    return Tensor._of(operator.outputs[0])


def _decay(weight: Tensor | None, decay: _Scalar | None) -> _Scalar | None:
    if not isinstance(decay, Tensor) and not decay:
        return None
    if weight is None:
        raise ValueError("Weight decay requires weight to not be None.")
    return decay


def _adam(
    mode: str,
    first: Tensor,
    second: Tensor,
    weight: Tensor | None,
    time_step: Tensor | None,
    weight_decay: _Scalar | None,
    beta1: _Scalar | None,
    beta2: _Scalar | None,
    epsilon: float,
) -> Tensor:
    decay = _decay(weight, weight_decay)
    if time_step is not None and (beta1 is None or beta2 is None):
        raise ValueError(
            "Bias correction requires both beta1 and beta2 to not be None."
        )
    betas = (None, None) if time_step is None else (beta1, beta2)
    return _updater(mode, first, second, weight, time_step, decay, *betas, epsilon)


def adam_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Tensor | None = None,
    time_step: Tensor | None = None,
    weight_decay: _Scalar | None = None,
    beta1: _Scalar | None = None,
    beta2: _Scalar | None = None,
    epsilon: float = 1e-07,
) -> Tensor:
    """Return Adam's direction; `time_step` is incremented in place first."""
    given = (acc_first_order, acc_second_order, weight, time_step, weight_decay)
    return _adam("adam", *given, beta1, beta2, epsilon)


def lamb_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Tensor | None = None,
    time_step: Tensor | None = None,
    weight_decay: _Scalar | None = None,
    beta1: _Scalar | None = None,
    beta2: _Scalar | None = None,
    epsilon: float = 1e-07,
) -> Tensor:
    """Return Lamb's direction, which is the same as Adam's."""
    given = (acc_first_order, acc_second_order, weight, time_step, weight_decay)
    return _adam("lamb", *given, beta1, beta2, epsilon)


def adamax_updater(
    acc_first_order: Tensor,
    acc_second_order: Tensor,
    weight: Tensor | None = None,
    time_step: Tensor | None = None,
    weight_decay: _Scalar | None = None,
    beta1: _Scalar = 0.9,
    epsilon: float = 1e-07,
) -> Tensor:
    """Return AdaMax's direction; `time_step` is incremented in place first."""
    if time_step is None:
        raise ValueError("AdaMax requires time_step to not be None.")
    decay = _decay(weight, weight_decay)
    given = (acc_first_order, acc_second_order, weight, time_step, decay)
    return _updater("adamax", *given, beta1, None, epsilon)


def adam_var_update(
    t: Tensor,
    x: Tensor,
    r1: Tensor,
    r2: Tensor,
    learning_rate: _Scalar | None = None,
    max_weight_norm: _Scalar | None = None,
) -> Tensor:
    """t -= learning_rate * ratio * x, in place; r1 and r2 are squared norms."""
    inputs = [t, x, r1, r2]
    attributes = {
        "learning_rate": scalar(learning_rate, inputs),
        "max_weight_norm": scalar(max_weight_norm, inputs),
    }
    names = ["adam_var_update_out"]
    return emit("AdamVarUpdate", inputs, names, attributes)[0]
