"""Matrix products, normalisation, pools, losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

import popir
from popxl import dtypes
from popxl.dtypes import dtype
from popxl.ops.convolutions import PadType, pad_type_of
from popxl.ops.utils import emit
from popxl.tensor import Tensor, constant


def matmul(
    lhs: Tensor,
    rhs: Tensor,
    available_memory_proportion: float | None = None,
    output_type: dtype | None = None,
    partials_type: dtype | None = None,
) -> Tensor:
    """numpy's matmul."""
    attributes: dict[str, Any] = {
        "output_type": output_type and output_type._below,
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
    """Return softmax over all axes from `axis` on together."""
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
        "auto_pad": pad_type_of(auto_pad),
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
    """Return the means of windows without padding; the stride is 1 unless given."""
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
    """Return the largest of windows; the stride is 1 unless given."""
    rest = (out_pads, in_dilations)
    windows = (stride, padding, dilation)
    return _pool("MaxPool", t, kernel_size, windows, auto_pad, ceil_mode, rest)


REDUCTION_TYPE = Literal["mean", "sum", "none"]


def _reduction(reduction: str) -> str:
    if reduction not in get_args(REDUCTION_TYPE):
        raise ValueError(f"Unknown reduction {reduction!r}: mean, sum or none")
    return reduction


def nll_loss(
    probs: Tensor,
    labels: Tensor,
    ignore_index: int | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
    log_prob: bool = False,
) -> Tensor:
    """Return the negative log-likelihood of `labels`."""
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
    """Return the loss of softmax's results, and the gradient of softmax's input."""
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
