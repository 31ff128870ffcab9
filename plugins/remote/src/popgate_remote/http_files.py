"""Files over HTTP: ranges, checksums, and errors in words."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.about import VERSION
from app.repository.model_sources import RemoteError
from popgate_remote.beside import beside
from popgate_remote.errors import NotThere, SourceAway, SourceChanged
from popgate_remote.listing import MODEL_SUFFIXES, RemoteFile
from popgate_remote.source import Reading

if TYPE_CHECKING:
    import httpx

TIMEOUT = 30.0  # seconds without a byte
WATCHED = 60.0  # seconds of waiting, over which the least rate is measured:
LEAST_RATE = 1024.0  # bytes a second
MAX_DOCUMENT = 32 << 20  # most bytes of an answer that is not a file
_LIMIT = "popgate.wait_limit"  # key of the extension of an answer
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class WaitLimit:
    """Ends a wait for a head or a chunk that takes longer than `WATCHED`.

    The client's own timeout begins again with each byte. For one thread.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._since = math.inf  # when the present wait began
        self._is_over = False

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Note a new connection; httpx calls this at every step."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            made = info["return_value"].get_extra_info("socket")
            self._sockets = [*(s for s in self._sockets if s.fileno() >= 0), made]

    def watching(self) -> AbstractContextManager[None]:
        """Watch the waits of the block from a thread, as they cannot be interrupted."""
        return beside(self._watch, "popgate-wait-limit")

    def begin(self, request: httpx.Request | None = None) -> None:
        """Begin a wait. Each request of a redirect or an authentication has its own."""
        self._since, self._is_over = time.monotonic(), False

    @contextmanager
    def waiting(self, url: str) -> Iterator[None]:
        """Wait in the block. Raises `RemoteError` if that takes too long."""
        self.begin()
        try:
            yield
        except Exception as e:
            if self._is_over:
                msg = f"{_shown(url)} sends no whole answer within {WATCHED:.3g} s"
                raise RemoteError(msg) from e
            raise
        finally:
            self._since = math.inf

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(WATCHED / 4):
            if time.monotonic() - self._since > WATCHED:
                self._is_over = True
                for each in self._sockets:
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(each, socket.SHUT_RDWR)


