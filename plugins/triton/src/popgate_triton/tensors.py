"""The tensors that Triton's model configuration declares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from app.config.config_keys import ModelConfigError
from app.config.declared import DeclaredTensor


def declared_tensors(messages: Iterable[Any], label: str) -> tuple[DeclaredTensor, ...]:
    """Return the ``input`` or ``output`` entries. Raises `ModelConfigError`."""
    found = tuple(_declared(message, label) for message in messages)
    names = [tensor.name for tensor in found]
    for name in names:
        if names.count(name) > 1:
            raise ModelConfigError(f"{label}: '{name}' is declared twice")
    return found


def _declared(message: Any, label: str) -> DeclaredTensor:
    name, dims = message.name, tuple(message.dims)
    if not name:
        raise ModelConfigError(f"{label}: an input or output lacks a name")
    check_dims(name, dims, label)
    reshape = None
    if message.HasField("reshape"):
        reshape = tuple(message.reshape.shape)
        check_dims(name, reshape, label)
        if problem := _why_no_reshape(dims, reshape):
            msg = f"{label}: reshape of '{name}' is impossible: {problem}"
            raise ModelConfigError(msg)
    return DeclaredTensor(
        name,
        datatype_word(message),
        dims,
        label,
        reshape,
        format=_word(message, "format"),
        label_filename=getattr(message, "label_filename", ""),
    )


def _why_no_reshape(dims: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Return why a reshape is impossible; empty if it is possible."""
    for one in (dims, shape):
        if sum(dim < 0 for dim in one) > 1:
            return f"{list(one)} has more than one free dimension"
    is_fixed = all(dim >= 0 for dim in (*dims, *shape))
    if is_fixed and math.prod(dims) != math.prod(shape):
        return f"{list(dims)} and {list(shape)} differ in size"
    return ""


def declared_states(
    messages: Iterable[Any], field: str, label: str
) -> tuple[DeclaredTensor, ...]:
    """Return the tensors that the ``state`` entries name in `field`."""
    found = []
    for message in messages:
        name, dims = getattr(message, field), tuple(message.dims)
        check_dims(name, dims, label)
        found.append(DeclaredTensor(name, datatype_word(message), dims, label))
    return tuple(found)


def check_dims(name: str, dims: tuple[int, ...], label: str) -> None:
    """Raise `ModelConfigError` for invalid dimensions."""
    if any(dim < -1 or dim == 0 for dim in dims):
        msg = f"{label}: dims of '{name}' must be 1 or more, or -1, got {list(dims)}"
        raise ModelConfigError(msg)


def datatype_word(message: Any) -> str:
    """Return the protocol's name of a message's ``data_type``; empty if there
    is none.
    """
    kind = _word(message, "data_type").removeprefix("TYPE_")
    return {"INVALID": "", "STRING": "BYTES"}.get(kind, kind)


def _word(message: Any, field: str) -> str:
    """Return the name of a field's enumerator; empty if the message lacks the field."""
    found = message.DESCRIPTOR.fields_by_name.get(field)
    if found is None:
        return ""
    word: str = found.enum_type.values_by_number[getattr(message, field)].name
    return word
