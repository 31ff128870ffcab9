"""Use of httpx by the clients: TLS, proxies, streams, and the user's own clients.

Exchanges here take several times as long as over a plain connection; errors have the
same names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from popgate_client.connections import late, no_connection
from popgate_client.encodings import Parts
from popgate_client.errors import ClientError, ConnectionFailed, ServerError
from popgate_client.http1 import Answer, document_size
from popgate_client.refusals import answer_error
from popgate_client.steps import Options, RoundTrip
from popgate_client.tls import context_without_authorities, default_context

_clock = time.monotonic


def _request(client: Any, options: Options, ask: RoundTrip) -> httpx.Request:
    left = min(ask.deadline - _clock(), threading.TIMEOUT_MAX)
    if left <= 0:
        raise late(False, "connection")
    request = ask.request
    host = "localhost" if isinstance(options.address, str) else options.host
    scheme = "https" if options.secure else "http"
    body = _joined(request.document, ask.parts) if request.method != "GET" else None
    built: httpx.Request = client.build_request(
        request.method,
        f"{scheme}://{host}{request.target}",
        headers=[(b"Accept-Encoding", b"identity"), *_encoded(request.headers)],
        content=body,
        timeout=httpx.Timeout(left, connect=min(left, options.connect_timeout)),
    )
    return built


def _encoded(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield headers as bytes, because httpx would encode them as ASCII."""
    for name, value in headers:
        yield name.encode(), value.encode("latin-1")


def _joined(document: bytes, parts: Parts) -> bytes:
    pieces = [p if isinstance(p, bytes) else p.tobytes() for p in parts]
    return b"".join([document, *pieces])


@contextmanager
def _errors(options: Options) -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as e:
        raise no_connection(options, e) from None
    except httpx.PoolTimeout:
        raise late(False, "free connection") from None
    except httpx.TimeoutException:
        raise late(True, "answer") from None
    except httpx.RemoteProtocolError as e:
        if "disconnected" in str(e) or "closed" in str(e):
            raise ConnectionFailed(str(e), sent=True) from None
        raise ServerError(f"the answer is not HTTP: {e}", sent=True) from None
    except httpx.TransportError as e:
        raise ConnectionFailed(str(e) or repr(e), sent=True) from None
    except httpx.RequestError as e:  # compressed wrongly, or too many redirects
        raise ServerError(f"the answer cannot be read: {e}", sent=True) from None
    except httpx.InvalidURL as e:
        raise ClientError(f"{options.url}: {e}") from None


class _Body:
    """The pieces of an answer, up to its limits."""

    def __init__(self, options: Options, deadline: float) -> None:
        self.data = bytearray()
        self._options = options
        self._deadline = deadline

    def add(self, piece: bytes) -> None:
        self.data += piece
        if len(self.data) > self._options.max_answer:
            msg = (
                "the answer has more bytes than max_answer "
                f"({self._options.max_answer})"
            )
            raise ServerError(msg, sent=True)
        if _clock() > self._deadline:
            raise late(True, "complete answer")


def _answer(response: httpx.Response, body: bytearray) -> Answer:
    size = document_size(response.headers, len(body))
    headers: Mapping[str, str] = response.headers
    return Answer(response.status_code, headers, memoryview(body), json_length=size)


