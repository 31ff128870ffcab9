"""The head of a request that was answered, for the next that begins like it.

A client that keeps its connection sends the same bytes in front of every body, but for
the values of a few headers: the length, and what names the single request. What the
HTTP parser said of the rest holds for all of them, so it is parsed once: comparing
bytes takes the place of the parser and of a call for each header.

Nothing is taken for known that is not certain. A head is remembered only where one
whole request, and nothing else, lay in the bytes that were received. A later one is
known if all its bytes are those of the first but for such values; if these are plain
(ASCII that can be seen, to the end of the line); and if its Content-Length is what the
bytes behind the head are. None of these headers has a say in what becomes of a request
before its body is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from app.serving.keys import Key, KeyTable

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"
# Longer ones are not worth their memory, and a large body is worth more than its head.
_LONGEST: Final = 4096
LARGEST_BODY: Final = 64 * 1024
#: Headers whose values may differ from request to request.
VARYING: Final = frozenset(
    (
        _LENGTH,
        b"inference-header-content-length",
        b"traceparent",
        b"tracestate",
        b"x-correlation-id",
        b"x-request-id",
    )
)
_plain_at: Final = re.compile(rb"[!-~]+").match


class KnownHead:
    """A head that asks for inference at `path`; `key` let it in, by these `rules`.

    `size` is that of the head which was read last, in bytes.
    """

    __slots__ = (
        "_headers",
        "_most",
        "_rest",
        "_varying",
        "key",
        "path",
        "rules",
        "size",
    )

    def __init__(
        self,
        varying: list[tuple[bytes, int, bytes]],
        rest: bytes,
        most: int,
        path: str,
        headers: Mapping[bytes, bytes],
        key: Key | None,
        rules: KeyTable,
    ) -> None:
        # What stands in front of each value, its size, and the header's name; and what
        # stands behind the last of them.
        self._varying = varying
        self._rest = rest
        self._most = most
        self._headers = dict(headers)
        self.path = path
        self.key = key
        self.rules = rules
        self.size = 0

    @classmethod
    def of(
        cls,
        data: bytes,
        path: str,
        headers: Mapping[bytes, bytes],
        key: Key | None,
        rules: KeyTable,
        most: int = LARGEST_BODY,
        fixed: Collection[bytes] = (),
    ) -> KnownHead | None:
        """The head of the one request that `data` was parsed as; None if in doubt.

        A later body has at most `most` bytes; the headers `fixed`, in lower case, have
        to stay as they are.
        """
        size = len(data) - int(headers[_LENGTH])
        if not 0 < size <= _LONGEST or len(data) - size > LARGEST_BODY:
            return None
        head = data[:size]
        # The parser allows lines to end, and empty lines to stand in front, in ways
        # that would move the end of the head.
        if head.find(_END) != size - len(_END) or head.count(b"\n") != head.count(
            b"\r\n"
        ):
            return None
        first, *lines = head[: -len(_END)].split(b"\r\n")
        varying: list[tuple[bytes, int, bytes]] = []
        same = first
        for line in lines:
            name, _, value = line.partition(b": ")
            name = name.lower()
            plain = _plain_at(value)
            may = name in VARYING and name not in fixed
            if may and plain is not None and plain.end() == len(value):
                before = b"%b\r\n%b: " % (same, line[: len(name)])
                varying.append((before, len(before), name))
                same = b""
            else:
                same = b"%b\r\n%b" % (same, line)
        names = [name for _, _, name in varying]
        if _LENGTH not in names or len(set(names)) < len(names):
            return None
        return cls(varying, same + _END, most, path, headers, key, rules)

    def read(self, data: bytes) -> dict[bytes, bytes] | None:
        """The headers of `data`, if it is one whole request with this head; `size` then
        says where its body begins."""
        at = 0
        headers = self._headers.copy()
        for before, size, name in self._varying:
            if not data.startswith(before, at):
                return None
            at += size
            value = _plain_at(data, at)
            if value is None:
                return None
            headers[name] = value[0]
            at = value.end()
        if not data.startswith(self._rest, at):
            return None
        at += len(self._rest)
        missing = len(data) - at
        if missing > self._most or headers[_LENGTH] != b"%d" % missing:
            return None
        self.size = at
        return headers

    def __repr__(self) -> str:
        return f"<KnownHead of {self.path}, {len(self._varying)} values vary>"
