"""`Application`: what connections ask of an ASGI application before it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from app.codec.compression import Coding, CompressResponses, ResponseCodings
from app.http.access import Access
from app.http.asgi import Receive, Scope, Send
from app.http.proxies import TrustedProxies
from app.serving.service import Service
from app.serving.table import ModelEntry


class Application(ABC):
    """An ASGI application, and its rules for requests of any kind.

    `access` decides what each client may do. All paths begin with `base_path`. Pages of
    `origins` may read answers.
    """

    def __init__(
        self,
        service: Service,
        access: Access | None = None,
        base_path: str = "",
        origins: Sequence[str] = (),
        proxies: TrustedProxies | None = None,
        compress_responses: CompressResponses = CompressResponses.ASKED,
    ) -> None:
        self.service = service
        self.access = access or Access()
        self.base_path = base_path.encode()
        self.origins = frozenset(origin.encode() for origin in origins)
        self.proxies = proxies or TrustedProxies()
        self.compress_responses = compress_responses
        self._codings = ResponseCodings(compress_responses)
        #: The paths of inference that can be answered without ASGI.
        self.short: dict[str, ModelEntry] = service.models.paths

    def coding_for(self, headers: Mapping[bytes, bytes]) -> Coding | None:
        """Return the coding of the answer to a request with these headers."""
        accept = headers.get(b"accept-encoding")
        return None if accept is None else self._codings.choose(accept)

    def lines_for_origin(self, origin: bytes | None) -> bytes:
        """Return the headers that let a page of an origin read an answer.

        For answers that do not come from an application.
        """
        if origin is None or not (b"*" in self.origins or origin in self.origins):
            return b""
        named = b"*" if b"*" in self.origins else origin + b"\r\nvary: Origin"
        return (
            b"access-control-allow-origin: %b\r\n"
            b"access-control-expose-headers: *\r\n" % named
        )

    @abstractmethod
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