def http_options(
    options: Options, given: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """Return arguments of an httpx client, and the Unix socket, if the URL
    names one.
    """
    limits = httpx.Limits(max_connections=options.max_connections)
    uds = options.address if isinstance(options.address, str) else None
    arguments = {"limits": limits, "trust_env": False, **given}
    if options.secure and arguments.get("verify") is True:
        try:
            context = arguments["verify"] = default_context()
        except OSError as e:
            raise ClientError(f"SSL_CERT_FILE or SSL_CERT_DIR: {e}") from None
        if cert := arguments.pop("cert", None):
            files = (cert,) if isinstance(cert, str) else cert
            try:
                context.load_cert_chain(*files)
            except OSError as e:
                raise ClientError(f"cert {', '.join(map(str, files))}: {e}") from None
    elif arguments.get("verify") is True and "proxy" not in arguments:
        arguments["verify"] = context_without_authorities()
    return arguments, uds


def new_client(options: Options, given: Mapping[str, Any]) -> httpx.Client:
    """Return a blocking client of httpx."""
    arguments, uds = http_options(options, given)
    transport = httpx.HTTPTransport(verify=False, uds=uds) if uds else None
    with _option_errors(given):
        return httpx.Client(transport=transport, **arguments)


def new_async_client(options: Options, given: Mapping[str, Any]) -> httpx.AsyncClient:
    """Return one for an event loop."""
    arguments, uds = http_options(options, given)
    transport = httpx.AsyncHTTPTransport(verify=False, uds=uds) if uds else None
    with _option_errors(given):
        return httpx.AsyncClient(transport=transport, **arguments)


@contextmanager
def _option_errors(given: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, ImportError) as e:  # of a file, or of a proxy's URL
        said = ", ".join(f"{k}={v!r}" for k, v in given.items() if k != "proxy")
        raise ClientError(f"{said}: {e}") from None


def exchange(client: httpx.Client, options: Options, ask: RoundTrip) -> Answer:
    """Perform one exchange. Raises `ClientError`."""
    body = _Body(options, ask.deadline)
    with _errors(options):
        response = client.send(_request(client, options, ask), stream=True)
        try:
            for piece in response.iter_bytes():
                body.add(piece)
        finally:
            response.close()
    return _answer(response, body.data)


async def exchange_async(
    client: httpx.AsyncClient, options: Options, ask: RoundTrip
) -> Answer:
    """Perform one exchange. Raises `ClientError`."""
    body = _Body(options, ask.deadline)
    with _errors(options):
        response = await client.send(_request(client, options, ask), stream=True)
        try:
            async for piece in response.aiter_bytes():
                body.add(piece)
        finally:
            await response.aclose()
    return _answer(response, body.data)


@contextmanager
def pieces(
    client: httpx.Client, options: Options, ask: RoundTrip
) -> Iterator[Iterator[bytes]]:
    """Open an answer as it comes. Raises `ClientError`, also for an error's status."""
    with _errors(options):
        response = client.send(_request(client, options, ask), stream=True)
        try:
            if not _is_stream(response):
                response.read()
                raise _no_stream(response)
            yield _until(response.iter_bytes(), ask.deadline)
        finally:
            response.close()


@asynccontextmanager
async def pieces_async(
    client: httpx.AsyncClient, options: Options, ask: RoundTrip
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Open the pieces of an answer in an event loop."""
    with _errors(options):
        response = await client.send(_request(client, options, ask), stream=True)
        try:
            if not _is_stream(response):
                await response.aread()
                raise _no_stream(response)
            yield _until_async(response.aiter_bytes(), ask.deadline)
        finally:
            await response.aclose()


def _is_stream(response: httpx.Response) -> bool:
    media = response.headers.get("content-type", "")
    return response.status_code == 200 and media.startswith("text/event-stream")


def _no_stream(response: httpx.Response) -> ClientError:
    if response.status_code != 200:
        return answer_error(_answer(response, bytearray(response.content)))
    media = response.headers.get("content-type", "nothing")
    return ServerError(f"expected a stream of events, got {media}", status=200)


def _until(source: Iterator[bytes], deadline: float) -> Iterator[bytes]:
    for piece in source:
        if _clock() > deadline:
            raise late(True, "end of the stream")
        yield piece


async def _until_async(
    source: AsyncIterator[bytes], deadline: float
) -> AsyncIterator[bytes]:
    async for piece in source:
        if _clock() > deadline:
            raise late(True, "end of the stream")
        yield piece
