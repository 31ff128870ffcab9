"""Tensors of a model that the gateway fills in and requests never see.

*State*: an output of one run that is an input of the next. *Controls*: inputs with one
number or string that describes the request. `sequences` and `steps` use them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.codec.half_floats import pack_bf16
from app.config.model_files import (
    INITIAL_STATE_FOLDER,
    count_strings,
    file_inside,
    read_array,
    read_bytes,
    shown,
)
from app.config.stateful_config import StateConfig
from app.spec import ModelSpec, TensorSpec
from engine import Tensor

#: The size limit of a state in bytes, because one is kept for every sequence.
MAX_STATE_BYTES = 1 << 30


class States:
    """The states of a model: outputs of one run that are inputs of the next.

    `initial` are the initial states by input; `outputs` are their sources. Files of
    initial values are in `folder`, files of bytes in `model_folder`. Raises ValueError
    if the model lacks a tensor that `configs` name.
    """

    def __init__(
        self,
        spec: ModelSpec,
        configs: Sequence[StateConfig],
        folder: Path,
        model_folder: Path | None = None,
    ) -> None:
        self._output_of = {config.input: config.output for config in configs}
        self.initial = {
            config.input: _initial(spec, config, folder, model_folder)
            for config in configs
        }

    @property
    def outputs(self) -> set[str]:
        return set(self._output_of.values())

    def after(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the states after a run, by input."""
        return {name: outputs[output] for name, output in self._output_of.items()}

    def __repr__(self) -> str:
        return f"<States {list(self._output_of)}>"


def _initial(
    spec: ModelSpec, config: StateConfig, folder: Path, model_folder: Path | None
) -> Tensor:
    source = tensor_of(spec.inputs_by_name, config.input, "input", "state")
    target = tensor_of(spec.outputs_by_name, config.output, "output", "state")
    if source.datatype != target.datatype:
        msg = (
            f"state input '{source.name}' is {source.datatype}, but its output "
            f"'{target.name}' is {target.datatype}"
        )
        raise ValueError(msg)
    if config.initial:
        array = _read_array(source, folder, config.initial)
    else:
        array = _zeros(spec, source, config.shape)
    _check_fits(spec, source, array.shape)
    made = Tensor.from_numpy(array, source.data_type)
    if not config.data_file:
        return made
    data = _read_bytes(source, model_folder, config.data_file)
    if source.type.item_size:
        if len(data) != array.nbytes:
            msg = (
                f"{config.data_file} has {len(data)} bytes, but the initial state of "
                f"input '{source.name}' with shape {list(array.shape)} needs "
                f"{array.nbytes}"
            )
            raise ValueError(msg)
    elif count_strings(data) != array.size:
        msg = (
            f"{config.data_file} must hold the {array.size} strings of the initial "
            f"state of input '{source.name}', each after its length in 4 bytes"
        )
        raise ValueError(msg)
    return Tensor(made.data_type, made.shape, (data,) if data else (), len(data))


def _read_bytes(tensor: TensorSpec, folder: Path | None, name: str) -> bytes:
    if folder is None:
        raise ValueError(f"{name}: a model without a folder cannot have files")
    try:
        path = file_inside(folder, f"{INITIAL_STATE_FOLDER}/{name}")
        return read_bytes(path, MAX_STATE_BYTES)
    except ValueError as e:
        raise ValueError(f"the initial state {shown(name)} {e}") from None


def _zeros(
    spec: ModelSpec, tensor: TensorSpec, shape: tuple[int, ...] | None
) -> np.ndarray[Any, Any]:
    dims = list(tensor.shape or ()) if shape is None else list(shape)
    if shape is None:
        if spec.is_batched and dims[:1] == [-1]:
            dims[0] = 1
        if tensor.shape is None or -1 in dims:
            msg = (
                f"state input '{tensor.name}' has free dimensions; set its initial "
                "size with shape"
            )
            raise ValueError(msg)
    elif spec.is_batched and tensor.shape and len(dims) == len(tensor.shape) - 1:
        dims.insert(0, 1)
    dtype = tensor.type.dtype
    if math.prod(dims) * max(1, tensor.type.item_size) > MAX_STATE_BYTES:
        msg = f"the state of input '{tensor.name}' is larger than {MAX_STATE_BYTES} B"
        raise ValueError(msg)
    if not tensor.type.item_size:
        return np.full(dims, b"", dtype=np.object_)
    return np.zeros(dims, dtype)


