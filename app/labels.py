"""Labels of classes: one a line, in a text file beside the model's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MAX_LABEL_BYTES = 1 << 20  # of one file: 50,000 names of 20 letters
_MAX_OUTPUTS = 1000


def check_labels(value: Any) -> dict[str, str | tuple[str, ...]]:
    """A table of output name to a file name, or to the labels themselves.

    Raises ValueError with the words that follow "must be".
    """
    wanted = "a table of output name to the name of a file, or a list of labels"
    if not isinstance(value, dict) or len(value) > _MAX_OUTPUTS:
        raise ValueError(wanted)
    found: dict[str, str | tuple[str, ...]] = {}
    for name, labels in value.items():
        if isinstance(labels, str):
            found[name] = labels
        elif isinstance(labels, list) and all(isinstance(x, str) for x in labels):
            found[name] = tuple(labels)
        else:
            raise ValueError(wanted)
    return found


def read_labels(folder: Path, name: str) -> tuple[str, ...]:
    """The lines of a file of the model's folder; empty ones are classes without a name.

    Raises ValueError for a file that is not there, lies elsewhere or is too large.
    """
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        msg = f"labels file {name!r} is not in the model's folder"
        raise ValueError(msg)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_LABEL_BYTES + 1)
    except OSError as e:
        msg = f"labels file {name!r} cannot be read: {e.strerror}"
        raise ValueError(msg) from e
    if len(text) > MAX_LABEL_BYTES:
        msg = f"labels file {name!r} is larger than {MAX_LABEL_BYTES} bytes"
        raise ValueError(msg)
    try:
        lines = text.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as e:
        msg = f"labels file {name!r} is not UTF-8: {e.reason} at byte {e.start}"
        raise ValueError(msg) from None
    return tuple(line.rstrip() for line in lines)
