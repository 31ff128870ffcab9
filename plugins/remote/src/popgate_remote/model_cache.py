"""The cache of remote models: complete models only, each under its digest.

    blobs/SHA256               the content of a file
    parts/KEY                  the received part of a file
    models/NAME-KEY/           one URL
        DIGEST/...             the files of one listing: hard links of blobs
        DIGEST/.manifest.json  the names and the source of the files
        current -> DIGEST      the last download
        served -> DIGEST       the last snapshot that served

A snapshot is made beside its place and renamed. Then `current` is replaced in the same
way, so a snapshot is never incomplete. Several processes share a cache. A process that
downloads from a URL holds the lock of its folder. Processes that serve a snapshot hold
a shared lock of its manifest. A snapshot without a lock is removed once it is not the
current one. Locks are the kernel's: they end with their process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from app.repository.model_sources import FetchStopped, RemoteError
from popgate_remote.listing import Listing, RemoteFile, check_name

CURRENT = "current"
SERVED = "served"
MANIFEST = ".manifest.json"
LOCK = ".lock"
LOCK_LOOK = 0.1  # seconds between tries for a lock that another process holds
MAX_MANIFEST = 64 << 20
#: Seconds for which the cache keeps blobs of no snapshot, abandoned parts, and models
#: that no server has used. The blobs of a download belong to no snapshot until its last
#: file has come, so no download may take that long.
KEPT_BLOB = 2 * 86400.0
KEPT_PART = 7 * 86400.0
KEPT_MODEL = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole model in the cache.

    `sha256` has the digest of each file, by its identity.
    """

    folder: Path
    digest: str
    sha256: Mapping[tuple[str, int | None, str], str]


