"""Download of one file into the cache: resumed, checked, logged."""

from __future__ import annotations

import errno
import hashlib
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from app.repository.model_sources import FetchStopped, RemoteError
from app.sizes import size_text
from popgate_remote.beside import beside
from popgate_remote.errors import SourceAway, SourceChanged
from popgate_remote.listing import RemoteFile
from popgate_remote.source import Source

logger = logging.getLogger(__name__)

TRIES = 5  # without progress between them, which is so many bytes:
PROGRESS = 1024
PAUSE = 0.25  # seconds before the second try; doubled for each one after it
BLOCK = 1 << 20
PROGRESS_SECONDS = 10.0


class Digest(Protocol):
    """The part of a `hashlib` object that is used."""

    def update(self, data: bytes, /) -> object: ...
    def hexdigest(self) -> str: ...


class Progress:
    """Logs the progress of a download regularly. `limit` is its most bytes; 0: no
    limit.
    """

    def __init__(
        self,
        label: str,
        total: int,
        stop: threading.Event,
        *,
        limit: int = 0,
        every: float = PROGRESS_SECONDS,
    ) -> None:
        self.label = label
        self.stop = stop
        self._total = total
        self._limit = limit
        self._every = every
        self._done = 0
        self._came = 0
        self._begin = self._last = time.monotonic()

    def add(self, count: int, *, came: bool = True) -> None:
        """Count more bytes. Raises `FetchStopped`, and `RemoteError` if there are too
        many.
        """
        if self.stop.is_set():
            raise FetchStopped("the server ends")
        self._done += count
        self._came += count if came else 0
        if self._limit and self._done > self._limit:
            msg = (
                "the model is larger than --model-download-limit "
                f"({size_text(self._limit)})"
            )
            raise RemoteError(msg)
        self._last = time.monotonic()

    def state(self) -> str:
        """Return the progress of the download, and for how long no byte has arrived."""
        share = f" ({self._done * 100 // self._total} %)" if self._total else ""
        of = f" of {size_text(self._total)}" if self._total else ""
        silent = time.monotonic() - self._last
        pace = f"no data for {silent:.0f} s"
        if silent < self._every:
            pace = str(self)
        return f"{size_text(self._done)}{of}{share}, {pace}"

    def told(self) -> AbstractContextManager[None]:
        """Log the state regularly until the block ends, even if the download stalls."""
        return beside(self._tell, "popgate-progress")

    def _tell(self, done: threading.Event) -> None:
        while not done.wait(self._every):
            logger.info("%s: %s", self.label, self.state())

    def pause(self, seconds: float) -> None:
        """Wait, or raise `FetchStopped`."""
        if self.stop.wait(seconds):
            raise FetchStopped("the server ends")

    def take_back(self, count: int) -> None:
        """Uncount bytes that must be downloaded again."""
        self._done -= count

    @property
    def came(self) -> int:
        """Return the bytes that have arrived over the network."""
        return self._came

    def __str__(self) -> str:
        seconds = time.monotonic() - self._begin
        return f"{size_text(math.ceil(self._came / max(seconds, 1e-3)))}/s"


def download(
    source: Source,
    file: RemoteFile,
    part: Path,
    progress: Progress,
    pause: float = PAUSE,
) -> str:
    """Complete `part` to the whole content of a file; return its SHA-256.

    Existing bytes of `part` are kept if the source confirms that its content is the
    same. Raises `RemoteError`, and `SourceChanged` if the content differs.
    """
    if not file.tag and not file.sha256:
        # without a tag or digest, the existing bytes may be from other content
        part.unlink(missing_ok=True)
    stated = dict(source.checksums(file))
    with _disk_explained(part), part.open("a+b") as stream:
        resumed = stream.tell()
        if file.size is not None and resumed > file.size:
            stream.truncate(0)
            resumed = 0
        try:
            sums = _receive(source, file, stream, stated, progress, pause)
            wrong = _mismatch(sums, stated)
        except SourceChanged as e:  # a whole file of unknown size cannot be resumed
            if not resumed:
                raise
            wrong = str(e)
        if wrong and resumed:  # the earlier bytes may be from other content
            logger.warning(
                "%s: %s: %s; downloading it again", progress.label, file.name, wrong
            )
            progress.take_back(stream.tell())
            stream.truncate(0)
            sums = _receive(source, file, stream, stated, progress, pause)
            wrong = _mismatch(sums, stated)
        if wrong:
            stream.truncate(0)
            raise RemoteError(f"{file.name}: {wrong}")
        stream.flush()
        os.fsync(stream.fileno())
    return sums["sha256"].hexdigest()


def _receive(
    source: Source,
    file: RemoteFile,
    stream: BinaryIO,
    stated: Mapping[str, str],
    progress: Progress,
    pause: float,
) -> dict[str, Digest]:
    """Append the missing bytes; return the digests of the whole content."""
    sums, here = _digests_of(stream, file, stated)
    progress.add(here, came=False)
    tries, most = 0, here
    while here != file.size:
        try:
            with source.open(file, here) as (start, chunks):
                if start != here:  # the source starts at the beginning again
                    progress.take_back(here)
                    stream.truncate(0)
                    sums, here = _digests_of(stream, file, stated)
                for chunk in chunks:
                    stream.write(chunk)
                    for each in sums.values():
                        each.update(chunk)
                    here += len(chunk)
                    progress.add(len(chunk))
                    if file.size is not None and here > file.size:
                        raise SourceChanged(f"{file.name} has become longer")
            if file.size is None:
                break
            if here < file.size:
                raise SourceAway(f"{file.name} ended after {size_text(here)}")
        except SourceAway as e:
            # Bytes that have come before are no progress: not all sources can resume.
            tries = 1 if here >= most + PROGRESS else tries + 1
            most = max(here, most)
            if tries >= TRIES:
                raise
            wait = pause * 2 ** (tries - 1)
            logger.warning("%s: %s; retrying in %.2g s", progress.label, e, wait)
            progress.pause(wait)
    return sums


def _digests_of(
    stream: BinaryIO, file: RemoteFile, stated: Mapping[str, str]
) -> tuple[dict[str, Digest], int]:
    """Return the digests of the present bytes, and their number."""
    sums: dict[str, Digest] = {"sha256": hashlib.sha256()}
    if "md5" in stated:
        sums["md5"] = hashlib.md5(usedforsecurity=False)
    if "git" in stated:
        sums["git"] = hashlib.sha1(
            b"blob %d\0" % (file.size or 0), usedforsecurity=False
        )
    stream.flush()
    stream.seek(0)
    here, size = 0, os.fstat(stream.fileno()).st_size
    while here < size and (block := stream.read(BLOCK)):
        here += len(block)
        for each in sums.values():
            each.update(block)
    return sums, here


def _mismatch(sums: Mapping[str, Digest], stated: Mapping[str, str]) -> str:
    """Return the fault of the content; empty if there is none."""
    for name, wanted in stated.items():
        came = sums[name].hexdigest()
        if came != wanted.lower():
            return f"its checksum is wrong: expected {name} {wanted}, got {came}"
    return ""


@contextmanager
def _disk_explained(part: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            msg = (
                f"the disk of {part.parent} is full; free space, or choose another "
                "--model-cache"
            )
            raise RemoteError(msg) from e
        raise RemoteError(
            f"{part.parent} cannot be written (--model-cache): {e}"
        ) from e
