"""Interface of the sources of remote models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from popgate_remote.listing import RemoteFile

#: The position of the first byte, and the bytes. It is 0 if a source cannot resume.
Reading: TypeAlias = tuple[int, Iterator[bytes]]


class Source(Protocol):
    """One model at a URL. For one thread at a time; every method blocks.

    All methods raise `RemoteError`, and `SourceAway` if a retry may succeed soon.
    """

    def files(self) -> Iterator[RemoteFile]:
        """Yield the present files under their own names."""
        ...

    def checksums(self, file: RemoteFile) -> tuple[tuple[str, str], ...]:
        """Return the stated checksums of a file's content; may need another request."""
        ...

    def open(self, file: RemoteFile, start: int) -> AbstractContextManager[Reading]:
        """Open the content from byte `start` on. Raises `SourceChanged` too."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
