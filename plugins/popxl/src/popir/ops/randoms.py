"""Random operators. Each is a pure function of a seed: it hashes the numbers of the
elements.

Element number n of a tensor is a hash of n and the seed, so that the same seed gives
the same numbers in every run, on every device and in the backward pass.
"""

from __future__ import annotations

import math

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import UINT32, Shape
from popir.errors import IrError
from popir.ops.common import rule, rules, same
from popir.records import OpCall, Record, Spec, register

_U32 = np.dtype(np.uint32)
_GOLDEN = 0x9E3779B9


def _xor(b: Builder, left: Value, right: Value) -> Value:
    shape = np.broadcast_shapes(left.shape, right.shape)
    return b.node("BitwiseXor", [left, right], [(_U32, shape)])[0]


def _shifted(b: Builder, value: Value, bits: int) -> Value:
    given = [value, b.constant(bits, _U32)]
    return b.node("BitShift", given, [(_U32, value.shape)], direction="RIGHT")[0]


def _mixed(b: Builder, value: Value) -> Value:
    """Return a hash of 32 bits in which each bit of the input changes half of the
    result.
    """
    for bits, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        value = _xor(b, value, _shifted(b, value, bits)) * factor
    return _xor(b, value, _shifted(b, value, 16))


def _words(b: Builder, seed: Value) -> tuple[Value, Value]:
    high, low = b.split(b.cast(seed, _U32), [1, 1], 0)
    return high, low


def _bits(b: Builder, seed: Value, shape: Shape, stream: int) -> Value:
    """Return random 32-bit words; `stream` separates several draws with one seed."""
    high, low = _words(b, seed)
    count = math.prod(shape)
    start = (stream * _GOLDEN) & 0xFFFFFFFF
    numbers = np.arange(count, dtype=np.uint32) + np.uint32(start)
    first = _mixed(b, _xor(b, b.constant(numbers), low))
    return b.reshape(_mixed(b, _xor(b, first + low * _GOLDEN, high)), shape)


def _uniform(b: Builder, seed: Value, shape: Shape, stream: int = 0) -> Value:
    """Return float32 in [0, 1)."""
    words = _bits(b, seed, shape, stream)
    return b.cast(_shifted(b, words, 8), np.float32) * 2.0**-24


def _normal(b: Builder, seed: Value, shape: Shape) -> Value:
    radius = 1.0 - _uniform(b, seed, shape, 1)  # never 0
    angle = _uniform(b, seed, shape, 2) * (2 * math.pi)
    return b.map("Sqrt", b.map("Log", radius) * -2.0) * b.map("Cos", angle)


def _check_seed(spec: Spec) -> None:
    if spec.shape != (2,) or spec.dtype is not UINT32:
        raise IrError(
            f"a seed must be uint32 of shape [2], found {spec.dtype}{list(spec.shape)}"
        )


def _infer_drawn(call: OpCall) -> list[Spec]:
    _check_seed(call.inputs[0])
    return [Spec(call["dtype"], tuple(call["shape"]))]


def _drawn_uniform(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    low, high = call["low"], call["high"]
    drawn = _uniform(b, values[0], call.outputs[0].shape) * (high - low) + low
    result = b.cast(drawn, call.outputs[0].dtype.carrier)
    if low < high and result.dtype.kind == "f":
        # Rounding must not reach the end, which the interval does not include.
        ends = np.array([high, low]).astype(result.dtype)
        result = b.zip("Min", result, float(np.nextafter(*ends)))
    return [result]


def _drawn_normal(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    drawn = _normal(b, values[0], call.outputs[0].shape) * call["std"] + call["mean"]
    return [b.cast(drawn, call.outputs[0].dtype.carrier)]


register(Record("RandomUniform", _infer_drawn, _drawn_uniform))
register(Record("RandomNormal", _infer_drawn, _drawn_normal))


def _infer_dropout(call: OpCall) -> list[Spec]:
    _check_seed(call.inputs[1])
    if not 0 <= call["ratio"] < 1:
        raise IrError(f"the ratio of dropout must be in [0, 1), found {call['ratio']}")
    return same(call)


def _kept(b: Builder, call: OpCall, x: Value, seed: Value) -> Value:
    ratio = call["ratio"]
    shape = call.attributes.get("shape")
    mask_shape = x.shape if shape is None else tuple(shape)
    keep = b.compare("GreaterOrEqual", _uniform(b, seed, mask_shape), ratio)
    return b.where(keep, x * (1 / (1 - ratio)), 0)


for _type in ("Dropout", "ShapedDropout"):
    register(
        Record(
            _type,
            _infer_dropout,
            lambda b, call, values: [_kept(b, call, values[0], values[1])],
            rules(
                rule(
                    f"{_type}Grad",
                    "g0 i1",
                    0,
                    lambda g: _kept(g.b, g.call, g["g0"], g["i1"]),
                )
            ),
        )
    )


def _infer_seed(call: OpCall) -> list[Spec]:
    _check_seed(call.inputs[0])
    return same(call)


def _modified(b: Builder, _: OpCall, values: list[Value]) -> list[Value]:
    high, low = _words(b, values[0])
    modifier = b.reshape(b.cast(values[1], _U32), (1,))
    mixed = _mixed(b, _xor(b, high * _GOLDEN, low + modifier))
    return [b.concat([high, mixed], 0)]


register(Record("ModifyRandomSeed", _infer_seed, _modified))
