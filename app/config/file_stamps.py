"""Cheap detection of changed files."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[object, ...]


def stamp_of(paths: Iterable[Path]) -> Stamp:
    """Return a value that differs after a file was changed, replaced or removed.

    For a folder, only its existence counts. Raises nothing.
    """
    stamps: list[tuple[object, ...]] = []
    for path in sorted(paths):
        try:
            found = path.stat()
        except OSError as e:
            stamps.append((str(path), e.errno))
            continue
        if not stat.S_ISDIR(found.st_mode):
            stamps.append((str(path), found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(stamps)
