"""Text for a terminal: aligned columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence


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
