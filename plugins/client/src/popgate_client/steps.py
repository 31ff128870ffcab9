"""Steps of a call: round trips and pauses, and the options that shape them."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

from popgate_client.encodings import Encoding, Parts, Wanted
from popgate_client.errors import InvalidRequest
from popgate_client.http1 import check_headers

T = TypeVar("T")

LIFETIME = 1e9  # seconds; a longer time is no limit

_EXPECTED = "expected http://HOST:PORT, https://… or unix:PATH"


class Prepared(NamedTuple):
    """A request without its tensors:

    `head` is the part before them, including the document. The other fields have the
    same content for another HTTP client.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    head: bytes
    document: bytes = b""


class RoundTrip(NamedTuple):
    """One request to send, whose answer is awaited.

    `deadline` is a time of `time.monotonic`.
    """

    request: Prepared
    parts: Parts
    deadline: float


class Pause(NamedTuple):
    """A pause of so many seconds."""

    seconds: float


Steps: TypeAlias = Generator[RoundTrip | Pause, Any, T]


def seconds(name: str, value: Any) -> float:
    """Return a number of seconds, at most `LIFETIME`, which None means too. Raises
    `InvalidRequest`.
    """
    try:
        found = LIFETIME if value is None else min(float(value), LIFETIME)
    except OverflowError:
        return LIFETIME
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise InvalidRequest(f"the {name} must be a number, got {value!r:.80}")
    return found


@dataclass(frozen=True, slots=True)
class Options:
    """Options of all calls of a client. `url` is without the user and password."""

    url: str
    timeout: float | None = 60.0
    connect_timeout: float = 10.0
    retries: int = 3
    idempotent: bool = False
    max_connections: int = 100
    max_answer: int = 1 << 32
    encoding: Encoding | None = None
    headers: tuple[tuple[str, str], ...] = ()
    base: str = field(init=False)
    host: str = field(init=False)
    address: tuple[str, int] | str = field(init=False)
    secure: bool = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise InvalidRequest(f"{self.url!r}: {_EXPECTED}")
        if self.url.startswith("unix:"):
            self._set(*_socket_of(self.url), "localhost", secure=False)
            return
        url = self.url if "://" in self.url or ":/" in self.url else f"//{self.url}"
        object.__setattr__(self, "url", without_credentials(self.url))
        try:
            parts = urlsplit(url, scheme="http")
            port = parts.port
        except ValueError as e:
            raise InvalidRequest(f"{self.url}: {e}") from None
        _, at, host = parts.netloc.rpartition("@")
        if at:
            self._authorize(parts.username or "", parts.password or "")
        is_whole = not (parts.query or parts.fragment)
        if parts.scheme not in ("http", "https") or not (parts.hostname and is_whole):
            raise InvalidRequest(f"{self.url}: {_EXPECTED}")
        try:
            name = parts.hostname.encode("idna").decode()
        except UnicodeError:
            raise InvalidRequest(f"{self.url}: the host's name is not valid") from None
        if not host.isascii():
            host = name if port is None else f"{name}:{port}"
        secure = parts.scheme == "https"
        address = (name, port or (443 if secure else 80))
        self._set(address, parts.path.rstrip("/"), host, secure=secure)

    def _authorize(self, user: str, password: str) -> None:
        """Send the user and password of the URL, unless a key or header is given."""
        if not any(name.lower() == "authorization" for name, _ in self.headers):
            token = b64encode(unquote_to_bytes(f"{user}:{password}")).decode()
            line = ("Authorization", f"Basic {token}")
            object.__setattr__(self, "headers", (*self.headers, line))

    def _set(
        self, address: tuple[str, int] | str, base: str, host: str, *, secure: bool
    ) -> None:
        for name, value in (
            ("address", address), ("host", host), ("base", base), ("secure", secure),
        ):  # fmt: skip
            object.__setattr__(self, name, value)
        check_headers([*self.headers, ("Host", host), ("Path", base)])
        if any(c.isspace() for c in base):
            raise InvalidRequest(f"{self.url}: the path must not contain a space")


def without_credentials(url: str) -> str:
    """Return the URL of a server without a user and password, for messages."""
    if url.startswith("unix:"):
        return url
    return re.sub(r"^((?:[a-z]+:)?//)?[^/?#]*@", r"\1", url, flags=re.IGNORECASE)


def _socket_of(url: str) -> tuple[str, str]:
    """Return path and base path of `unix:PATH` or `unix:PATH:/BASE`.

    ``unix://`` before the path means the same. A path without a slash in front is
    relative to the current folder.
    """
    text = url.removeprefix("unix:").removeprefix("//")
    path, _, base = text.partition(":/")
    if not path:
        raise InvalidRequest(f"{url}: expected unix:PATH")
    return path, f"/{base}".rstrip("/")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of one inference. By default none is set."""

    outputs: Wanted | None = None
    parameters: Mapping[str, Any] | None = None
    priority: int = 0
    request_id: str = ""
    timeout: float | None = None
    headers: Mapping[str, str] | None = None
    sequence: tuple[int | str, bool, bool] | None = None


PLAIN = CallOptions()
