"""`Application`: what connections ask of an ASGI application before it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.codec.compression import Coding, CompressResponses, ResponseCodings
from app.http.access import Access
from app.http.asgi import Receive, Scope, Send
from app.http.proxies import TrustedProxies
from app.serving.forms import Form
from app.serving.naming_form import NamingForm
from app.serving.service import Service
from app.serving.table import ModelEntry


@dataclass(frozen=True, slots=True)
class Operation:
    """Another form of inference: POST on a model's path with `suffix` behind it, below
    `prefix`.

    `form` is called for each request. If `in_events` is true, every response is an
    event.
    """

    prefix: str
    suffix: str
    form: Callable[[], Form]
    in_events: bool = False


@dataclass(frozen=True, slots=True)
class NamingOperation:
    """Another form of inference: POST on one path, with a body that names the model.

    If `by_workers` is false, HTTP workers, which may run only some of the models, leave
    the request to the supervisor.
    """

    path: str
    form: Callable[[], NamingForm]
    by_workers: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """Options of a front. `access` decides what each client may do. All paths begin
    with `base_path`. Pages of `origins` may read answers. `methods_of` returns the
    methods of a path.
    """

    operations: Sequence[Operation] = ()
    naming: Sequence[NamingOperation] = ()
    access: Access = field(default_factory=Access)
    base_path: str = ""
    origins: Sequence[str] = ()
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    compress_responses: CompressResponses = CompressResponses.ASKED
    methods_of: Callable[[str], set[str]] = lambda path: set()


class Application(ABC):
    """An ASGI application, and its rules for requests of any kind."""

    def __init__(self, service: Service, options: FrontOptions) -> None:
        self.service = service
        self.options = options
        self.access = options.access
        self.base_path = options.base_path.encode()
        self.origins = frozenset(origin.encode() for origin in options.origins)
        self.proxies = options.proxies
        self._codings = ResponseCodings(options.compress_responses)
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
