"""A hash of a program's computation: of its graphs, not of the values of variables.

Two programs with the same hash compile to the same executable. A program without a
description, such as one with a Python class of the user as operator, has no hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from popir.dtypes import DType
from popir.grouping import Groups
from popir.ir import Ir, IrGraph, IrTensor, Operator
from popir.placement import Placement
from popir.records import OpCall, Spec
from popir.remote import RemoteBuffer


class NoFingerprint(Exception):
    """The program holds an object without a description."""


def fingerprint(ir: Ir, around: Mapping[str, object]) -> str:
    """Return the hash of a program, as decimal digits.

    around: other inputs of an executable, such as options and versions. Raises
    NoFingerprint for operators of the user.
    """
    described: list[object] = [_plain(dict(around))]
    for graph in ir.reachable():
        ends = [[t.id for t in graph.inputs], [t.id for t in graph.outputs]]
        described.append((graph.id, ends, graph.is_loop_body))
        described += [
            _of_tensor(tensor)
            for tensor in graph.tensors.values()
            if tensor.kind in ("constant", "variable", "input", "stream")
        ]
        described += [_of_operator(operator) for operator in graph.operators]
    streams = ir.streams.values()
    described += [(s.tensor.id, s.is_input, s.uses > 0) for s in streams]
    # The representation of plain values is fast to make, and differs if a value
    # differs.
    digest = hashlib.sha256(repr(described).encode())
    return str(int.from_bytes(digest.digest()[:8], "big"))


def _of_spec(spec: Spec) -> tuple[object, ...]:
    return spec.dtype.name, spec.shape, spec.meta_shape


def _of_tensor(tensor: IrTensor) -> tuple[object, ...]:
    about = (tensor.kind, tensor.id, _of_spec(tensor.spec), tensor.by_reference)
    if tensor.kind == "constant":
        return (*about, _plain(tensor.data))
    data = tensor.data
    if data is None:
        return about
    return (*about, data.shape, data.dtype.str, _plain(tensor.placement))


def _of_operator(operator: Operator) -> tuple[object, ...]:
    if operator.record.is_users:
        raise NoFingerprint(operator.type)
    return (
        operator.type,
        [t.id for t in operator.inputs],
        [(t.id, _of_spec(t.spec)) for t in operator.outputs],
        _plain(operator.attributes),
        operator.settings.fragment,
        sorted(operator.modified),
        [each.id for each in operator.after],
    )


def _plain(value: Any) -> object:
    """Return plain values that identify `value`."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, np.generic | np.ndarray):
        array = np.ascontiguousarray(value)
        bits = hashlib.sha256(array.tobytes()).hexdigest()
        return "array", array.dtype.descr, np.shape(value), bits
    if isinstance(value, set | frozenset):
        return "set", sorted(repr(_plain(each)) for each in value)
    return type(value).__qualname__, _parts(value)


def _parts(value: Any) -> object:
    match value:
        case IrTensor():
            return value.graph.id, value.id
        case IrGraph():
            return value.id
        case Groups():
            return value.assignment, value.stride
        case DType():
            return value.name
        case np.dtype():
            return value.str
        case Enum():
            return value.name
        case Operator():
            return _of_operator(value)
        case RemoteBuffer():
            about = (value.number, value.dtype.name, value.shape, value.entries)
            return (*about, value.meta_shape)
        case Spec():
            return _of_spec(value)
    return _more_parts(value)


def _more_parts(value: Any) -> object:
    match value:
        case OpCall():
            ends = [
                [_of_spec(s) for s in some] for some in (value.inputs, value.outputs)
            ]
            return ends, _plain(dict(value.attributes))
        case Placement():
            whole = value.retrieved is not None
            about = (_plain(value.groups), _plain(value.buffer), value.offset)
            return (*about, value.shards, whole)
        case _ if hasattr(value, "__dict__") and not callable(value):
            return _plain(vars(value))
    raise NoFingerprint(repr(value))
