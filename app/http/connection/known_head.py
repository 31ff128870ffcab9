"""The head of an answered request, to recognise the next request that begins alike.

A client that keeps its connection sends the same bytes before every body, except the
values of a few headers: the length and the identifiers of the single request. The
parser's result for the rest stays valid. So the gateway parses a head once and then
compares bytes, which replaces the parser and a call for each header.

The gateway accepts a head as known only if it is certain. It remembers a head only if
the received bytes were exactly one whole request. A later head is known if three
conditions hold. All its bytes equal those of the first, except these values. The values
are plain (visible ASCII up to the end of the line). Its Content-Length equals the
number of bytes behind the head. The headers that may vary do not affect a request
before its body is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from app.serving.keys import Key, KeyTable

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length"
# Longer heads are not worth their memory. Reading a large body costs more than its
# head.
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
    """A head that requests inference at `path`; `key` admitted it under these `rules`.

    `url_path` is the path with the base path. `size` is the size of the last head that
    was read, in bytes.
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
        "url_path",
    )

    def __init__(
        self,
        varying: list[tuple[bytes, int, bytes]],
        rest: bytes,
        most: int,
        path: str,
        url_path: str,
        headers: Mapping[bytes, bytes],
        key: Key | None,
        rules: KeyTable,
    ) -> None:
        # The bytes before each varying value, the value's size, and the header's name.
        # Then the bytes behind the last value.
        self._varying = varying
        self._rest = rest
        self._most = most
        self._headers = dict(headers)
        self.path = path
        self.url_path = url_path
        self.key = key
        self.rules = rules
        self.size = 0

    @classmethod
    def of(
        cls,
        data: bytes,
        path: str,
        url_path: str,
        headers: Mapping[bytes, bytes],
        key: Key | None,
        rules: KeyTable,
        most: int = LARGEST_BODY,
        fixed: Collection[bytes] = (),
    ) -> KnownHead | None:
        """Return the head of the one request in `data`; None if in doubt.

        A later body has at most `most` bytes. The headers `fixed`, in lower case, must
        stay the same.
        """
        size = len(data) - int(headers[_LENGTH])
        if not 0 < size <= _LONGEST or len(data) - size > LARGEST_BODY:
            return None
        head = data[:size]
        # The parser allows other line ends and leading empty lines, which would move
        # the end of the head.
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
        return cls(varying, same + _END, most, path, url_path, headers, key, rules)

    def read(self, data: bytes) -> dict[bytes, bytes] | None:
        """Return the headers of `data` if it is one whole request with this head.
        `size` is then the offset of its body.
        """
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
