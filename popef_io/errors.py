"""Errors of containers, named by who must act.

    PopefError
      NotPopefError        the file is not a PopGate container, or a newer version
      TruncatedError       the file ends too early: needed, available
      CorruptError         a rule of the format is broken: the file is damaged
      LimitError           larger than we accept: field, value, limit
      MissingBlobError     no such blob in what was read: kind, name
      DuplicateBlobError   the same blob twice: kind, name
      InvalidValueError    the caller's value is not allowed in a container: field
      WriterStateError     the writer's state does not allow the call

The first four are about a file. They have `where`, a `Location` with file, blob and
offset. A missing or unreadable file and a full disk raise `OSError`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file, as far as it was known at the error."""

    source: str
    """Path of the file, or the name that was given to a stream."""
    offset: int
    """Bytes from the beginning of the file."""
    blob: int | None = None
    """Index of the blob in the file, from 0."""
    blob_type: str = ""
    """Name of the blob's type, `type 77` for an unknown one, empty if not read yet."""
    blob_name: str | None = None

    def __str__(self) -> str:
        parts = [self.source]
        if self.blob is not None:
            words = [f"blob {self.blob}", self.blob_type]
            if self.blob_name is not None:
                words.append(shorten(self.blob_name))
            parts.append(" ".join(word for word in words if word))
        parts.append(f"offset {self.offset}")
        return ", ".join(parts)


def shorten(text: str, length: int = 80) -> str:
    """Return `text` in quotes, escaped, and short enough for a message."""
    cut = text if len(text) <= length else text[: length - 3] + "..."
    return repr(cut)


class PopefError(RuntimeError):
    """Root of all errors of this package.

    It is a RuntimeError, as are the errors of Graphcore's Python libraries. `reason` is
    the message without the place. `where` is the place, or None.
    """

    def __init__(self, reason: str, *, where: Location | None = None) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.where = where


class NotPopefError(PopefError):
    """The file is not a PopGate container, or has an unknown version."""


class TruncatedError(PopefError):
    """The file ends before its announced end: `needed` bytes against `available`."""

    def __init__(
        self, what: str, *, needed: int, available: int, where: Location | None = None
    ) -> None:
        super().__init__(
            f"the file is truncated: {what} needs {needed} bytes, got {available}",
            where=where,
        )
        self.needed = needed
        self.available = available


class CorruptError(PopefError):
    """A rule of the format is broken; the file was damaged or made by other means."""


class LimitError(PopefError):
    """A number exceeds its limit: `field`, `value`, `limit`."""

    def __init__(
        self, name: str, value: int, limit: int, *, where: Location | None = None
    ) -> None:
        super().__init__(
            f"{name} is {value}, which exceeds the limit of {limit}", where=where
        )
        self.field = name
        self.value = value
        self.limit = limit


class MissingBlobError(PopefError):
    """A required blob is not in the files that were read: `kind` and `name`."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.name = name


class DuplicateBlobError(PopefError):
    """A blob that may exist once exists twice: `kind` and `name`."""

    def __init__(
        self, kind: str, name: str, reason: str, *, where: Location | None = None
    ) -> None:
        super().__init__(reason, where=where)
        self.kind = kind
        self.name = name


class InvalidValueError(PopefError):
    """The caller's value is not allowed in a container; `field` is its path."""

    def __init__(self, reason: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field


class WriterStateError(PopefError):
    """The state of a writer does not allow the call."""


class RuleViolation(Exception):
    """A value breaks a rule, before its place is known.

    Raised by the rules that reading and writing share, never seen outside the package:
    `popef_io.descriptor` turns it into the caller's error or the file's.
    """

    def __init__(self, reason: str, *, limit: tuple[int, int] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.limit = limit
        """(value, limit) if it is a matter of size."""
        self.path: list[str] = []
        """Field names from the innermost outwards."""

    def inside(self, name: str) -> RuleViolation:
        """Return the same violation with one more level of its place."""
        self.path.append(name)
        return self

    @property
    def field(self) -> str:
        """Return the path in full, as `anchors[3].tensor_info.shape`."""
        return ".".join(reversed(self.path)).replace(".[", "[")
