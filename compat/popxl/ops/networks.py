"""Matrix products, normalisation, convolution, losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np

import popir
from popxl import dtypes
from popxl.dtypes import dtype
from popxl.ops.utils import emit
from popxl.tensor import Tensor, constant

PadType = Literal["not_set", "same_upper", "same_lower", "valid"]


def matmul(
    lhs: Tensor,
    rhs: Tensor,
    available_memory_proportion: float | None = None,
    output_type: dtype | None = None,
    partials_type: dtype | None = None,
) -> Tensor:
    """numpy's matmul."""
    attributes: dict[str, Any] = {
        "output_type": output_type and output_type._pb_dtype,
        "partials_type": _partials(lhs, partials_type),
    }
    return emit("MatMul", {"lhs": lhs, "rhs": rhs}, ["matmul_out"], attributes)[0]


def _partials(lhs: Tensor, partials_type: dtype | None) -> str:
    if partials_type not in (None, dtypes.float16, dtypes.float32):
        raise ValueError(
            f"partials_type must be float16 or float32, found {partials_type}"
        )
    if partials_type is not None:
        return "HALF" if partials_type is dtypes.float16 else "FLOAT"
    if not isinstance(lhs, Tensor):
        return "FLOAT"
    text = str(lhs.ir._below.options.partialsTypeMatMuls)
    if text.lower() not in ("", "float", "half"):
        raise ValueError(f"partialsTypeMatMuls must be float or half: {text!r}")
    return text.upper() or "FLOAT"


def softmax(t: Tensor, axis: int) -> Tensor:
    """Softmax over all axes from `axis` on together."""
    return emit("Softmax", {"t": t}, ["softmax_out"], {"axis": axis})[0]


def group_norm(
    t: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float = 1e-5
) -> Tensor:
    """Group normalisation over contiguous groups of channels."""
    inputs = {"t": t, "weight": weight, "bias": bias}
    names = ["group_norm_out", "group_norm_mean", "group_norm_inv_std_dev"]
    return emit("GroupNorm", inputs, names, {"groups": num_groups, "eps": eps})[0]


