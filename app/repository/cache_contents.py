"""Content of the cache folder, and how it is emptied while servers run.

A compiled file that is removed stays open in the servers that serve it, and is compiled
anew when it is next loaded. A downloaded model that a server serves, and a download
that is going on, stay: their locks say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from app.repository.remote.model_cache import LOCK, MANIFEST, ModelCache, is_used
from app.repository.uploads import Uploads

Kind = Literal["compiled", "downloaded", "left over"]

#: A file that was compiled or looked up a moment ago may be about to be opened.
_JUST_NOW: Final = 60.0
#: A file without a place may be one that is being written.
_BEING_WRITTEN: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Cached:
    """One thing in the cache: its name for people, bytes, and when it was last used
    (`time.time()`)."""

    kind: Kind
    name: str
    size: int
    used: float
    path: Path
    in_use: bool = False


class CacheContents:
    """The cache of compiled files, `compiled`, and that of downloads, `downloaded`."""

    def __init__(self, compiled: Path, downloaded: Path) -> None:
        self._compiled = compiled
        self._downloaded = downloaded

    def listed(self) -> list[Cached]:
        """Return what is there, by kind, then the longest unused first."""
        found = [*self._compiled_files(), *self._models(), *self._parts()]
        return sorted(found, key=lambda each: (each.kind, each.used))

    def remove(self, cached: Cached) -> bool:
        """Remove one thing, unless it is in use. Return whether it is gone."""
        if cached.in_use:
            return False
        if cached.kind == "downloaded":
            cache = ModelCache(self._downloaded)
            with contextlib.suppress(OSError):
                cache.remove_unused(cached.path, time.time() + 1)
            return not cached.path.exists()
        try:
            cached.path.unlink()
        except OSError:
            return False
        with contextlib.suppress(OSError):
            cached.path.parent.rmdir()
        return True

    def sweep(self) -> None:
        """Remove what ended servers have left behind."""
        Uploads(self._compiled / "uploads").sweep()
        ModelCache(self._downloaded).sweep()

    def _compiled_files(self) -> Iterator[Cached]:
        now = time.time()
        for path in self._compiled.glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(OSError):
                found = path.stat(follow_symlinks=False)
                age = now - found.st_mtime
                if path.suffix == ".popef":
                    name, is_new = _name_of(path), age < _JUST_NOW
                    yield Cached(
                        "compiled", name, found.st_size, found.st_mtime, path, is_new
                    )
                else:
                    yield _left_over(path, found, age)

    def _models(self) -> Iterator[Cached]:
        with contextlib.suppress(OSError):
            for folder in (self._downloaded / "models").iterdir():
                used = (folder / LOCK).stat().st_mtime
                files = [path for path in folder.rglob("*") if path.is_file()]
                size = sum(path.stat().st_size for path in files)
                name = _url_of(folder) or folder.name
                yield Cached("downloaded", name, size, used, folder, is_used(folder))

    def _parts(self) -> Iterator[Cached]:
        """Yield the beginnings of downloads, and files that no model has any more."""
        now = time.time()
        for name in ("parts", "blobs"):
            with contextlib.suppress(OSError):
                for path in (self._downloaded / name).iterdir():
                    found = path.stat(follow_symlinks=False)
                    if found.st_nlink == 1:
                        yield _left_over(path, found, now - found.st_mtime)

    def __repr__(self) -> str:
        return f"<CacheContents {self._compiled}, {self._downloaded}>"


def _left_over(path: Path, found: os.stat_result, age: float) -> Cached:
    is_new = age < _BEING_WRITTEN
    return Cached("left over", path.name, found.st_size, found.st_mtime, path, is_new)


def _name_of(file: Path) -> str:
    """Return the name of a compiled model, else that of its file."""
    from popef_io import PopefError, Reader

    reader = Reader()
    try:
        reader.parse_file(file)
        return next((each.name for each in reader.executables), "") or file.name
    except (PopefError, OSError):
        return file.name
    finally:
        reader.close()


def _url_of(folder: Path) -> str:
    """Return where the models of a folder were downloaded from, if one says so."""
    for manifest in folder.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(manifest.read_bytes())["url"])
    return ""
