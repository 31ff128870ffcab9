"""Text for a terminal: aligned columns, JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any


def align_columns(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> list[str]:
    """Return one line per row, with columns two spaces apart. Columns in `right` are
    right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def json_text(document: Any) -> str:
    """Return a document as JSON. Names of files may contain any bytes."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()
