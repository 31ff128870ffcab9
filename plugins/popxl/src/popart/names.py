"""The original's names of operators: types, classes and their namespaces."""

from __future__ import annotations

#: Our name: the original's class without `Op`, and its type, if they differ.
_CLASSES = {
    "BatchNorm": ("BatchNorm", "BatchNormalization"),
    "GroupNorm": ("GroupNorm", "GroupNormalization"),
    "GroupNormalizationGrad": ("GroupNormGrad", "GroupNormalizationGrad"),
    "Neg": ("Negate", "Neg"),
    "NegGrad": ("NegateGrad", "NegGrad"),
    "Onehot": ("Onehot", "OneHot"),
    "SparseAccumulate": ("SparseAccumulate", "PopartSparseAccumulate"),
    "Sub": ("Subtract", "Sub"),
    "SubArg0Grad": ("SubtractArg0Grad", "SubArg0Grad"),
    "SubArg1Grad": ("SubtractArg1Grad", "SubArg1Grad"),
    "TiedGather": ("TiedGather", "PopartTiedGather"),
    "GroupedGather": ("Gather", "Gather"),
    "MatMulPow2Scaled": ("MatMul", "MatMul"),
    "ConvPow2Scaled": ("Conv", "Conv"),
    "ConvTransposePow2Scaled": ("ConvTranspose", "ConvTranspose"),
    # A reduce-scatter without reduction returns one block of an axis.
    "ReplicatedSlice": ("ReplicatedReduceScatter", "ReplicatedReduceScatter"),
}
_NO_SUFFIX = ("IsInf", "IsNaN")
#: The namespaces of classes, by the beginnings of our types.
_NAMESPACES = {
    "AllReduce": "collectives",
    "Replica": "collectives",
    "Dynamic": "dynamic",
    "Host": "exchange",
    "MultiExchange": "exchange",
    "Remote": "exchange",
}


def type_of(ours: str) -> str:
    """Return the operator's type."""
    return _CLASSES.get(ours, (ours, ours))[1]


def class_of(ours: str) -> str:
    """Return the name of the operator's class."""
    name = _CLASSES.get(ours, (ours, ours))[0]
    return name if name in _NO_SUFFIX else f"{name}Op"


def namespace_of(ours: str) -> str:
    """Return the namespace of the operator's class; empty for most."""
    for start, namespace in _NAMESPACES.items():
        if ours.startswith(start):
            return namespace
    return ""
