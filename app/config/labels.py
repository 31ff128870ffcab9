"""Labels of classes: one per line, in a text file beside the model's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.config.model_files import file_inside, read_text, shown

MAX_LABEL_BYTES = 1 << 20  # of one file: 50,000 names of 20 letters
_MAX_OUTPUTS = 1000


def check_labels(value: Any) -> dict[str, str | tuple[str, ...]]:
    """Return a table of output name to a file name, or to the labels themselves.

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
    """Return the lines of a file in the model's folder; empty ones are classes without
    a name.

    Raises ValueError for a file that is missing, outside the folder or too large.
    """
    try:
        text = read_text(file_inside(folder, name), MAX_LABEL_BYTES)
    except ValueError as e:
        raise ValueError(f"labels file {shown(name)} {e}") from None
    return tuple(line.rstrip() for line in text.splitlines())
