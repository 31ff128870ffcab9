"""Casts to and from float8, and products of float8 matrices."""

from __future__ import annotations

from popxl import dtypes
from popxl.dtypes import dtype
from popxl.ops.utils import emit
from popxl.tensor import Tensor

_FLOAT8 = (dtypes.float8_143, dtypes.float8_152)


def _check_scale(log2_scale: Tensor) -> None:
    if not isinstance(log2_scale, Tensor):
        raise TypeError(f"The input `log2_scale` is not a Tensor: {log2_scale!r}")
    if log2_scale.rank != 0:
        raise ValueError(
            f"log2_scale must be a scalar tensor, found shape {log2_scale.shape}"
        )
    if log2_scale.dtype is not dtypes.int32:
        raise TypeError(
            f"log2_scale must be of type popxl.int32, found {log2_scale.dtype}"
        )


def pow2scale_cast_to_fp8(t: Tensor, log2_scale: Tensor, data_type: dtype) -> Tensor:
    """Return `t` times 2^log2_scale, as float8; values that are too large or not finite
    give NaN.
    """
    if data_type not in _FLOAT8:
        raise TypeError(f"data_type must be a float8 type, found {data_type}")
    _check_scale(log2_scale)
    return _cast("Pow2ScaleThenCast", t, log2_scale, data_type)


def pow2scale_cast_from_fp8(t: Tensor, log2_scale: Tensor, data_type: dtype) -> Tensor:
    """Return float8 as `data_type`, times 2^log2_scale after the cast."""
    if data_type not in (dtypes.float16, dtypes.float32):
        raise TypeError(f"data_type must be float16 or float32, found {data_type}")
    _check_scale(log2_scale)
    return _cast("CastThenPow2Scale", t, log2_scale, data_type)


pow2scale_then_cast = pow2scale_cast_to_fp8
cast_then_pow2scale = pow2scale_cast_from_fp8


def _cast(type_: str, t: Tensor, log2_scale: Tensor, data_type: dtype) -> Tensor:
    name = f"{t.name}_{data_type.name}" if isinstance(t, Tensor) else None
    attributes = {"to": data_type._below}
    return emit(type_, {"t": t, "log2_scale": log2_scale}, [name], attributes)[0]


def check_float8(first: Tensor, second: Tensor, log2_scale: Tensor) -> None:
    """Raise TypeError if the operands of a product are not float8; check the scale."""
    for each in (first, second):
        if isinstance(each, Tensor) and each.dtype not in _FLOAT8:
            raise TypeError(f"{each.id} must be of a float8 type, not {each.dtype}")
    _check_scale(log2_scale)


def matmul_pow2scaled(
    lhs: Tensor,
    rhs: Tensor,
    log2_scale: Tensor,
    available_memory_proportion: float | None = None,
) -> Tensor:
    """Return the product of two float8 matrices times 2^log2_scale, as float16."""
    check_float8(lhs, rhs, log2_scale)
    inputs = {"lhs": lhs, "rhs": rhs, "log2_scale": log2_scale}
    attributes = {"output_type": None}
    return emit("MatMulPow2Scaled", inputs, ["matmul_pow2scaled_out"], attributes)[0]
