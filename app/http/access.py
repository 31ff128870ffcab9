"""Who may load, unload and otherwise manage: one rule, in one place.

With a key set (`--api-key`), a management call has to carry it. With none, it has to
come from this machine: from a loopback address or a Unix socket, not through a proxy
(which would make everybody look local), and not from a web page of somebody else's
(which a browser on this machine would send for it).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from app.errors import Header, HttpError

_CHALLENGE: tuple[Header, ...] = ((b"www-authenticate", b"Bearer"),)
_FORWARDING = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

KEY_HINT = (
    "send the key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY', "
    "or as the password of basic authentication"
)
LOCAL_HINT = (
    "without an API key, management calls are taken from this machine only; "
    "start the gateway with --api-key (or POPGATE_API_KEY) to allow others"
)


def check_management(
    headers: Mapping[str, str], client: str | None, api_key: str | None
) -> None:
    """Lets a management call pass or raises `HttpError` (401, 403).

    `headers` are looked up in lower case; `client` is the peer's address, None on a
    Unix socket.
    """
    if api_key is not None:
        _check_key(headers, api_key)
        return
    why = _not_local(headers, client)
    if why:
        raise HttpError(403, f"{why}: {LOCAL_HINT}", "management_is_local")


def _check_key(headers: Mapping[str, str], api_key: str) -> None:
    given = _given_key(headers)
    if given is None:
        msg = f"management calls need the API key: {KEY_HINT}"
        raise HttpError(401, msg, "api_key_missing", _CHALLENGE)
    if not hmac.compare_digest(given.encode(), api_key.encode()):
        msg = "the API key is not the right one"
        raise HttpError(401, msg, "api_key_wrong", _CHALLENGE)


def _given_key(headers: Mapping[str, str]) -> str | None:
    key = headers.get("x-api-key")
    if key is not None:
        return key
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        return decoded.partition(":")[2]
    return None


def _not_local(headers: Mapping[str, str], client: str | None) -> str:
    """Why a call is not taken for one from this machine; empty if it is."""
    if client is not None and not _is_loopback(client):
        return f"the call comes from {client}"
    for name in _FORWARDING:
        if name in headers:
            return f"the call came through a proxy (header {name})"
    host = headers.get("host", "")
    if host and not _is_local_host(host):
        # A page that has its own name resolve to this machine (DNS rebinding).
        return f"the call is addressed to host {host!r}"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return f"the call was made by a web page of {origin}"
    return ""


def _is_local_host(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool(ip.is_loopback or (mapped is not None and mapped.is_loopback))
