"""Inputs that `popgate run` feeds to a model, and the handling of its outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from app.cli.errors import EXIT_USAGE, CommandError
from app.cli.pairs import parse_pairs, parse_shapes
from app.observe.log_text import escaped
from app.spec import datatype_of, notation
from engine import DataDesc, Tensor
from popef_io import DataType
from popgate_client import InvalidRequest, array_of, tensor_of
from popgate_client import Tensor as NamedTensor
from popgate_client.values import fixed_width
from popgate_tools.synthetic import MAX_ELEMENTS, synthetic_array
from popgate_tools.tensors import pick, read_archive, read_value, text_of, writing


def datatype_name(desc: DataDesc) -> str:
    """Return the command line's name of a data type; FP8 travels as bytes."""
    try:
        return datatype_of(desc.data_type).name
    except ValueError:
        return "UINT8"


def make_inputs(
    descs: Sequence[DataDesc],
    given: Sequence[str] | None,
    shapes: Sequence[str] | None,
    *,
    batch: int,
    batched: bool,
    iterations: int,
    seed: int,
    fill: bool,
) -> dict[str, Tensor]:
    """Return the inputs of a request: the `given` ones, and synthetic others (with
    `fill`).

    `given` are NAME=file.npy, NAME=file.npz, NAME=JSON, or file.npz for all names in
    the file. Without `batch`, as many synthetic rows as a run of `iterations` takes.
    Raises `CommandError` for values that do not fit the model.
    """
    known = {desc.name: desc for desc in descs}
    arrays = _read_given(known, given)
    if fill:
        wanted = parse_shapes(shapes)
        _check_names(known, wanted, "--shape")
        if batch and not (batched or any((d.shape or (0,))[0] < 0 for d in descs)):
            msg = f"--batch {batch}: the inputs of the model have no dimension for rows"
            raise CommandError(msg, EXIT_USAGE)
        random = np.random.default_rng(seed)
        for desc in descs:
            if desc.name not in arrays:
                shape = _shape(
                    desc, wanted.get(desc.name), batch, iterations if batched else 0
                )
                arrays[desc.name] = synthetic_array(random, desc.data_type, shape)
    return {
        name: Tensor.from_numpy(array, known[name].data_type)
        for name, array in arrays.items()
    }


def _read_given(
    known: Mapping[str, DataDesc], given: Sequence[str] | None
) -> dict[str, npt.NDArray[Any]]:
    archives = [i for i in given or () if "=" not in i and i.endswith(".npz")]
    pairs = parse_pairs([i for i in given or () if i not in archives], "--input")
    _check_names(known, pairs, "--input")
    found: dict[str, npt.NDArray[Any]] = {}
    for path in archives:
        with _as_usage():
            arrays = read_archive(path)
        _check_names(known, arrays, f"--input {path}")
        found |= {n: _fitting(known[n], a, path) for n, a in arrays.items()}
    for name, text in pairs.items():
        desc = known[name]
        if text.endswith(".npz"):
            with _as_usage():
                array = pick(read_archive(text), name, text)
            found[name] = _fitting(desc, array, text)
        else:
            found[name] = _read(desc, text)
    return found


@contextmanager
def _as_usage() -> Iterator[None]:
    try:
        yield
    except InvalidRequest as e:
        raise CommandError(str(e), EXIT_USAGE) from None


def _fitting(desc: DataDesc, array: npt.NDArray[Any], path: str) -> npt.NDArray[Any]:
    if desc.data_type.numpy_dtype == array.dtype:
        return array
    try:
        tensor = tensor_of(desc.name, array, datatype_name(desc))
    except InvalidRequest as e:
        raise CommandError(f"{path}: {e}", EXIT_USAGE) from None
    return _carried(desc, tensor)


def _read(desc: DataDesc, text: str) -> npt.NDArray[Any]:
    try:
        shape = list(desc.shape or ())
        tensor = read_value(text, desc.name, datatype_name(desc), shape)
    except InvalidRequest as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    return _carried(desc, tensor)


