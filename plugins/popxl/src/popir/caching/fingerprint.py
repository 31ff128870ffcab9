"""A hash of what a program computes: of its graphs, not of the values of variables.

Two programs with one hash compile to the same executable. What cannot be described,
such as an operator that is a Python class of the user's, has no hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from popir.dtypes import DType
from popir.grouping import Groups
from popir.ir import Graph, Ir, Operator, Tensor
from popir.placement import Placement
from popir.records import Call, Spec
from popir.remote import RemoteBuffer


class NoFingerprint(Exception):
    """The program holds something that has no description."""


def fingerprint(ir: Ir, around: Mapping[str, object]) -> str:
    """Return the hash of a program, as decimal digits.

    around: what else an executable depends on, such as options and versions.
    Raises NoFingerprint for operators of the user's own.
    """
    digest = hashlib.sha256()

    def write(*values: object) -> None:
        for value in values:
            digest.update(_described(value))

    write("options", dict(around))
    for graph in ir.reachable():
        write("graph", graph.id, graph.inputs, graph.outputs, graph.is_loop_body)
        for tensor in graph.tensors.values():
            if tensor.kind in ("constant", "variable", "input", "stream"):
                write(*_of_tensor(tensor))
        for operator in graph.operators:
            write(*_of_operator(operator))
    streams = ir.streams.values()
    write("streams", [(s.tensor, s.is_input, s.uses > 0) for s in streams])
    return str(int.from_bytes(digest.digest()[:8], "big"))


def _of_tensor(tensor: Tensor) -> tuple[object, ...]:
    about = (tensor.kind, tensor.id, tensor.spec, tensor.by_reference)
    if tensor.kind == "constant":
        return (*about, tensor.data)
    data = tensor.data
    shape = () if data is None else (data.shape, data.dtype.str)
    return (*about, shape, tensor.placement)


def _of_operator(operator: Operator) -> tuple[object, ...]:
    if operator.record.is_users:
        raise NoFingerprint(operator.type)
    settings = operator.settings
    return (
        *("operator", operator.type, operator.inputs),
        [(t.id, t.spec) for t in operator.outputs],
        operator.attributes,
        *(settings.fragment, sorted(operator.modified)),
        [each.id for each in operator.after],
    )


def _described(value: Any) -> bytes:
    """Return bytes that stand for `value` and for no other."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{value!r};".encode()
    if isinstance(value, np.generic | np.ndarray):
        array = np.ascontiguousarray(value)
        head = f"B{array.dtype.descr}{np.shape(value)}".encode()
        return head + hashlib.sha256(array.tobytes()).digest()
    if isinstance(value, set | frozenset):
        return b"<" + b",".join(sorted(map(_described, value))) + b">"
    if isinstance(value, dict):
        pairs = (_described(k) + b":" + _described(v) for k, v in value.items())
        return b"{" + b",".join(sorted(pairs)) + b"}"
    name = _name(value)
    if name is not None:
        return f"{name};".encode()
    parts = b",".join(map(_described, _parts(value)))
    return f"{type(value).__qualname__}[".encode() + parts + b"]"


def _name(value: object) -> str | None:
    """Return what names `value`; None if it consists of parts."""
    match value:
        case Tensor():
            return f"T{value.graph.id!r}{value.id!r}"
        case Graph():
            return f"G{value.id!r}"
        case Groups():
            return f"P{value.assignment}{value.stride}"
        case DType():
            return f"D{value.name}"
        case np.dtype():
            return f"N{value.str}"
        case Enum():
            return f"E{type(value).__name__}.{value.name}"
    return None


def _parts(value: Any) -> Sequence[object]:
    match value:
        case tuple() | list():
            return value
        case Operator():
            return _of_operator(value)
        case RemoteBuffer():
            about = (value.number, value.dtype, value.shape, value.entries)
            return (*about, value.meta_shape)
        case Spec():
            return value.dtype, value.shape, value.meta_shape
        case Call():
            return list(value.inputs), list(value.outputs), dict(value.attributes)
        case Placement():
            whole = value.retrieved is not None
            return value.groups, value.buffer, value.offset, value.shards, whole
        case _ if hasattr(value, "__dict__") and not callable(value):
            return [vars(value)]
    raise NoFingerprint(repr(value))