def layer_norm(t: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Group normalisation with one group."""
    return group_norm(t, weight, bias, 1, eps)


def batch_norm_inference(
    t: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> Tensor:
    """Batch normalisation by given mean and variance."""
    inputs = {"t": t, "scale": scale, "bias": bias, "mean": mean, "var": var}
    return emit("BatchNorm", inputs, ["batch_norm_out"], {"eps": epsilon})[0]


def _pad_type(pad_type: str) -> str:
    if pad_type not in get_args(PadType):
        raise ValueError(f"Unknown pad_type {pad_type!r}: one of {get_args(PadType)}")
    return pad_type


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
    """Convolution; padding as ONNX orders it: all begins, then all ends."""
    attributes = conv_attributes(stride, padding, dilation, groups, pad_type)
    attributes["hints"] = conv_hints(
        available_memory_proportions, partials_types, enable_conv_dithering
    )
    return emit("Conv", {"t": t, "weight": weight}, ["conv_out"], attributes)[0]


def conv_attributes(
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    pad_type: str,
) -> dict[str, Any]:
    """What all convolutions are told; ValueError for an unknown `pad_type`."""
    return {
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": groups,
        "auto_pad": _pad_type(pad_type),
    }


def conv_hints(
    proportions: Sequence[float] | None,
    partials: Sequence[Any] | None,
    dithering: Iterable[bool] | None,
) -> dict[str, Any]:
    """Hints, which are kept and change nothing; ValueError for unknown partials."""
    for each in partials or ():
        if each not in (dtypes.float16, dtypes.float32, "half", "float"):
            raise ValueError(f"partials_types must be float16 or float32: {each!r}")
    return {
        "proportions": list(proportions or []),
        "partials": list(partials or []),
        "dithering": list(dithering or []),
    }


def transposed_attributes(
    t: Tensor,
    weight: Tensor,
    output_padding: Sequence[int],
    output_shape: Sequence[int],
    pad_type: str,
) -> dict[str, Any]:
    """What transposed convolutions are told beside; ValueError where it cannot be."""
    spatial = t.rank - 2 if isinstance(t, Tensor) else 0
    given = tuple(int(n) for n in output_shape)
    if given and pad_type == "valid":
        raise ValueError("output_shape cannot be given with pad_type 'valid'")
    if given and len(given) not in (spatial, spatial + 2):
        raise ValueError(
            f"output_shape must have {spatial} or {spatial + 2} dimensions: {given}"
        )
    return {"output_padding": tuple(output_padding), "output_shape": given}


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
    """The transpose of a convolution; output_shape: paddings follow from it."""
    attributes = conv_attributes(stride, padding, dilation, groups, pad_type)
    attributes |= transposed_attributes(
        t, weight, output_padding, output_shape, pad_type
    )
    attributes["hints"] = conv_hints(
        available_memory_proportions, partials_types, enable_conv_dithering
    )
    inputs = {"t": t, "weight": weight}
    return emit("ConvTranspose", inputs, ["convtranspose_out"], attributes)[0]


def _pool(
    type_: str,
    t: Tensor,
    kernel_size: Sequence[int],
    windows: Sequence[Sequence[int] | None],
    auto_pad: str,
    ceil_mode: bool,
    unset: tuple[Sequence[int] | None, Sequence[int] | None],
) -> Tensor:
    out_pads, in_dilations = unset
    if any(out_pads or ()) or any(each != 1 for each in in_dilations or ()):
        raise popir.NotYet(
            f"a pool takes neither out_pads {out_pads} nor in_dilations {in_dilations}"
        )
    stride, padding, dilation = windows
    attributes = {
        "kernel": tuple(kernel_size),
        "stride": tuple(stride or ()),
        "padding": tuple(padding or ()),
        "dilation": tuple(dilation or ()),
        "auto_pad": _pad_type(auto_pad),
        "ceil_mode": bool(ceil_mode),
    }
    return emit(type_, {"t": t}, [f"{type_.lower()}_out"], attributes)[0]


def average_pool(
    t: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    out_pads: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    in_dilations: Sequence[int] | None = None,
    auto_pad: PadType = "not_set",
    ceil_mode: bool = False,
) -> Tensor:
    """Means of windows, padding not counted; the stride is 1 unless given."""
    rest = (out_pads, in_dilations)
    windows = (stride, padding, dilation)
    return _pool("AveragePool", t, kernel_size, windows, auto_pad, ceil_mode, rest)


def max_pool(
    t: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    out_pads: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    in_dilations: Sequence[int] | None = None,
    auto_pad: PadType = "not_set",
    ceil_mode: bool = False,
    storage_order: Literal["row", "column"] = "row",
) -> Tensor:
    """The largest of windows; the stride is 1 unless given."""
    rest = (out_pads, in_dilations)
    windows = (stride, padding, dilation)
    return _pool("MaxPool", t, kernel_size, windows, auto_pad, ceil_mode, rest)


def _reduction(reduction: str) -> str:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"Unknown reduction {reduction!r}: mean, sum or none")
    return reduction


def nll_loss(
    probs: Tensor,
    labels: Tensor,
    ignore_index: int | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
    log_prob: bool = False,
) -> Tensor:
    """The negative log-likelihood of `labels`."""
    attributes = {
        "ignore_index": ignore_index,
        "reduction": _reduction(reduction),
        "log_prob": log_prob,
    }
    inputs = {"probs": probs, "labels": labels}
    return emit("Nll", inputs, ["loss"], attributes)[0]


def nll_loss_with_softmax_grad(
    probs: Tensor,
    labels: Tensor,
    loss_grad: float | Tensor = 1,
    ignore_index: int | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> tuple[Tensor, Tensor]:
    """The loss of softmax's results, and the gradient of softmax's input."""
    attributes = {
        "ignore_index": ignore_index,
        "reduction": _reduction(reduction),
        "log_prob": False,
    }
    given = (
        loss_grad
        if isinstance(loss_grad, Tensor)
        else constant(np.float32(loss_grad), dtypes.float32)
    )
    inputs = {"probs": probs, "labels": labels, "loss_grad": given}
    loss, dx = emit("NlllWithSoftmaxGradDirect", inputs, ["loss", "dx"], attributes)
    return loss, dx