def _carried(desc: DataDesc, tensor: NamedTensor) -> npt.NDArray[Any]:
    """Return the data as the engine carries it: BF16 as bits."""
    if desc.data_type is DataType.BF16:
        return np.asarray(tensor.raw()).reshape(tensor.array.shape)
    return tensor.array


def _check_names(
    known: Mapping[str, DataDesc], names: Iterable[str], option: str
) -> None:
    for name in names:
        if name not in known:
            takes = ", ".join(f"{d.name} {_text(d)}" for d in known.values())
            msg = f"{option}: no input {name!r}; the model takes {takes or 'nothing'}"
            raise CommandError(msg, EXIT_USAGE)


def _text(desc: DataDesc) -> str:
    return notation(datatype_name(desc), desc.shape)


def _shape(
    desc: DataDesc, wanted: tuple[int | str, ...] | None, batch: int, iterations: int
) -> tuple[int, ...]:
    if wanted is not None:
        if not all(isinstance(d, int) and d >= 0 for d in wanted):
            msg = (
                f"--shape {desc.name}: expected whole numbers, as in "
                f"{desc.name}=1,28,28"
            )
            raise CommandError(msg, EXIT_USAGE)
        shape = tuple(int(d) for d in wanted)
    elif desc.shape is None:
        msg = (
            f"input {desc.name!r} may have any number of dimensions; set them with "
            "--shape or --input"
        )
        raise CommandError(msg, EXIT_USAGE)
    else:
        shape = tuple(1 if d < 0 else d for d in desc.shape)
        if shape and batch and (iterations or desc.shape[0] < 0):
            shape = (batch, *shape[1:])
        elif shape and iterations:
            shape = (shape[0] * iterations, *shape[1:])
    if math.prod(shape) > MAX_ELEMENTS:
        msg = (
            f"input {desc.name!r} would have {math.prod(shape)} elements; set a "
            "smaller --shape"
        )
        raise CommandError(msg, EXIT_USAGE)
    return shape


def named(
    outputs: Mapping[str, Tensor], descs: Sequence[DataDesc]
) -> list[NamedTensor]:
    """Return the outputs in the model's order."""
    return [
        NamedTensor(
            desc.name,
            datatype_name(desc),
            array_of(
                datatype_name(desc),
                outputs[desc.name].shape,
                outputs[desc.name].tobytes(),
            ),
        )
        for desc in descs
        if desc.name in outputs
    ]


def check_target(target: Path) -> None:
    """Raise `CommandError` for a wrong file name before any run."""
    if target.suffix not in (".npz", ".npy"):
        raise CommandError(f"--save {target}: expected .npz or .npy", EXIT_USAGE)
    if not target.parent.is_dir():
        raise CommandError(f"--save {target}: no such folder", EXIT_USAGE)


def save(outputs: Sequence[NamedTensor], target: Path) -> None:
    """Write all outputs as `.npz`, or a single one as `.npy`."""
    arrays = {}
    for output in outputs:
        strings = output.datatype == "BYTES"
        try:
            arrays[output.name] = fixed_width(output.array) if strings else output.array
        except ValueError as e:
            raise CommandError(f"--save {target}: output {output.name!r} {e}") from None
    if target.suffix == ".npy" and len(arrays) != 1:
        names = ", ".join(arrays)
        msg = (
            f"--save {target}: a .npy file holds one array, but the outputs are "
            f"{names}; write a .npz file"
        )
        raise CommandError(msg, EXIT_USAGE)
    with writing(target) as file:
        if target.suffix == ".npy":
            np.save(file, next(iter(arrays.values())), allow_pickle=False)
        else:
            _write_archive(file, arrays)


def _write_archive(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays of any name. `np.savez` has parameters that are names, too."""
    with ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def shown(output: NamedTensor) -> str:
    """Return name, type, shape and values, for a person."""
    kind = notation(output.datatype, output.shape)
    return f"{escaped(output.name)}  {kind}\n{text_of(output)}"
