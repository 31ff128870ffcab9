"""Tensors on the command line: read from files and texts, shown to a person."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from popgate.client import Array, InvalidRequest, Tensor, tensor_of


def read_value(text: str, name: str, datatype: str, shape: list[int]) -> Tensor:
    """The tensor that ``name=text`` means: a ``.npy`` or ``.npz`` file or a JSON value.

    For BYTES a text that is no JSON is taken as it stands. A value that lacks only
    dimensions of size 1 in front gets them. Raises `InvalidRequest`.
    """
    return tensor_of(name, _read_array(text, name, datatype), datatype, shape)


def read_archive(path: str) -> dict[str, Array]:
    """The arrays of a ``.npz`` file by their names. Raises `InvalidRequest`."""
    try:
        with (
            Path(path).open("rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError) as e:
        raise InvalidRequest(f"{path} cannot be read: {e}") from None
    except Exception as e:  # zipfile and zlib have errors of their own
        raise InvalidRequest(f"{path} is no .npz file: {e}") from None
    if not arrays:
        raise InvalidRequest(f"{path} holds no array")
    return arrays


def pick(arrays: dict[str, Array], name: str, path: str) -> Array:
    """The array for input `name`: that of its name, or the only one there is."""
    if name not in arrays and len(arrays) != 1:
        raise InvalidRequest(f"--input {name}={path}: it holds {', '.join(arrays)}")
    return arrays.get(name, next(iter(arrays.values())))


def _read_array(text: str, name: str, datatype: str) -> Array:
    if text.endswith(".npz"):
        return pick(read_archive(text), name, text)
    if text.endswith(".npy"):
        try:
            return np.asarray(np.load(Path(text), allow_pickle=False))
        except (OSError, ValueError, EOFError) as e:
            raise InvalidRequest(f"input {name}: {text} cannot be read: {e}") from None
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as e:
        if datatype == "BYTES":
            return np.array(text, dtype=object)
        msg = (
            f"input {name}: {text!r} is neither a .npy or .npz file nor a JSON value "
            f"such as [[1, 2]] ({e})"
        )
        raise InvalidRequest(msg) from None
    try:
        return np.array(value, dtype=object if datatype == "BYTES" else None)
    except ValueError:
        msg = f"input {name}: the lists are not of one shape"
        raise InvalidRequest(msg) from None


def text_of(tensor: Tensor) -> str:
    """The values, for a person; large ones in extracts."""
    array = tensor.array
    if tensor.datatype == "BYTES":
        texts = [item.decode(errors="backslashreplace") for item in array.reshape(-1)]
        array = np.array(texts, dtype=object).reshape(array.shape)
    return np.array2string(array, threshold=200, suppress_small=True, max_line_width=88)
