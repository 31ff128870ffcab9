"""Labels of classes: one per line, in a text file beside the model's options."""

from __future__ import annotations

from pathlib import Path

from app.config.model_files import file_inside, read_text, shown

MAX_LABEL_BYTES = 1 << 20  # of one file: 50,000 names of 20 letters


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
