"""The content of the cache folder. It can be emptied while servers run.

Servers keep a removed compiled file open, and compile the model again at its next load.
Downloaded models in use and running downloads are kept, because their locks show the
use.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from app.plugins import MODEL_SOURCES, plugins
from app.repository.control.uploads import Uploads
from app.repository.model_sources import Cached, ModelSource, left_over

#: Files used within this many seconds are kept, because a server may be about to open
#: them.
_JUST_NOW: Final = 60.0


class CacheContents:
    """The cache of compiled files, `compiled`, and of downloads, `downloaded`."""

    def __init__(self, compiled: Path, downloaded: Path) -> None:
        self._compiled = compiled
        sources: Collection[ModelSource] = plugins(MODEL_SOURCES).values()
        #: Those of all sources that may have downloaded into the folder.
        self._downloaded = [
            source.cache(downloaded) for source in sources if downloaded.is_dir()
        ]

    def listed(self) -> list[Cached]:
        """Return the entries by kind, then the longest unused first."""
        found = [*self._compiled_files()]
        found += (each for cache in self._downloaded for each in cache.listed())
        return sorted(found, key=lambda each: (each.kind, each.used))

    def remove(self, cached: Cached) -> bool:
        """Remove one entry, unless it is in use. Return whether it is gone."""
        if cached.in_use:
            return False
        if cached.kind == "downloaded":
            return any(cache.remove(cached) for cache in self._downloaded)
        try:
            cached.path.unlink()
        except OSError:
            return False
        with contextlib.suppress(OSError):
            cached.path.parent.rmdir()
        return True

    def sweep(self) -> None:
        """Remove the remains of ended servers."""
        Uploads(self._compiled / "uploads").sweep()
        for cache in self._downloaded:
            cache.sweep()

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
                    yield left_over(path, found, age)

    def __repr__(self) -> str:
        return f"<CacheContents {self._compiled}, {self._downloaded}>"


def _name_of(file: Path) -> str:
    """Return the name of a compiled model, or else of its file."""
    from popef_io import PopefError, Reader

    reader = Reader()
    try:
        reader.parse_file(file)
        return next((each.name for each in reader.executables), "") or file.name
    except (PopefError, OSError):
        return file.name
    finally:
        reader.close()
