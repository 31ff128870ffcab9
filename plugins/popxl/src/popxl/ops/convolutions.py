"""Convolutions and their transposes, of float8 too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from popart.attributes import ConvOptions
from popxl import dtypes
from popxl.dtypes import dtype
from popxl.ops.float8 import check_float8
from popxl.ops.utils import emit
from popxl.tensor import Tensor

PadType = Literal["not_set", "same_upper", "same_lower", "valid"]


def pad_type_of(pad_type: str) -> str:
    """Return `pad_type` if it is valid; else raise ValueError."""
    if pad_type not in get_args(PadType):
        raise ValueError(f"Unknown pad_type {pad_type!r}: one of {get_args(PadType)}")
    return pad_type


def multi_conv_options(
    available_memory_proportions: Sequence[float] | None = None,
    partials_types: Sequence[dtype] | None = None,
    enable_conv_dithering: Iterable[bool] | None = None,
) -> ConvOptions:
    """Return hints of a convolution, which are kept but change nothing."""
    hints = {
        "proportions": available_memory_proportions,
        "partials": partials_types,
        "dithering": list(enable_conv_dithering or []),
    }
    return ConvOptions({"hints": hints})


def _convolution(
    type_: str,
    inputs: Mapping[str, Tensor],
    windows: tuple[Sequence[int], Sequence[int], Sequence[int], int, str],
    hints: tuple[Sequence[float] | None, Iterable[bool] | None, Sequence[dtype] | None],
    output: Mapping[str, Any] | None = None,
) -> Tensor:
    """Add one convolution, whose weight moves over the tensor by the stride, padding,
    dilation, groups and pad type of `windows`; ValueError for an unknown pad type.

    `hints` (memory proportions, dithering, partials) are kept but change nothing.
    """
    stride, padding, dilation, groups, pad_type = windows
    proportions, dithering, partials = hints
    for each in partials or ():
        if each not in (dtypes.float16, dtypes.float32, "half", "float"):
            raise ValueError(f"partials_types must be float16 or float32: {each!r}")
    attributes = {
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": groups,
        "auto_pad": pad_type_of(pad_type),
        **(output or {}),
        "hints": {
            "proportions": list(proportions or []),
            "partials": list(partials or []),
            "dithering": list(dithering or []),
        },
    }
    name = "convtranspose_out" if "Transpose" in type_ else "conv_out"
    return emit(type_, inputs, [name], attributes)[0]


def _output(
    t: Tensor, padding: Sequence[int], shape: Sequence[int], pad_type: str
) -> dict[str, Any]:
    """Return the attributes for the size of a transpose's result. Raises ValueError if
    it is impossible.
    """
    spatial = t.rank - 2 if isinstance(t, Tensor) else 0
    given = tuple(int(n) for n in shape)
    if given and pad_type == "valid":
        raise ValueError("output_shape cannot be given with pad_type 'valid'")
    if given and len(given) not in (spatial, spatial + 2):
        raise ValueError(
            f"output_shape must have {spatial} or {spatial + 2} dimensions: {given}"
        )
    return {"output_padding": tuple(padding), "output_shape": given}


def conv(
    t: Tensor,
    weight: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    available_memory_proportions: Sequence[float] | None = None,
    partials_types: Sequence[dtype] | None = None,
    enable_conv_dithering: Iterable[bool] | None = None,
) -> Tensor:
    """Return a convolution.

    The order of paddings is ONNX's: all begins, then all ends.
    """
    return _convolution(
        "Conv",
        {"t": t, "weight": weight},
        (stride, padding, dilation, groups, pad_type),
        (available_memory_proportions, enable_conv_dithering, partials_types),
    )


def conv_transpose(
    t: Tensor,
    weight: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    available_memory_proportions: Sequence[float] | None = None,
    partials_types: Sequence[dtype] | None = None,
    enable_conv_dithering: Iterable[bool] | None = None,
) -> Tensor:
    """Add the transpose of a convolution; the paddings follow from output_shape."""
    return _convolution(
        "ConvTranspose",
        {"t": t, "weight": weight},
        (stride, padding, dilation, groups, pad_type),
        (available_memory_proportions, enable_conv_dithering, partials_types),
        _output(t, output_padding, output_shape, pad_type),
    )


def conv_pow2scaled(
    t: Tensor,
    weight: Tensor,
    log2_scale: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    available_memory_proportions: Sequence[float] | None = None,
    enable_conv_dithering: Iterable[bool] | None = None,
) -> Tensor:
    """Return a convolution of float8 tensors times 2^log2_scale, as float16."""
    check_float8(t, weight, log2_scale)
    return _convolution(
        "ConvPow2Scaled",
        {"t": t, "weight": weight, "log2_scale": log2_scale},
        (stride, padding, dilation, groups, pad_type),
        (available_memory_proportions, enable_conv_dithering, None),
    )


def conv_transpose_pow2scaled(
    t: Tensor,
    weight: Tensor,
    log2_scale: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    pad_type: PadType = "not_set",
    output_padding: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    available_memory_proportions: Sequence[float] | None = None,
    enable_conv_dithering: Iterable[bool] | None = None,
) -> Tensor:
    """Return a transposed convolution of float8 tensors times 2^log2_scale,
    as float16.
    """
    check_float8(t, weight, log2_scale)
    return _convolution(
        "ConvTransposePow2Scaled",
        {"t": t, "weight": weight, "log2_scale": log2_scale},
        (stride, padding, dilation, groups, pad_type),
        (available_memory_proportions, enable_conv_dithering, None),
        _output(t, output_padding, output_shape, pad_type),
    )
