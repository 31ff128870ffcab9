"""Downloads in the cache, as `popgate cache` lists and removes them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from app.repository.model_sources import Cached, left_over
from popgate_remote.model_cache import LOCK, MANIFEST, ModelCache, is_used


class Downloads:
    """The downloads in the cache `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def listed(self) -> Iterator[Cached]:
        """Yield models, beginnings of downloads, and files that no model has."""
        cache, now = ModelCache(self._folder), time.time()
        for folder in cache.entries("models"):
            with contextlib.suppress(OSError):
                yield _model_in(folder)
        for path in [*cache.entries("parts"), *cache.entries("blobs")]:
            with contextlib.suppress(OSError):
                found = path.lstat()
                if found.st_nlink == 1:
                    yield left_over(path, found, now - found.st_mtime)

    def remove(self, cached: Cached) -> bool:
        """Remove a model unless a server uses it; return whether it is gone."""
        with contextlib.suppress(OSError):
            ModelCache.remove_unused(cached.path, time.time() + 1)
        return not cached.path.exists()

    def sweep(self) -> None:
        """Remove the remains of ended servers."""
        ModelCache(self._folder).sweep()

    def __repr__(self) -> str:
        return f"<Downloads {self._folder}>"


def _model_in(folder: Path) -> Cached:
    """Return the entry of the folder of a URL. Raises OSError."""
    used = (folder / LOCK).stat().st_mtime
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    name = _url_of(folder) or folder.name
    return Cached("downloaded", name, size, used, folder, is_used(folder))


def _url_of(folder: Path) -> str:
    """Return the URL that the models of a folder were downloaded from, if a manifest
    has it."""
    for manifest in folder.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(manifest.read_bytes())["url"])
    return ""
