"""Access control: one rule for every route, checked once for each request.

Every path belongs to a group (`Group` of app/config/keys.py), or to health, which is
open to all.

- With keys (`--keys`), a request needs a key that allows its group and its model. The
  groups that the file calls anonymous need no key.
- With `--api-key` alone, management needs that key, and all else needs none.
- With neither, management calls must use the management socket, which only the server's
  own user can open. A loopback address does not identify the caller, because all
  requests through a proxy on this machine have one. `--trust-loopback` still accepts
  loopback addresses. It refuses requests that show signs of a proxy, and requests that
  a browser on this machine sends for a web page of another origin.

Triton's restrictions (app/config/restrictions.py) apply as well. If no key is set and a
restriction guards management, the header of the restriction is enough.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

from app.config.keys import KEY_GROUPS, Group
from app.config.restrictions import Restrictions, group_of
from app.errors import Header, HttpError
from app.observe.answers import OTHER
from app.serving.keys import Key, Keys, KeyTable, given_key

_BEARER: Header = (b"www-authenticate", b"Bearer")
#: The challenge for pages that people open in a browser. The browser asks for a
#: password, which is the key.
_BASIC: Header = (b"www-authenticate", b'Basic realm="PopGate", charset="UTF-8"')
_FORWARDING = (
    b"forwarded",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
    b"x-envoy-external-address",
    b"cf-connecting-ip",
    b"true-client-ip",
)
#: Headers that identify the client or the server. If such a header is repeated, some
#: servers use the first one and others the last.
_ONCE = frozenset((b"authorization", b"host", b"x-api-key"))
_MODEL = re.compile(r"/v[12]/(?:repository/(?:[^/]+/)?)?models/([^/]+)", re.DOTALL)
_STATISTICS = re.compile(r"/v2/models/stats")

KEY_HINT = (
    "send the key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY', "
    "or as the password of basic authentication"
)
_MANAGE_HINT = (
    "start the gateway with --management-socket PATH and call it there (unix:PATH), "
    "%sor with a key: --api-key (POPGATE_API_KEY) or --keys"
)
_TRUST = "with --trust-loopback to trust every client on this machine, "
_TRUSTED = (
    "--trust-loopback expects localhost, no proxy and no page of another server; "
)
_DOES: Mapping[Group, str] = {
    "infer": "inference",
    "metadata": "metadata",
    "manage": "management",
    "metrics": "metrics",
    "pages": "the pages",
}
#: Our group for each of Triton's groups. Any other group is metadata.
_OF_TRITON: Mapping[str | None, Group | None] = {
    None: "pages",
    "health": None,
    "inference": "infer",
    "model-repository": "manage",
    "shared-memory": "manage",
}
#: Groups of paths that GET only shows and POST changes.
_SETTINGS = frozenset({"trace", "logging"})


def key_group(path: str, method: str) -> Group | None:
    """Return the group of a request; None for health.

    Unknown paths belong to the group of the pages, so every path has a group.
    """
    if path == "/metrics":
        return "metrics"
    if path == "/v1/log":  # the log shows what clients have sent
        return "manage"
    group = group_of(path)
    if group in _SETTINGS:
        return "manage" if method == "POST" else "metadata"
    if group == "model-repository" and path.endswith("/index"):
        return "metadata"
    return _OF_TRITON.get(group, "metadata")


def model_of(path: str) -> str | None:
    """Return the model that a path names."""
    found = _MODEL.match(path)
    if found is None or _STATISTICS.fullmatch(path):
        return None
    return found[1].partition(":")[0]


class Trust(enum.Enum):
    """Callers that may manage without a key."""

    NOBODY = enum.auto()
    #: Callers that seem to come from a loopback address or a Unix socket.
    LOOPBACK = enum.auto()
    #: Clients that could open the management socket.
    SOCKET = enum.auto()


class Access:
    """Decides for each request, by the event loop's thread.

    A table of `keys` applies to all groups only if `keys.path` names a file. `trust`
    applies if no key is set. `groups` holds the groups of paths that plugins add, whose
    last part may be `{name}`.
    """

    def __init__(
        self,
        restrictions: Restrictions | None = None,
        keys: Keys | None = None,
        trust: Trust = Trust.NOBODY,
        groups: Mapping[str, Group] = MappingProxyType({}),
    ) -> None:
        self.restrictions = restrictions or Restrictions()
        self.keys = keys or Keys(None)
        self.trust = trust
        self._hint = _MANAGE_HINT % _TRUST
        if trust is Trust.LOOPBACK:
            self._hint = _TRUSTED + _MANAGE_HINT % ""
        self.groups = groups
        #: Whether every group needs a key, not only management.
        self._for_all = self.keys.path is not None
        self.guards_inference = self._for_all or "inference" in self.restrictions.groups
        self._once = _ONCE | self.restrictions.header_names

    @property
    def rules(self) -> KeyTable:
        """Return the current keys.

        A verdict is valid as long as this returns the same object.
        """
        return self.keys.table

    def check_once(self, given: Iterable[Header]) -> None:
        """Raise `HttpError` (400) if a header that must be unique is repeated.

        `given` are all headers of a request in which some name is repeated.
        """
        for name, count in Counter(name for name, _ in given).items():
            if count > 1 and name in self._once:
                msg = f"expected one header '{name.decode()}', got {count}"
                raise HttpError(400, msg, "repeated_header")

    @property
    def open_groups(self) -> tuple[Group, ...]:
        """Return the groups that need no key. Management is never among them."""
        groups = self.keys.table.anonymous if self._for_all else KEY_GROUPS
        closed = {"manage"}
        if "inference" in self.restrictions.groups:
            closed.add("infer")
        return tuple(g for g in KEY_GROUPS if g in groups and g not in closed)

    def check_inference(
        self, path: str, headers: Mapping[bytes, bytes], names: Sequence[str] = ()
    ) -> Key | None:
        """Do the work of `check` for an infer path of the model table."""
        self.restrictions.check(path, headers)
        return self._check_key("infer", path, headers, names) if self._for_all else None

    def check(
        self,
        path: str,
        method: str,
        headers: Mapping[bytes, bytes],
        client: str | None,
        names: Sequence[str] = (),
    ) -> Key | None:
        """Return the key that admits a request, and count the request for it.

        An inference is counted when it begins. The result is None if no key is needed.
        `headers` are in lower case. `client` is the peer's address, None on a Unix
        socket. `names` are the names in its certificate. Raises `HttpError` (401, 403,
        429).
        """
        has_header = self.restrictions.check(path, headers)
        named = f"{path.rpartition('/')[0]}/{{name}}"
        group = self.groups.get(path) or self.groups.get(named)
        if group is None or (group == "infer" and method != "POST"):
            group = key_group(path, method)
        if group is None:
            return None
        if self._for_all or (group == "manage" and self.keys.table.keys):
            key = self._check_key(group, path, headers, names)
            if key is not None and group != "infer":
                key.count_request()
            return key
        if group == "manage" and not has_header:
            why = self._distrust(headers, client)
            if why:
                raise HttpError(403, f"{why}: {self._hint}", "management_is_closed")
        return None

    def label(self, headers: Mapping[bytes, bytes], names: Sequence[str] = ()) -> str:
        """Return the name of a request's key for the counters (app/observe/answers.py),
        even if the key does not allow the request.
        """
        return self.name_of(headers, names) or OTHER if self._for_all else ""

    def name_of(self, headers: Mapping[bytes, bytes], names: Sequence[str] = ()) -> str:
        """Return the name of a request's key; empty if the key is missing or wrong."""
        key = self._key_of(given_key(headers), names)
        return "" if key is None else key.config.name

    def _key_of(self, given: bytes | None, names: Sequence[str]) -> Key | None:
        """Return the key in the request, or else the key of the client's
        certificate.
        """
        table = self.keys.table
        return table.of_certificate(names) if given is None else table.find(given)

    def _distrust(self, headers: Mapping[bytes, bytes], client: str | None) -> str:
        """Return why a call without a key may not manage; empty if it may."""
        if self.trust is Trust.NOBODY:
            return "management calls are refused"
        if self.trust is Trust.SOCKET:
            return _through_proxy(headers)
        return _not_local(headers, client)

    def _check_key(
        self,
        group: Group,
        path: str,
        headers: Mapping[bytes, bytes],
        names: Sequence[str],
    ) -> Key | None:
        table = self.keys.table
        given = given_key(headers)
        key = self._key_of(given, names)
        if key is None:
            # A wrong key is refused even if no key is needed, because the client meant
            # it to count.
            if given is None and group in table.anonymous:
                return None
            challenge = (_BASIC,) if group == "pages" else (_BEARER,)
            if given is None:
                msg = f"an API key is required for {_DOES[group]}: {KEY_HINT}"
                raise HttpError(401, msg, "api_key_missing", challenge)
            msg = "the API key is wrong"
            raise HttpError(401, msg, "api_key_wrong", challenge)
        if group in table.anonymous or key.allows(group):
            model = model_of(path)
            if model is None or key.allows_model(model):
                return key
            why = f"model '{model:.100}'"
        else:
            why = _DOES[group]
        msg = f"key '{key.config.name}' does not allow {why}"
        raise HttpError(403, msg, "key_not_allowed")

    def __repr__(self) -> str:
        return f"<Access {self.restrictions!r} {self.keys!r}>"


def _not_local(headers: Mapping[bytes, bytes], client: str | None) -> str:
    """Return why a call does not count as local; empty if it does."""
    if client is not None and not is_loopback(client):
        return f"the request comes from {client}"
    if why := _through_proxy(headers):
        return why
    host = headers.get(b"host", b"").decode("latin-1")
    if host and not _is_local_host(host):
        # DNS rebinding: a web page makes its own name resolve to this machine.
        return f"the request is addressed to host {host!r}"
    origin = headers.get(b"origin")
    if origin is not None:
        page = origin.decode("latin-1")
        if _host_of(page) != host:
            return f"the request was sent by a web page of {page}"
    return ""


def _through_proxy(headers: Mapping[bytes, bytes]) -> str:
    for name in _FORWARDING:
        if name in headers:
            return f"the request came through a proxy (header {name.decode()})"
    return ""


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_local_host(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address, also as IPv4 in IPv6."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool(ip.is_loopback or (mapped is not None and mapped.is_loopback))
