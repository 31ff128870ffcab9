"""float8 on a device: a code is a byte, decoded by a table and encoded by a search.

No kernel of ONNX Runtime computes with these types. The results are, bit for bit, those
of `popir.float8`, which casts on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import FLOAT16, FLOAT32, INT32, Array, DType
from popir.errors import IrError
from popir.float8 import NAN_CODE, decoding_table
from popir.ops.arithmetic import infer_matmul
from popir.ops.networks import conv, conv_transpose, infer_conv, infer_conv_transpose
from popir.records import OpCall, Record, Spec, register

_NO_GRADIENT = "operators on float8 have no gradient"


@cache
def _thresholds(dtype: DType) -> Array:
    """Return the magnitude from which each of the codes 0 to 127 is the nearest, or
    beyond it; in the last entry values become too large. Ties go to the even code.
    """
    positive = decoding_table(dtype)[:NAN_CODE].astype(np.float64)
    middle = ((positive[1:] + positive[:-1]) / 2).astype(np.float32)
    odd = np.arange(1, NAN_CODE) % 2 == 1
    above = np.nextafter(middle, np.float32(np.inf))
    found: Array = np.concatenate([[np.float32(0)], np.where(odd, above, middle)])
    return found


def _too_large(dtype: DType) -> float:
    positive = decoding_table(dtype)[:NAN_CODE].astype(np.float64)
    return float(positive[-1] + (positive[-1] - positive[-2]) / 2)


def _power(b: Builder, scale: Value) -> Value:
    return b.zip("Pow", b.constant(np.float32(2)), b.cast(scale, np.float32))


def encoded(b: Builder, value: Value, scale: Value, dtype: DType) -> Value:
    """Return the codes of `value` times 2^`scale`; values that are too large or not
    finite give NaN.
    """
    scaled = b.cast(value, np.float32) * _power(b, b.reshape(scale, ()))
    magnitude = b.map("Abs", scaled)
    table = b.constant(_thresholds(dtype))
    code = b.full(value.shape, np.int32)
    bit = NAN_CODE // 2
    while bit:
        more = code + b.constant(bit, np.int32)
        reached = b.compare("GreaterOrEqual", magnitude, b.gather(table, more, 0))
        code = b.where(reached, more, code)
        bit //= 2
    is_negative = b.compare("Less", scaled, 0.0)
    is_some = b.compare("Greater", code, 0)
    signed = b.node("And", [is_negative, is_some], [(np.dtype(bool), value.shape)])[0]
    code = b.where(signed, code + b.constant(NAN_CODE, np.int32), code)
    fits = b.compare("Less", magnitude, _too_large(dtype))  # NaN does not
    return b.cast(b.where(fits, code, NAN_CODE), np.uint8)


def decoded(b: Builder, value: Value, dtype: DType) -> Value:
    """Return the float32 values of codes."""
    return b.gather(b.constant(decoding_table(dtype)), b.cast(value, np.int32), 0)


def _check_scale(scale: Spec) -> None:
    if scale.shape or scale.dtype is not INT32:
        raise IrError(
            "log2_scale must be an int32 scalar, found "
            f"{scale.dtype}{list(scale.shape)}"
        )


def _infer_to(call: OpCall) -> list[Spec]:
    x, scale = call.inputs
    _check_scale(scale)
    if x.dtype not in (FLOAT16, FLOAT32) or not call["to"].is_float8:
        raise IrError(f"{x.dtype} cannot be cast to {call['to']} with a scale")
    return [replace(x, dtype=call["to"])]


def _infer_from(call: OpCall) -> list[Spec]:
    x, scale = call.inputs
    _check_scale(scale)
    if not x.dtype.is_float8 or call["to"] not in (FLOAT16, FLOAT32):
        raise IrError(f"{x.dtype} cannot be cast to {call['to']} with a scale")
    return [replace(x, dtype=call["to"])]


def _from(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    exact = decoded(b, values[0], call.inputs[0].dtype)
    scaled = exact * _power(b, b.reshape(values[1], ()))
    return [b.cast(scaled, call.outputs[0].dtype.carrier)]


register(
    Record(
        "Pow2ScaleThenCast",
        _infer_to,
        lambda b, call, values: [encoded(b, values[0], values[1], call["to"])],
        refuses=_NO_GRADIENT,
    )
)
register(Record("CastThenPow2Scale", _infer_from, _from, refuses=_NO_GRADIENT))


def _scaled(
    type_: str,
    infer: Callable[[OpCall], list[Spec]],
    lower: Callable[[Builder, OpCall, list[Value]], list[Value]],
) -> None:
    """Return a product of two float8 tensors times 2^log2_scale, as float16."""

    def infer_it(call: OpCall) -> list[Spec]:
        left, right, scale = call.inputs
        _check_scale(scale)
        if not (left.dtype.is_float8 and right.dtype.is_float8):
            raise IrError(f"two float8 tensors are needed: {left.dtype}, {right.dtype}")
        wide = [replace(each, dtype=FLOAT32) for each in (left, right)]
        (spec,) = infer(OpCall(wide, [], call.attributes))
        return [replace(spec, dtype=FLOAT16)]

    def lower_it(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
        wide = [replace(each, dtype=FLOAT32) for each in call.inputs[:2]]
        out = [replace(call.outputs[0], dtype=FLOAT32)]
        exact = [
            decoded(b, value, spec.dtype)
            for value, spec in zip(values[:2], call.inputs[:2], strict=True)
        ]
        (product,) = lower(b, OpCall(wide, out, call.attributes), exact)
        scaled = product * _power(b, b.reshape(values[2], ()))
        return [b.cast(scaled, np.float16)]

    register(Record(type_, infer_it, lower_it, refuses=_NO_GRADIENT))


_scaled("MatMulPow2Scaled", infer_matmul, lambda b, _, values: [b.matmul(*values)])
_scaled("ConvPow2Scaled", infer_conv, conv)
_scaled("ConvTransposePow2Scaled", infer_conv_transpose, conv_transpose)
#: Operators whose last input is a scale that options may bound.
SCALED = frozenset(
    {"Pow2ScaleThenCast", "CastThenPow2Scale", "MatMulPow2Scaled", "ConvPow2Scaled"}
    | {"ConvTransposePow2Scaled"}
)