def _read_array(tensor: TensorSpec, folder: Path, name: str) -> np.ndarray[Any, Any]:
    try:
        array = read_array(file_inside(folder, name), MAX_STATE_BYTES)
    except ValueError as e:
        raise ValueError(f"the initial state {shown(name)} {e}") from None
    if not tensor.type.item_size or array.dtype != tensor.type.dtype:
        msg = (
            f"{name} holds {array.dtype}, but input '{tensor.name}' is "
            f"{tensor.datatype}"
        )
        raise ValueError(msg)
    return array


def _check_fits(spec: ModelSpec, tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    want = tensor.shape
    fits = want is None or (
        len(want) == len(shape)
        and all(a in (-1, b) for a, b in zip(want, shape, strict=True))
    )
    if not fits or (spec.is_batched and shape[:1] != (1,)):
        rows = ", of which it has one row" if spec.is_batched else ""
        msg = (
            f"the initial state of input '{tensor.name}' has shape {list(shape)}, but "
            f"the model expects {list(want or ())}{rows}"
        )
        raise ValueError(msg)


def tensor_of(
    tensors: Mapping[str, TensorSpec], name: str, kind: str, role: str
) -> TensorSpec:
    """Return the tensor with that name; ValueError lists the existing ones."""
    found = tensors.get(name)
    if found is None:
        msg = f"the model has no {kind} '{name}' ({role}); it has {', '.join(tensors)}"
        raise ValueError(msg)
    return found


class Control:
    """An input that holds one value in every request."""

    __slots__ = ("_made", "_shape", "name", "spec")

    def __init__(self, spec: ModelSpec, name: str, role: str) -> None:
        """Describe the input.

        Raises ValueError if it does not exist, or takes more than one value.
        """
        self.spec = tensor_of(spec.inputs_by_name, name, "input", role)
        self.name = name
        shape = tuple(1 if d == -1 else d for d in self.spec.shape or (1,))
        if math.prod(shape) != 1:
            msg = (
                f"input '{name}' ({role}) must take one value, but it has shape {shape}"
            )
            raise ValueError(msg)
        self._shape = shape
        self._made: dict[bool, Tensor] = {}

    @property
    def is_text(self) -> bool:
        return self.spec.type.kind == "s"

    def flag(self, *, on: bool) -> Tensor:
        """Return the tensor of a boolean: true or false, 1 or 0, ``1`` or ``0``."""
        found = self._made.get(on)
        if found is None:
            value = str(int(on)) if self.is_text else int(on)
            found = self._made[on] = self.tensor(value)
        return found

    def tensor(self, value: bool | int | float | str) -> Tensor:
        """Return the tensor of a value, which must have a fitting type.

        Raises ValueError for a value that the datatype cannot hold.
        """
        kind, dtype = self.spec.type.kind, self.spec.type.dtype
        if self.is_text:
            if not isinstance(value, str):
                raise ValueError("a string")
            try:
                raw = value.encode()
            except UnicodeEncodeError:
                raise ValueError("a string that UTF-8 can encode") from None
            array = np.full(self._shape, raw, dtype=np.object_)
            return Tensor.from_numpy(array, self.spec.data_type)
        if isinstance(value, str):
            raise ValueError("true or false" if kind == "b" else "a number")
        if kind == "b":
            if value not in (0, 1):
                raise ValueError("true or false")
        elif isinstance(value, bool):
            raise ValueError("a number")
        try:
            is_finite = math.isfinite(value)
        except OverflowError:  # an integer of hundreds of digits
            raise ValueError("a number that 64 bits hold") from None
        if kind == "f":
            return self._of_float(float(value))
        if kind in "iu":
            limits = np.iinfo(dtype)
            if (
                not is_finite
                or value != int(value)
                or not limits.min <= value <= limits.max
            ):
                raise ValueError(f"a whole number from {limits.min} to {limits.max}")
            value = int(value)
        return Tensor.from_numpy(
            np.full(self._shape, value, dtype), self.spec.data_type
        )

    def _of_float(self, value: float) -> Tensor:
        """Round to the nearest value, and refuse a finite one that is too large."""
        code = self.spec.type.struct_code
        try:
            packed = struct.pack(f"<{code}", value) if code else pack_bf16([value])
        except OverflowError:
            raise ValueError(f"a number that {self.spec.datatype} holds") from None
        return Tensor(self.spec.data_type, self._shape, (packed,), len(packed))

    def __repr__(self) -> str:
        return f"<Control {self.name!r} {self.spec.datatype}{list(self._shape)}>"
