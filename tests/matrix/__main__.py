"""Print the matrix of capabilities, or the cells of one row or column in words.

python -m tests.matrix [NAME]
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.matrix.cells import Matrix, read_matrix

LETTERS = {"test": "T", "refused": "R", "apart": ".", "missing": "?"}


def table(matrix: Matrix) -> list[str]:
    """Return the lines of the table: a letter a cell, and the counts below it."""
    names = [one.name for one in matrix.capabilities]
    columns = names[1:] + [one.name for one in matrix.surfaces]
    width = max(map(len, names))
    tall = max(map(len, columns))
    lines = [
        " " * width + "  " + " ".join(name.rjust(tall)[at] for name in columns)
        for at in range(tall)
    ]
    for name in names:
        cells = [matrix.cells.get((name, column)) for column in columns]
        letters = [LETTERS[cell.kind] if cell else " " for cell in cells]
        lines.append(f"{name:{width}}  {' '.join(letters)}")
    counts = Counter(cell.kind for cell in matrix.cells.values())
    legend = [f"{LETTERS[kind]} {kind}: {counts[kind]}" for kind in LETTERS]
    return [*lines, "", "   ".join(legend)]


def words(matrix: Matrix, name: str) -> list[str]:
    """Return a line for each cell of `name`, whichever of the pair it is."""
    lines = []
    for pair in matrix.pairs():
        if name not in pair:
            continue
        cell = matrix.cells[pair]
        other = pair[1] if pair[0] == name else pair[0]
        said = [f"{cell.kind}: {cell.words}"] if cell.words else []
        lines.append(f"{other:14} {'  '.join([*said, *cell.tests])}")
    return lines


if __name__ == "__main__":
    found = read_matrix()
    lines = words(found, sys.argv[1]) if sys.argv[1:] else table(found)
    sys.stdout.write("\n".join(lines) + "\n")
