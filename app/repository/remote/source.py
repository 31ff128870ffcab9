"""What every kind of place that models come from can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from app.repository.remote.listing import RemoteFile

#: Where the bytes begin that come (0 where a source cannot begin elsewhere), and they.
Reading: TypeAlias = tuple[int, Iterator[bytes]]


class Source(Protocol):
    """One model at a URL. For one thread at a time; every method blocks.

    All of them raise `RemoteError`, `SourceAway` where the same may succeed soon.
    """

    def files(self) -> Iterator[RemoteFile]:
        """Those that are there now, as they are called there."""
        ...

    def checksums(self, file: RemoteFile) -> tuple[tuple[str, str], ...]:
        """What is stated of a file's content, which may take another request."""
        ...

    def open(self, file: RemoteFile, start: int) -> AbstractContextManager[Reading]:
        """Its content from byte `start` on. Raises `SourceChanged` too."""
        ...

    def close(self) -> None:
        """Ends connections."""
        ...
