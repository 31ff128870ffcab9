"""What the original calls operators: types and classes, by ours."""

from __future__ import annotations

#: Ours, its class without `Op` if that is another, its type if that is another.
_CLASSES = {
    "BatchNorm": ("BatchNorm", "BatchNormalization"),
    "GroupNorm": ("GroupNorm", "GroupNormalization"),
    "Neg": ("Negate", "Neg"),
    "Onehot": ("Onehot", "OneHot"),
    "SparseAccumulate": ("SparseAccumulate", "PopartSparseAccumulate"),
    "Sub": ("Subtract", "Sub"),
    "TiedGather": ("TiedGather", "PopartTiedGather"),
    "GroupedGather": ("Gather", "Gather"),
    "MatMulPow2Scaled": ("MatMul", "MatMul"),
    "ConvPow2Scaled": ("Conv", "Conv"),
    "ConvTransposePow2Scaled": ("ConvTranspose", "ConvTranspose"),
}
_NO_SUFFIX = ("IsInf", "IsNaN")


def type_of(ours: str) -> str:
    """The operator's type."""
    return _CLASSES.get(ours, (ours, ours))[1]


def class_of(ours: str) -> str:
    """The operator's class."""
    name = _CLASSES.get(ours, (ours, ours))[0]
    return name if name in _NO_SUFFIX else f"{name}Op"
