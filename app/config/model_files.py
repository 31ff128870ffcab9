"""Read the small files beside a model: options, labels, values of tensors.

Anyone who can write to a repository can replace these files at any time. So PopGate
reads only regular files, up to a fixed number of bytes, and never waits for a pipe. It
keeps no file mapped: if a mapped file is shortened, reading it ends the process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from app.sizes import size_text

#: The folder of files with initial values of states (Triton: `initial_state { data_file
#: }`).
INITIAL_STATE_FOLDER = "initial_state"
_STEP = 1 << 20  # bytes read at once


def shown(name: str) -> str:
    """Return a name for a message: quoted and shortened."""
    text = repr(name)
    return text if len(text) <= 300 else text[:297] + "..."


def file_inside(folder: Path, name: str) -> Path:
    """Return the file called `name` in a model's folder, with links followed.

    Raises ValueError if the path leads outside or is not a valid name; its text follows
    the name.
    """
    try:
        path = (folder / name).resolve()
        inside = path.is_relative_to(folder.resolve())
    except OSError as e:
        raise ValueError(f"cannot be read: {e.strerror}") from None
    except RuntimeError:  # older Pythons raise this for circular links
        raise ValueError("cannot be read: its links form a circle") from None
    if not inside:
        raise ValueError("is outside the model's folder")
    return path


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; follows links.

    Raises ValueError if it cannot be read, is not a regular file or is larger; its text
    follows the name of the file.
    """
    with _opened(path) as descriptor:
        parts: list[bytes] = []
        size = 0
        while part := os.read(descriptor, min(_STEP, most + 1 - size)):
            parts.append(part)
            size += len(part)
            if size > most:
                raise ValueError(f"is larger than {size_text(most)}")
        return b"".join(parts)


def read_text(path: Path, most: int) -> str:
    """Read a file like `read_bytes`, as UTF-8 with or without a mark at
    its beginning.
    """
    data = read_bytes(path, most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ValueError(
            f"cannot be read: it is not UTF-8: {e.reason} at byte {e.start}"
        ) from None


def read_array(path: Path, most: int | None = None) -> npt.NDArray[Any]:
    """Return the array in an ``.npy`` file of at most `most` bytes, read-only.

    The array is a copy and takes as much memory as the file has bytes. Raises
    ValueError as `read_bytes` does, and for a file without a complete array.
    """
    with _opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if most is not None and size > most:
            raise ValueError(f"is larger than {size_text(most)}")
        copy = os.memfd_create("npy", os.MFD_CLOEXEC)
        try:
            position = 0
            while position < size:
                sent = os.sendfile(copy, descriptor, position, size - position)
                if not sent:
                    break
                position += sent
            # Mapping the copy compares the size that the header announces with the
            # file's size.
            name = f"/proc/self/fd/{copy}"
            found = np.load(name, mmap_mode="r", allow_pickle=False)
        except OSError as e:
            raise ValueError(f"cannot be read: {e.strerror or e}") from None
        except Exception as e:  # numpy evaluates the header
            text = str(e).replace(name, "it")
            raise ValueError(f"is not a valid .npy file: {text}") from None
        finally:
            os.close(copy)
    if not isinstance(found, np.ndarray):
        raise ValueError("is not a .npy file but an archive of several")
    return found.view(np.ndarray)


def count_strings(data: bytes) -> int:
    """Return the number of elements of a BYTES tensor, each after its length in 4
    bytes; -1 if it is malformed.
    """
    at = count = 0
    while at + 4 <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        count += 1
    return count if at == len(data) else -1


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a regular file; yields its descriptor. Raises ValueError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags)
    except OSError as e:
        raise ValueError(f"cannot be read: {e.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("cannot be read: it is not a regular file")
        yield descriptor
    except OSError as e:
        raise ValueError(f"cannot be read: {e.strerror}") from None
    finally:
        os.close(descriptor)