class HttpFiles:
    """A client that reads documents and files of one server, and of servers that it
    redirects to.

    `denied` is the advice for an error if the server refuses access. Proxies and
    authorities come from the usual variables (``HTTPS_PROXY``, ``SSL_CERT_FILE``).
    `has_digest`: a digest from the operator checks the content, so redirects may lead
    to another host without TLS.
    """

    def __init__(
        self,
        denied: str,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        *,
        has_digest: bool = False,
    ) -> None:
        import httpx

        self._denied = denied
        self._limit = WaitLimit()
        check = partial(check_redirect, has_digest=has_digest)
        self.client = httpx.Client(
            auth=auth,
            timeout=TIMEOUT,
            follow_redirects=True,
            event_hooks={
                "request": [self._limit.begin],
                "response": [check, _drop_body],
            },
            headers={
                "user-agent": f"popgate/{VERSION}",
                "accept-encoding": "identity",
                **(headers or {}),
            },
        )

    def document(self, url: str, headers: Mapping[str, str] | None = None) -> Any:
        """Return the body of an answer, in JSON. Raises `RemoteError`."""
        import orjson

        try:
            return orjson.loads(self.body(url, headers)[0])
        except orjson.JSONDecodeError:
            raise RemoteError(f"{_shown(url)} answered with invalid JSON") from None

    def body(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, httpx.Headers]:
        """Read a body of bounded size, with its headers. Raises `RemoteError`."""
        with self.answer("GET", url, headers) as answer:
            return whole(answer, MAX_DOCUMENT), answer.headers

    @contextmanager
    def answer(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """Open an answer; an error status raises. Raises `RemoteError`."""
        extensions = {"trace": self._limit.note, _LIMIT: self._limit}
        with contextlib.ExitStack() as stack, self._limit.watching():
            with _explained(url), self._limit.waiting(url):
                answer = stack.enter_context(
                    self.client.stream(
                        method, url, headers=dict(headers or {}), extensions=extensions
                    )
                )
            self._check(url, answer)
            _check_is_whole(url, answer)
            yield answer

    @contextmanager
    def file(self, url: str, start: int, tag: str = "") -> Iterator[Reading]:
        """Open a file from byte `start` on.

        With a `tag` the file must still have that tag.

        Raises `RemoteError`, and `SourceChanged` for another tag.
        """
        asked = {"range": f"bytes={start}-"} if start else {}
        with self.answer("GET", url, asked) as answer:
            if tag and tag_of(answer.headers) != tag:
                raise SourceChanged(f"{_shown(url)} has changed")
            begins = 0
            if answer.status_code == 206:
                told = answer.headers.get("content-range", "")
                unit, _, rest = told.partition(" ")
                first = rest.partition("-")[0]
                if unit != "bytes" or first != str(start):
                    msg = f"{_shown(url)} sent {told!r}; expected bytes from {start} on"
                    raise RemoteError(msg)
                begins = start
            yield begins, _chunks(answer)

    def close(self) -> None:
        self.client.close()

    def _check(self, url: str, answer: httpx.Response) -> None:
        status = answer.status_code
        if status < 300:
            return
        where = _shown(url)
        if status in (401, 403):
            raise RemoteError(f"{where} denies access ({status}); {self._denied}")
        if status in (404, 410):
            raise NotThere(f"{where} does not exist ({status})")
        if status == 416:
            raise SourceChanged(f"{where} has become shorter")
        if status == 429 or status >= 500:
            raise SourceAway(f"{where} answered with status {status}")
        kind = NotThere if status == 400 else RemoteError
        raise kind(
            f"{where} answered with status {status}, which PopGate does not support"
        )


class WebSource:
    """One file at an ``https://`` URL. Its digest must be `sha256`, unless that is
    empty.
    """

    def __init__(self, url: str, sha256: str = "") -> None:
        self._url = url
        self._sha256 = sha256
        self._http = HttpFiles(
            "set its user and password in ~/.netrc",
            auth=_netrc(),
            has_digest=bool(sha256),
        )

    def files(self) -> Iterator[RemoteFile]:
        name = urllib.parse.unquote(urllib.parse.urlsplit(self._url).path)
        name = name.rsplit("/", 1)[-1]
        if not name.endswith(MODEL_SUFFIXES):
            raise RemoteError(
                "an https:// URL must name one file that ends in .onnx or .popef"
            )
        # Use GET: a URL that is signed for reading does not allow HEAD.
        with self._http.answer("GET", self._url) as answer:
            length = answer.headers.get("content-length", "")
            size = int(length) if length.isdecimal() and len(length) < 19 else None
            tag = tag_of(answer.headers)
        sums = (("sha256", self._sha256),) if self._sha256 else ()
        yield RemoteFile(name, self._url, size, tag, sums)

    def checksums(self, file: RemoteFile) -> tuple[tuple[str, str], ...]:
        return file.checksums

    @contextmanager
    def open(self, file: RemoteFile, start: int) -> Iterator[Reading]:
        with self._http.file(file.place, start, file.tag) as reading:
            yield reading

    def close(self) -> None:
        self._http.close()


def is_loopback(host: str | None) -> bool:
    return host in _LOOPBACK


def tag_of(headers: Mapping[str, str]) -> str:
    """Return a value that changes with the content: the ETag, or else the time of
    change.
    """
    return headers.get("etag", "") or headers.get("last-modified", "")


def check_redirect(answer: httpx.Response, *, has_digest: bool = False) -> None:
    """Raise RemoteError if a redirect is forbidden.

    A request with TLS may not be redirected to a URL without it. A request without TLS
    may be redirected to another host without TLS only if that host is this machine, or
    a digest checks the content. Called before the next request.
    """
    if not answer.has_redirect_location:
        return
    here = answer.request.url
    there = here.join(answer.headers["location"])
    if there.scheme == "https":
        return
    if there.scheme != "http":
        raise RemoteError(f"{here.host} redirects to a URL that is not http or https")
    if here.scheme == "https":
        raise RemoteError(f"{here.host} redirects to a URL without TLS")
    if there.host != here.host and not is_loopback(there.host) and not has_digest:
        raise RemoteError(
            f"{here.host} redirects to {there.host} without TLS; append the "
            "checksum of the file to its URL (#sha256=...)"
        )


def whole(answer: httpx.Response, most: int) -> bytes:
    """Read a body of at most `most` bytes. Raises `RemoteError`."""
    parts, size = [], 0
    for chunk in _chunks(answer):
        size += len(chunk)
        if size > most:
            raise RemoteError(
                f"{_shown(str(answer.url))} answered with more than {most} bytes"
            )
        parts.append(chunk)
    return b"".join(parts)


def _drop_body(answer: httpx.Response) -> None:
    """Leave out the body of a redirect or an error. httpx would read all of it before
    the next request, without a limit.
    """
    import httpx

    if answer.status_code >= 300:
        assert isinstance(answer.stream, httpx.SyncByteStream)
        answer.stream.close()
        answer.stream = httpx.ByteStream(b"")


def _netrc() -> Any:
    import httpx

    path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    return httpx.NetRCAuth(str(path)) if path.is_file() else None


def _chunks(answer: httpx.Response) -> Iterator[bytes]:
    """Yield the chunks of an answer. Raises `RemoteError` if they come too slowly,
    because a source that sends a byte now and then would block without end.
    """
    url = str(answer.url)
    limit = answer.request.extensions[_LIMIT]
    waited, came = 0.0, 0
    assert isinstance(answer.stream, Iterable)
    chunks = iter(answer.stream)
    with _explained(url):
        while True:
            began = time.monotonic()
            with limit.waiting(url):
                chunk = next(chunks, None)
            if chunk is None:
                return
            waited += time.monotonic() - began
            came += len(chunk)
            if waited > WATCHED:
                if came < waited * LEAST_RATE:
                    rate = f"{came / waited:.3g} bytes a second"
                    raise RemoteError(
                        f"{_shown(url)} sends only {rate}; the download was stopped"
                    )
                waited, came = 0.0, 0
            yield chunk


def _check_is_whole(url: str, answer: httpx.Response) -> None:
    """Raise RemoteError for a part that was not requested, or a coded body."""
    coding = answer.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise RemoteError(f"{_shown(url)} sent content-encoding {coding!r}")
    if answer.status_code == 206 and "range" not in answer.request.headers:
        raise RemoteError(f"{_shown(url)} sent a part (206); expected the whole")


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn errors of the network into errors of PopGate."""
    import httpx

    try:
        yield
    except httpx.TransportError as e:
        why = str(e) or type(e).__name__
        raise SourceAway(f"{urllib.parse.urlsplit(url).netloc}: {why}") from e
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        raise RemoteError(f"{_shown(url)}: {e}") from e


def _shown(url: str) -> str:
    """Return the URL without its secret parts."""
    return url.partition("?")[0]
