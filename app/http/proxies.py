"""Proxies that PopGate trusts to name their clients (``--trusted-proxy``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

#: The name of callers over a Unix socket, which have no address.
UNIX = "unix"
_MOST_KNOWN = 4096
_MOST_HOPS = 32


class TrustedProxies:
    """Addresses and networks, as in ``10.0.0.0/8``, or `UNIX`.

    Raises ValueError, which names an invalid entry.
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        names = list(named)
        self._unix = UNIX in names
        self._networks = [
            ipaddress.ip_network(name, strict=False) for name in names if name != UNIX
        ]
        self._known: dict[str, bool] = {}

    @property
    def are_there(self) -> bool:
        return self._unix or bool(self._networks)

    def is_one(self, address: str) -> bool:
        """Return whether an address is a proxy's; empty stands for a Unix socket."""
        if not address:
            return self._unix
        if not self._networks:
            return False
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[address] = self._is_inside(address)
        return known

    def _is_inside(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(ip, "ipv4_mapped", None)
        return any(one in net for one in (ip, mapped) if one for net in self._networks)

    def client_of(self, peer: str, headers: Mapping[bytes, bytes]) -> str:
        """Return the address of the client: `peer`, unless that is a trusted proxy.

        In that case the result is the nearest address named by proxies that is not
        itself a trusted proxy. `headers` are in lower case.
        """
        if not self.is_one(peer):
            return peer
        given = headers.get(b"x-forwarded-for")
        hops = _listed(given) if given is not None else _forwarded(headers)
        for address in reversed(hops[-_MOST_HOPS:]):
            if not _is_address(address):
                break  # "unknown", a name, or an attacker's invention
            peer = address
            if not self.is_one(peer):
                break
        return peer

    def __repr__(self) -> str:
        return f"<TrustedProxies {self._networks}>"


def _listed(given: bytes) -> list[str]:
    return [_bare(part) for part in given.decode("latin-1").split(",")]


def _forwarded(headers: Mapping[bytes, bytes]) -> list[str]:
    """Return the addresses behind ``for=`` in the header Forwarded (RFC 7239)."""
    found = []
    for element in headers.get(b"forwarded", b"").decode("latin-1").split(","):
        for pair in element.split(";"):
            name, _, value = pair.strip().partition("=")
            if name.lower() == "for":
                found.append(_bare(value))
    return found


def _bare(value: str) -> str:
    """Return an address without quotes, brackets and port."""
    value = value.strip().strip('"')
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0] if value.count(":") == 1 else value


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
