"""Asking a running gateway, for commands: where it is, with which key, and what to say
where it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.cli.errors import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    import httpx

TIMEOUT = 5.0  # seconds for an answer


@contextmanager
def asking(url: str, key: str) -> Iterator[httpx.Client]:
    """A client of the gateway at `url` (``unix:PATH`` too). What HTTP raises within
    becomes a `CommandError`, an error status (`raise_for_status`) in its own words."""
    import httpx

    headers = {"x-api-key": key} if key else {}
    transport, base = None, url
    try:
        if url.startswith("unix:"):
            path = "/" + url.removeprefix("unix:").lstrip("/")  # unix:///path too
            transport, base = httpx.HTTPTransport(uds=path), "http://localhost"
        with httpx.Client(
            base_url=base, headers=headers, timeout=TIMEOUT, transport=transport
        ) as client:
            yield client
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
        raise CommandError(f"the address {url!r}: {e}", EXIT_USAGE) from None
    except httpx.HTTPStatusError as e:
        kind = str(e.response.headers.get("content-type", ""))
        said = e.response.json() if "json" in kind else {}
        why = said.get("error") or e.response.reason_phrase
        raise CommandError(f"{e.request.url}: {why}") from None
    except httpx.HTTPError as e:
        msg = f"no answer from {url}: {e}; is `popgate serve` running there?"
        raise CommandError(msg) from None
