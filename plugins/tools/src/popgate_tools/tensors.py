"""Tensors on the command line: read from files and strings, and printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from app.cli.errors import CommandError
from popgate_client import Array, InvalidRequest, Tensor, tensor_of


def read_value(text: str, name: str, datatype: str, shape: list[int]) -> Tensor:
    """Return the tensor that ``name=text`` means.

    The text is a ``.npy`` or ``.npz`` file, a JSON value, or ``@FILE``: the bytes of
    any file, for BYTES. A string that is not JSON is used unchanged, for BYTES. Raises
    `InvalidRequest`.
    """
    return tensor_of(name, _read(text, name, datatype), datatype, shape)


def is_file(text: str) -> bool:
    """Return whether a string names a file whose bytes are sent rather than
    an array.
    """
    return text.startswith("@") and not text.endswith((".npy", ".npz"))


def read_archive(path: str) -> dict[str, Array]:
    """Return the arrays of a ``.npz`` file by their names. Raises `InvalidRequest`."""
    try:
        with (
            Path(path).open("rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError) as e:
        raise InvalidRequest(f"{path} cannot be read: {e}") from None
    except Exception as e:  # zipfile and zlib have errors of their own
        raise InvalidRequest(f"{path} is not a valid .npz file: {e}") from None
    if not arrays:
        raise InvalidRequest(f"{path} contains no array")
    return arrays


def pick(arrays: dict[str, Array], name: str, path: str) -> Array:
    """Return the array for input `name`: the one with its name, or the only one."""
    if name not in arrays and len(arrays) != 1:
        raise InvalidRequest(
            f"--input {name}={path}: the file has no array {name}; its arrays are "
            f"{', '.join(arrays)}"
        )
    return arrays.get(name, next(iter(arrays.values())))


def _read(text: str, name: str, datatype: str) -> Any:
    if text.startswith("@"):
        return _read_file(text[1:], name, datatype)
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
            return text
        msg = (
            f"input {name}: {text!r} is neither a .npy or .npz file nor a JSON value "
            f"such as [[1, 2]] ({e})"
        )
        raise InvalidRequest(msg) from None
    return value


def _read_file(path: str, name: str, datatype: str) -> Any:
    """Return the bytes of a file, or the array in it."""
    if path.endswith((".npy", ".npz")) and datatype != "BYTES":
        return _read(path, name, datatype)
    if datatype != "BYTES":
        msg = (
            f"input {name}: @{path} sends the file's bytes, which only a BYTES "
            f"input takes, and {name} is {datatype}; name a .npy file, or add "
            "a section [image] to the model's config.toml so that it takes "
            "pictures"
        )
        raise InvalidRequest(msg)
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise InvalidRequest(f"input {name}: {path}: {e.strerror}") from None


@contextmanager
def writing(target: Path) -> Iterator[IO[bytes]]:
    """Open a file for arrays. If it cannot be written completely, remove it and raise
    `CommandError`.
    """
    try:
        with target.open("wb") as file:
            yield file
    except OSError as e:
        if target.is_file():
            target.unlink()
        # NumPy counts elements; it does not say that the disk is full.
        why = e.strerror or "not written completely; the disk may be full"
        raise CommandError(f"{target}: {why}") from None


def text_of(tensor: Tensor) -> str:
    """Return the values in readable form, and only extracts of large ones."""
    array = tensor.array
    if tensor.datatype == "BYTES":
        texts = [item.decode(errors="backslashreplace") for item in array.reshape(-1)]
        array = np.array(texts, dtype=object).reshape(array.shape)
    return np.array2string(array, threshold=200, suppress_small=True, max_line_width=88)
