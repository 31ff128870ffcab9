"""The head of a request that was answered, for the next that begins with the same.

A client that keeps its connection sends the same bytes in front of every body of one
length. What the HTTP parser said of them holds for all of them, so they are parsed
once: a comparison of bytes takes the place of the parser and of a call for each header.

Nothing is taken for known that is not certain. A head is remembered only where one
whole request, and nothing else, lay in the bytes that were received; then it is the
bytes in front of a body whose length it states.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.serving.keys import Key, KeyTable

_END = b"\r\n\r\n"
# Longer ones are not worth their memory, and a large body is worth more than its head.
_LONGEST = 4096
_LARGEST_BODY = 64 * 1024


class KnownHead:
    """`size` bytes that ask for inference at `path`; `total` with their body.

    `key` let it in, by these `rules`.
    """

    __slots__ = ("head", "headers", "key", "path", "rules", "size", "total")

    def __init__(
        self,
        head: bytes,
        total: int,
        path: str,
        headers: Mapping[bytes, bytes],
        key: Key | None,
        rules: KeyTable,
    ) -> None:
        self.head = head
        self.size = len(head)
        self.total = total
        self.path = path
        self.headers = headers
        self.key = key
        self.rules = rules

    @classmethod
    def of(
        cls,
        data: bytes,
        path: str,
        headers: Mapping[bytes, bytes],
        key: Key | None,
        rules: KeyTable,
    ) -> KnownHead | None:
        """The head of the one request that `data` was parsed as; None if in doubt."""
        length = int(headers[b"content-length"])
        total = len(data)
        size = total - length
        if not 0 < size <= _LONGEST or length > _LARGEST_BODY:
            return None
        head = data[:size]
        # The parser allows lines to end, and empty lines to stand in front, in ways
        # that would move the end of the head.
        if head.find(_END) != size - len(_END) or head.count(b"\n") != head.count(
            b"\r\n"
        ):
            return None
        return cls(head, total, path, headers, key, rules)

    def __repr__(self) -> str:
        return f"<KnownHead {self.size} bytes, {self.path}>"