class ModelCache:
    """The folder of the cache. Thread-safe. It is created when something is stored.

    It holds snapshots until it is garbage.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))  # as a scan names the files
        self._held: dict[Path, int] = {}
        weakref.finalize(self, _close_all, self._held)
        self._lock = threading.Lock()

    def entry(self, url: str) -> CacheEntry:
        """Return the place of one URL."""
        return CacheEntry(self, url)

    def make(self, *parts: str) -> Path:
        """Make a folder of the cache, which only its user may read.

        Raises `RemoteError` if that fails.
        """
        target = self.folder.joinpath(*parts)
        try:
            if not self.folder.exists():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            msg = f"{target} cannot be created (--model-cache): {e.strerror}"
            raise RemoteError(msg) from e
        return target

    def blob(self, sha256: str) -> Path:
        return self.folder / "blobs" / sha256

    def has(self, sha256: str, size: int | None) -> bool:
        """Return whether there is a blob of this size, if one is stated."""
        with contextlib.suppress(OSError):
            found = self.blob(sha256).stat()
            return S_ISREG(found.st_mode) and size in (None, found.st_size)
        return False

    def part(self, url: str, file: RemoteFile) -> Path:
        """Return the path of a partly downloaded file. Its name contains all that
        identifies the file.
        """
        text = json.dumps([url, *file.identity])
        key = hashlib.sha256(text.encode()).hexdigest()
        return self.make("parts") / key

    def keep(self, part: Path, sha256: str) -> None:
        """Turn a complete and checked part into a blob."""
        target = self.make("blobs") / sha256
        os.chmod(part, 0o444)
        os.utime(part)  # `sweep` must treat it as new
        os.replace(part, target)

    def hold(self, folder: Path) -> bool:
        """Keep a snapshot from being removed; return False if it was removed."""
        with self._lock:
            if folder in self._held:
                return True
            try:
                fd = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
            # Do not wait: only a process that removes it holds the exclusive lock.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    self._held[folder] = fd
                    return True
            os.close(fd)
            return False

    def let_go(self, folder: Path) -> None:
        """Release a snapshot that this process does not use any more."""
        with self._lock:
            fd = self._held.pop(folder, None)
        if fd is not None:
            os.close(fd)

    def held_below(self, folder: Path) -> list[Path]:
        """Return the snapshots of one URL that this process uses."""
        with self._lock:
            return [path for path in self._held if path.parent == folder]

    def sweep(self) -> None:
        """Remove models of URLs that are not used any more, blobs of no snapshot, and
        parts that were left behind."""
        before = time.time() - KEPT_MODEL
        for path in self.entries("models"):
            with contextlib.suppress(OSError):
                self.remove_unused(path, before)
        for name, seconds in (("blobs", KEPT_BLOB), ("parts", KEPT_PART)):
            before = time.time() - seconds
            for path in self.entries(name):
                with contextlib.suppress(OSError):
                    found = path.lstat()
                    if found.st_nlink == 1 and found.st_mtime < before:
                        path.unlink()

    def entries(self, name: str) -> list[Path]:
        """Return what a folder of the cache contains."""
        with contextlib.suppress(OSError):
            return [*(self.folder / name).iterdir()]
        return []

    @staticmethod
    def remove_unused(folder: Path, before: float) -> None:
        """Remove the models of a URL, if no server has used them since `before`.

        Raises OSError.
        """
        if (folder / LOCK).stat().st_mtime >= before:
            return
        with _locked_now(folder) as is_locked:
            if not is_locked:
                return
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    _remove(path)
            if not any(path.is_dir() for path in folder.iterdir()):
                shutil.rmtree(folder)

    def __repr__(self) -> str:
        return f"<ModelCache {self.folder}>"


class CacheEntry:
    """Cache of one URL."""

    def __init__(self, cache: ModelCache, url: str) -> None:
        self._cache = cache
        key = hashlib.sha256(url.encode()).hexdigest()[:24]
        # The file tells people what is in the folder.
        words = re.sub(r"[^A-Za-z0-9]+", "-", url.split("?")[0])[:60].strip("-")
        self._path = "models", f"{words}-{key}"
        self.folder = cache.folder.joinpath(*self._path)

    def current(self) -> Snapshot | None:
        """Return the last snapshot if it is complete, and hold it from now on."""
        return self._linked(CURRENT)

    def served(self) -> Snapshot | None:
        """Return the snapshot that served last, like `current`."""
        return self._linked(SERVED)

    def confirm(self, files: Collection[Path]) -> None:
        """Record that the snapshot with these files serves, so it is kept."""
        found = {f.relative_to(self.folder) for f in files if self._has(f)}
        digests = {path.parts[0] for path in found}
        with contextlib.suppress(OSError):  # a cache may be read-only
            if len(digests) == 1 and os.readlink(self.folder / CURRENT) in digests:
                self._link(SERVED, digests.pop())

    def _has(self, file: Path) -> bool:
        return file.is_relative_to(self.folder)

    def _link(self, name: str, digest: str) -> None:
        """Point a name at a snapshot, in one step."""
        link = self.folder / f"{name}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(digest)
        link.replace(self.folder / name)

    def _linked(self, name: str) -> Snapshot | None:
        for _ in range(3):  # another process may replace it meanwhile
            try:
                digest = os.readlink(self.folder / name)
            except OSError:
                return None
            folder = self.folder / digest
            if not self._cache.hold(folder):
                continue
            found = _read_snapshot(folder)
            if found is None:
                self._cache.let_go(folder)
            with contextlib.suppress(OSError):  # a cache may be read-only
                os.utime(self.folder / LOCK)  # mark the model as used
            return found
        return None

    @contextmanager
    def locked(self, stop: threading.Event) -> Iterator[None]:
        """Hold the lock of the entry, which one process at a time may change. Raises
        `RemoteError`.
        """
        fd = self._open_lock()
        try:
            while not _try_lock(fd):
                if stop.wait(LOCK_LOOK):
                    raise FetchStopped("the server ends")
                if not os.fstat(fd).st_nlink:  # another process has removed the folder
                    old, fd = fd, self._open_lock()
                    os.close(old)
            yield
        finally:
            os.close(fd)

    def _open_lock(self) -> int:
        """Raise `RemoteError`."""
        folder = self._cache.make(*self._path)
        try:
            return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            msg = f"{folder} cannot be written (--model-cache): {e.strerror}"
            raise RemoteError(msg) from e

    def commit(self, listing: Listing, sha256: Mapping[str, str], url: str) -> Snapshot:
        """Make the blobs of a listing the snapshot of this URL that serves; needs the
        lock.

        `sha256` is by name of the file; `url` is the shown form of the source. Raises
        OSError.
        """
        folder = self._cache.make(*self._path)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        try:
            for file in listing.files:
                check_name(file.name)  # the name becomes a path
                target = made / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(self._cache.blob(sha256[file.name]), target)
            document = {
                "url": url,
                "digest": listing.digest,
                "files": [[*f.identity, sha256[f.name]] for f in listing.files],
            }
            _write(made / MANIFEST, json.dumps(document))
            made.chmod(0o700)
            target = folder / listing.digest
            self._cache.let_go(target)
            if target.exists():  # damaged: a whole one would be current
                shutil.rmtree(target)
            made.rename(target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        self._link(CURRENT, listing.digest)
        _sync(folder)
        found = self.current()
        if found is None:
            raise RemoteError(f"{target} was changed while it was written")
        return found

    def switch(self, listing: Listing) -> Snapshot | None:
        """Serve an existing earlier snapshot, if there is one; needs the lock."""
        target = self.folder / listing.digest
        if not self._cache.hold(target):
            return None
        if _read_snapshot(target) is None:
            self._cache.let_go(target)
            return None
        self._link(CURRENT, listing.digest)
        return self.current()

    def drop(self, used: Collection[Path]) -> None:
        """Remove unneeded snapshots: not the current one, not the one that served last,
        and none that another process uses or that has a file in `used`.
        """
        try:
            kept = {self.folder / os.readlink(self.folder / CURRENT)}
            # The names of snapshots are links, which lead to what is kept.
            found = [f for f in self.folder.iterdir() if not f.is_symlink()]
        except OSError:
            return
        with contextlib.suppress(OSError):
            kept.add(self.folder / os.readlink(self.folder / SERVED))
        for held in self._cache.held_below(self.folder):
            if held not in kept and not any(f.is_relative_to(held) for f in used):
                self._cache.let_go(held)
        kept |= {*self._cache.held_below(self.folder)}
        with _locked_now(self.folder) as is_locked:
            for folder in found:
                # A snapshot without a name is under construction, unless the lock is
                # free.
                is_left = is_locked or not folder.name.startswith(".")
                if folder not in kept and is_left and folder.is_dir():
                    _remove(folder)
        self._cache.sweep()


def _close_all(held: Mapping[Path, int]) -> None:
    for fd in held.values():
        os.close(fd)


def _read_snapshot(folder: Path) -> Snapshot | None:
    """Return the description of a snapshot if it is complete."""
    try:
        with (folder / MANIFEST).open("rb") as stream:
            document: Any = json.loads(stream.read(MAX_MANIFEST))
        sha256 = {}
        for name, size, tag, digest in document["files"]:
            check_name(name)
            there = (folder / name).lstat().st_size
            if size is not None and size != there:
                return None
            sha256[name, size, tag] = digest
        return Snapshot(folder, document["digest"], sha256)
    except (OSError, ValueError, KeyError, TypeError, RemoteError):
        return None


def _try_lock(fd: int) -> bool:
    """Try to lock a file that still exists; returns whether this process holds the
    lock.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink > 0


@contextmanager
def _locked_now(folder: Path) -> Iterator[bool]:
    """Lock an entry for the block if possible at once; yields whether it is locked."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _try_lock(fd)
    finally:
        os.close(fd)


def is_used(folder: Path) -> bool:
    """Return whether a process downloads to the folder of a URL or serves from it.

    Raises OSError.
    """
    with _locked_now(folder) as is_locked:
        if not is_locked:
            return True
    for manifest in folder.glob(f"*/{MANIFEST}"):
        fd = os.open(manifest, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def _remove(folder: Path) -> None:
    """Remove an unused snapshot, or the remains of one from a killed process."""
    with contextlib.suppress(OSError):
        if folder.name.startswith("."):
            shutil.rmtree(folder)
            return
        fd = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / MANIFEST).unlink()  # after this the folder is not a snapshot
            shutil.rmtree(folder)
        finally:
            os.close(fd)


def _link(blob: Path, target: Path) -> None:
    try:
        os.link(blob, target)
    except OSError:  # not every file system has hard links
        shutil.copyfile(blob, target)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
