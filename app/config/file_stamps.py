"""Cheap detection of changed files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[object, ...]


def stamp_of(paths: Iterable[Path]) -> Stamp:
    """Return a value that differs after a file was changed, replaced, removed, or made
    readable.

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
            may_read = os.access(path, os.R_OK, effective_ids=True)
            content = found.st_ino, found.st_size, found.st_mtime_ns, may_read
            stamps.append((str(path), *content))
    return tuple(stamps)
