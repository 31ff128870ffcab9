"""Elementwise operators of one input."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import BOOL, FLOAT16, FLOAT32, DType
from popir.errors import IrError
from popir.ops.common import rule, rules, same
from popir.records import Grad, OpCall, Record, Spec, no_gradient, register

_SQRT_2_PI = math.sqrt(2 / math.pi)


def _unary(
    type_: str,
    lower: Callable[[Builder, Value], Value],
    grad: Callable[[Grad], Value] | None = None,
    needs: str = "g0 i0",
    in_place: bool = False,
    dtype: DType | None = None,
) -> None:
    grads = rules(rule(f"{type_}Grad", needs, 0, grad)) if grad else no_gradient

    def infer(call: OpCall) -> list[Spec]:
        (spec,) = call.inputs
        return [replace(spec, dtype=dtype or spec.dtype)]

    register(
        Record(type_, infer, lambda b, _, values: [lower(b, values[0])], grads=grads)
    )
    if in_place:
        register(
            Record(
                f"{type_}Inplace",
                infer,
                lambda b, _, values: [lower(b, values[0])],
                writes=True,
            )
        )


def _onnx(operator: str) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.map(operator, x)


def _zero(g: Grad) -> Value:
    return g["g0"] * 0.0


def _gelu(b: Builder, x: Value) -> Value:
    inner = (x + x * x * x * 0.044715) * _SQRT_2_PI
    return x * 0.5 * (b.map("Tanh", inner) + 1.0)


def _gelu_grad(g: Grad) -> Value:
    b, x = g.b, g["i0"]
    tanh = b.map("Tanh", (x + x * x * x * 0.044715) * _SQRT_2_PI)
    slope = (x * x * (3 * 0.044715) + 1.0) * _SQRT_2_PI
    return g["g0"] * ((tanh + 1.0) * 0.5 + x * 0.5 * (1.0 - tanh * tanh) * slope)


def _erf_gelu(b: Builder, x: Value) -> Value:
    return x * 0.5 * (b.map("Erf", x * math.sqrt(0.5)) + 1.0)


def _erf_gelu_grad(g: Grad) -> Value:
    b, x = g.b, g["i0"]
    phi = (b.map("Erf", x * math.sqrt(0.5)) + 1.0) * 0.5
    density = b.map("Exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return g["g0"] * (phi + x * density)


def _swish_grad(g: Grad) -> Value:
    x, s = g["i0"], g.b.map("Sigmoid", g["i0"])
    return g["g0"] * (s + x * s * (1.0 - s))


def _relu_grad(g: Grad) -> Value:
    return g.b.where(g.b.compare("Greater", g["o0"], 0), g["g0"], 0)


_unary("Abs", _onnx("Abs"), lambda g: g["g0"] * g.b.map("Sign", g["i0"]))
_unary("Ceil", _onnx("Ceil"), _zero)
_unary("Floor", _onnx("Floor"), _zero)
_unary("Sign", _onnx("Sign"), _zero)
_unary("Cos", _onnx("Cos"), lambda g: -(g["g0"] * g.b.map("Sin", g["i0"])))
_unary("Sin", _onnx("Sin"), lambda g: g["g0"] * g.b.map("Cos", g["i0"]))
_unary("Tanh", _onnx("Tanh"), lambda g: g["g0"] * (1.0 - g["o0"] * g["o0"]), "g0 o0")
_unary("Exp", _onnx("Exp"), lambda g: g["g0"] * g["o0"], "g0 o0", in_place=True)
_unary("Log", _onnx("Log"), lambda g: g["g0"] / g["i0"])
_unary("Neg", _onnx("Neg"), lambda g: -g["g0"])
_unary("Relu", _onnx("Relu"), _relu_grad, "g0 o0", in_place=True)
_unary("Sqrt", _onnx("Sqrt"), lambda g: g["g0"] / (g["o0"] * 2.0), "g0 o0")
_unary("Gelu", _gelu, _gelu_grad, in_place=True)
_unary("GeluErf", _erf_gelu, _erf_gelu_grad, in_place=True)
_unary("Swish", lambda b, x: x * b.map("Sigmoid", x), _swish_grad, in_place=True)
_unary("Identity", lambda _, x: x, lambda g: g["g0"], "g0")
_unary("IpuCopy", lambda _, x: x, lambda g: g["g0"], "g0")
_unary("IoTileCopy", lambda _, x: x, lambda g: g["g0"], "g0")
_unary("Detach", lambda _, x: x)
_unary("Not", lambda b, x: b.map("Not", x), dtype=BOOL)


def _test(operator: str) -> Callable[[Builder, Value], Value]:
    def lower(b: Builder, x: Value) -> Value:
        if x.dtype.kind != "f":  # integers are never special
            return b.full(x.shape, bool, False)
        return b.node(operator, [x], [(BOOL.numpy, x.shape)])[0]

    return lower


_unary("IsNaN", _test("IsNaN"), dtype=BOOL)
_unary("IsInf", _test("IsInf"), dtype=BOOL)


def _range(call: OpCall, x: Value) -> tuple[float, float]:
    """Return the limits of a clip; those of integers are integers that they hold."""
    low, high = call["min"], call["max"]
    if x.dtype.kind not in "iu":
        return low, high
    held = np.iinfo(x.dtype)
    low, high = (min(max(limit, held.min), held.max) for limit in (low, high))
    return math.ceil(low), math.floor(high)


def _limits(b: Builder, call: OpCall, x: Value) -> Value:
    low, high = _range(call, x)
    if low > -math.inf:
        x = b.zip("Max", x, low)
    return b.zip("Min", x, high) if high < math.inf else x


def _clip_grad(g: Grad) -> Value:
    b, y = g.b, g["o0"]
    low, high = _range(g.call, y)
    above = b.compare("Greater", y, low)
    below = b.compare("Less", y, high)
    inside = b.node("And", [above, below], [(BOOL.numpy, y.shape)])[0]
    return b.where(inside, g["g0"], 0)


register(
    Record(
        "Clip",
        same,
        lambda b, call, values: [_limits(b, call, values[0])],
        rules(rule("ClipGrad", "g0 o0", 0, _clip_grad)),
    )
)


def _increment(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    moved = values[0] + call["increment"]
    return [b.zip("Mod", moved, call["modulus"])]


register(Record("IncrementMod", same, _increment))
register(Record("IncrementModInplace", same, _increment, writes=True))


def _infer_cast(call: OpCall) -> list[Spec]:
    (spec,) = call.inputs
    to: DType = call["to"]
    if spec.dtype.is_float8 != to.is_float8:
        raise IrError(f"{spec.dtype} cannot be cast to {to}: it needs a scale")
    return [replace(spec, dtype=to)]


def _cast(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    return [b.cast(values[0], call.outputs[0].dtype.carrier)]


register(
    Record(
        "Cast",
        _infer_cast,
        _cast,
        lambda call: (
            [
                rule(
                    "CastGrad",
                    "g0",
                    0,
                    lambda g: g.b.cast(g["g0"], g.call.inputs[0].dtype.carrier),
                )
            ]
            if call.inputs[0].dtype in (FLOAT16, FLOAT32)
            and call["to"] in (FLOAT16, FLOAT32)
            else None
        ),
    )
)
