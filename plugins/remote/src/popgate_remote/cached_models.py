"""The remote models of a server: the files that it downloads, and when.

The server serves models from the cache only. `fetch` contacts their sources: at the
start and when models are polled, never for a request.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from app.repository.model_sources import FetchOptions, FetchStopped, Looks, RemoteError
from app.sizes import counted, size_text
from popgate_remote.download import Progress, download
from popgate_remote.errors import SourceAway, SourceChanged
from popgate_remote.listing import Listing, RemoteFile
from popgate_remote.model_cache import CacheEntry, ModelCache, Snapshot
from popgate_remote.source import Source
from popgate_remote.urls import ModelUrl

logger = logging.getLogger(__name__)

TRIES = 3  # tries if the source changes during a download
SPARE = 64 << 20  # bytes that stay free on a disk


class CachedModels:
    """Downloads remote models into a cache. Thread-safe."""

    def __init__(self, folder: Path, options: FetchOptions | None = None) -> None:
        self.options = options or FetchOptions()
        self._cache = ModelCache(folder)
        self._stop = threading.Event()
        self._problems: dict[str, str] = {}
        self._looks: dict[str, Looks] = {}
        self._rejected: dict[str, Path] = {}
        self._under_way: dict[str, Progress] = {}

    def folder_of(self, url: ModelUrl) -> Path | None:
        """Return the folder of the whole model that is served; None if there
        is none.
        """
        entry = self._entry(url)
        found = entry.current()
        if found is not None and found.folder == self._rejected.get(url.key):
            found = entry.served() or found
        return found.folder if found is not None else None

    def confirm(self, url: ModelUrl, files: Collection[Path]) -> None:
        """Record that these files serve. The cache keeps them until other files have
        served, even after a restart.
        """
        self._entry(url).confirm(files)

    def step_back(self, url: ModelUrl) -> bool:
        """Give up a snapshot that cannot be served.

        Return whether the cache has the previous one, which `folder_of` returns from
        now on.
        """
        entry = self._entry(url)
        current, served = entry.current(), entry.served()
        if current is None or served is None or current.folder == served.folder:
            return False
        self._rejected[url.key] = current.folder
        return True

    def news_of(self, url: ModelUrl) -> str:
        """Return why the newest model is not served: a running download, or the last
        error; empty if it is served.
        """
        progress = self._under_way.get(url.key)
        if progress is not None:
            return f"{url}: {progress.state()}"
        return self.problem_of(url)

    def looks_at(self, url: ModelUrl) -> Looks:
        """Return the results of the checks of a place."""
        return self._looks.get(url.key, Looks())

    def problem_of(self, url: ModelUrl) -> str:
        """Return why the last fetch failed, or nothing."""
        return self._problems.get(url.key, "")

    def names_a_place(self, reason: str) -> bool:
        """Return whether a reason names a model's place, or quotes an answer from
        there.
        """
        return any(problem in reason for problem in [*self._problems.values()])

    def preview(self, url: ModelUrl) -> tuple[Listing, set[str]]:
        """Return the present listing, and the names of its files that are in the cache.

        Fetches nothing. Raises `RemoteError`.
        """
        source = url.open()
        try:
            listing = self._listed(source)
        finally:
            source.close()
        current = self._entry(url).current()
        return listing, set(self._known(current, listing))

    def fetch(self, label: str, url: ModelUrl) -> bool:
        """Download the present files; return whether they differ from those of the
        cache.

        Blocks; `label` is for the log. If it fails and the cache has the model, it logs
        a warning, once for each reason. Raises `RemoteError` if the cache does not have
        the model, and `FetchStopped` after `stop`.
        """
        entry = self._entry(url)
        before = entry.current()
        try:
            found = self._fetched(label, url, entry)
        except FetchStopped:
            raise
        except RemoteError as e:
            looks = self.looks_at(url)
            self._looks[url.key] = replace(looks, failures=looks.failures + 1)
            told = self._problems.get(url.key)
            why = str(e) if str(url) in str(e) else f"{url}: {e}"
            self._problems[url.key] = why
            if before is None:
                raise RemoteError(why) from e
            if told != why:
                logger.warning(
                    "%s: %s; the server keeps serving the cached model", label, why
                )
            return False
        self._looks[url.key] = replace(self.looks_at(url), succeeded_at=time.time())
        if self._problems.pop(url.key, "") and before is not None:
            logger.info("%s: %s answers again", label, url)
        return before is None or found.folder != before.folder

    def drop_unused(self, url: ModelUrl, used: Collection[Path]) -> None:
        """Remove earlier downloads of the URL, except for the files in use."""
        self._entry(url).drop(used)

    def stop(self) -> None:
        """Stop running downloads; the bytes that have arrived are kept."""
        self._stop.set()

    def __repr__(self) -> str:
        return f"<CachedModels {self._cache.folder}>"

    def _key(self, url: ModelUrl) -> str:
        """Return the key of the files of a URL: code is among them only if allowed."""
        return f"{url.key}?python" if self.options.allow_python else url.key

    def _entry(self, url: ModelUrl) -> CacheEntry:
        return self._cache.entry(self._key(url))

    def _listed(self, source: Source) -> Listing:
        listing = Listing.of(
            source.files(),
            allow_python=self.options.allow_python,
            limit=self.options.limit,
        )
        files = tuple(
            f if f.tag or f.sha256 else self._read(source, f) for f in listing.files
        )
        return listing if files == listing.files else Listing(files, listing.skipped)

    def _read(self, source: Source, file: RemoteFile) -> RemoteFile:
        """Return a file with the SHA-256 of its present content, if the source states
        nothing else that would change with it.
        """
        progress = Progress(file.name, 0, self._stop, limit=self.options.limit)
        sha256, size = hashlib.sha256(), 0
        with source.open(file, 0) as (_, chunks):
            for chunk in chunks:
                sha256.update(chunk)
                size += len(chunk)
                progress.add(len(chunk))
        return replace(file, size=size, checksums=(("sha256", sha256.hexdigest()),))

    def _fetched(self, label: str, url: ModelUrl, entry: CacheEntry) -> Snapshot:
        """Fetch the present files into the cache. Raises `RemoteError`."""
        source = url.open()
        try:
            listing = self._listed(source)
            current = entry.current()
            if current is not None and current.digest == listing.digest:
                return current
            with entry.locked(self._stop):
                for _ in range(TRIES):
                    found = self._try(label, url, entry, source, listing)
                    if found is not None:
                        return found
                    listing = self._listed(source)
            raise SourceChanged("it changed again and again during the download")
        finally:
            source.close()

    def _try(
        self,
        label: str,
        url: ModelUrl,
        entry: CacheEntry,
        source: Source,
        listing: Listing,
    ) -> Snapshot | None:
        """Return the snapshot of a listing; None if the source has changed since."""
        current = entry.current()  # another process may have downloaded it meanwhile
        if current is not None and current.digest == listing.digest:
            return current
        if (found := entry.switch(listing)) is not None:
            logger.info(
                "%s: %s has the content of an earlier download, which is used",
                label,
                url,
            )
            return found
        for name in listing.skipped:
            logger.info("%s: %s is ignored", label, name)
        try:
            sha256 = self._download(label, url, current, source, listing)
        except FetchStopped:
            raise
        except RemoteError:
            if self._listed(source).digest == listing.digest:
                raise
            logger.warning(
                "%s: %s changed meanwhile; the download starts again", label, url
            )
            return None
        may_change = any(file.can_change for file in listing.files)
        if may_change and self._listed(source).digest != listing.digest:
            logger.warning(
                "%s: %s changed meanwhile; the download starts again", label, url
            )
            return None
        try:
            return entry.commit(listing, sha256, str(url))
        except OSError as e:
            raise RemoteError(
                f"the cache cannot be written (--model-cache): {e}"
            ) from e

    def _download(
        self,
        label: str,
        url: ModelUrl,
        current: Snapshot | None,
        source: Source,
        listing: Listing,
    ) -> dict[str, str]:
        """Download all missing files as blobs; return the SHA-256 of each file, by
        name.
        """
        sha256 = self._known(current, listing)
        missing = [file for file in listing.files if file.name not in sha256]
        total = sum(file.size or 0 for file in missing)
        self._check_disk(total)
        logger.info(
            "%s: downloading %s, %s, from %s",
            label,
            counted(len(missing), "file"),
            size_text(total),
            url,
        )
        begin = time.monotonic()
        progress = Progress(
            label,
            total,
            self._stop,
            limit=self.options.limit,
            every=self.options.progress_seconds,
        )
        self._under_way[url.key] = progress
        try:
            with progress.told():
                for file in missing:
                    part = self._cache.part(self._key(url), file)
                    digest = download(source, file, part, progress)
                    self._check_end(source, file, digest)
                    self._cache.keep(part, digest)
                    sha256[file.name] = digest
        finally:
            self._under_way.pop(url.key, None)
        seconds = time.monotonic() - begin
        logger.info(
            "%s: downloaded %s in %.1f s (%s)",
            label,
            size_text(progress.came),
            seconds,
            progress,
        )
        return sha256

    def _check_end(self, source: Source, file: RemoteFile, digest: str) -> None:
        """Raise `SourceAway` if a file of unknown size may be incomplete.

        A lost connection may look like its end, so it is read once more.
        """
        if file.size is None and self._read(source, file).sha256 != digest:
            raise SourceAway(f"{file.name} ended early, or has changed")

    def _known(self, current: Snapshot | None, listing: Listing) -> dict[str, str]:
        """Return the SHA-256 of the files that the cache has, by name."""
        known = current.sha256 if current is not None else {}
        found: dict[str, str] = {}
        for file in listing.files:
            digest = file.sha256 or (known.get(file.identity, "") if file.tag else "")
            if digest and self._cache.has(digest, file.size):
                found[file.name] = digest
        return found

    def _check_disk(self, size: int) -> None:
        folder = self._cache.make("parts")
        free = shutil.disk_usage(folder).free
        if size + SPARE > free:
            msg = (
                f"it has {size_text(size)}, but {folder} has only "
                f"{size_text(free)} free, of which {size_text(SPARE)} stay "
                "free; free space, or choose another --model-cache"
            )
            raise RemoteError(msg)
