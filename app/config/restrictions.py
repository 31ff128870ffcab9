"""Groups of the API that need a header (Triton: ``--http-restricted-api``).

One place decides by path which requests are restricted, before anything else handles
them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping

from app.errors import HttpError

_MODEL = r"/v[12]/models/[^/]+(/versions/[^/]+)?"
# The first matching entry gives a path's group. Names and division are Triton's.
_GROUPS: tuple[tuple[str, str], ...] = (
    ("health", rf"/v[12]/health/(live|ready|startup)|{_MODEL}/ready"),
    ("inference", rf"{_MODEL}/(infer|generate|generate_stream)"),
    ("inference", rf"{_MODEL}:predict"),
    ("model-repository", rf"/v2/repository/.*|/v1/drain|{_MODEL}/(load|unload)"),
    ("model-config", rf"{_MODEL}/config"),
    ("statistics", rf"{_MODEL}/stats|/v2/models/stats|/v1/requests(/.*)?|/v1/history"),
    ("trace", rf"/v2/trace/setting|{_MODEL}/trace/setting"),
    ("logging", r"/v2/logging|/v1/log"),
    ("shared-memory", r"/v2/(system|cuda)sharedmemory/.*"),
    ("metadata", r"/v[12](/.*)?"),
)
_PATTERNS = tuple((name, re.compile(pattern, re.DOTALL)) for name, pattern in _GROUPS)
GROUPS = tuple(dict.fromkeys(name for name, _ in _GROUPS))
_RULE = re.compile(
    r"(?P<groups>[a-z,-]+):(?P<header>[A-Za-z0-9!#$%&'*+.^_`|~-]+)=(?P<value>.+)"
)


def group_of(path: str) -> str | None:
    """Return the group of a path; None for a path outside the protocol."""
    for name, pattern in _PATTERNS:
        if pattern.fullmatch(path):
            return name
    return None


class Restrictions:
    """Groups that need a header, with the header's value."""

    def __init__(self, rules: Iterable[str] = ()) -> None:
        """Parse `rules` as in ``model-repository,logging:admin-key=secret``.

        Raises ValueError for a rule that is malformed, or that restricts a group a
        second time.
        """
        self._needed: dict[str, tuple[str, bytes]] = {}
        for rule in rules:
            match = _RULE.fullmatch(rule)
            if match is None:
                raise ValueError("a restriction is written GROUP[,GROUP]:HEADER=VALUE")
            for group in match["groups"].split(","):
                if group not in GROUPS or group in self._needed:
                    why = "twice" if group in self._needed else "which is unknown"
                    msg = f"a restriction names {group!r} {why}; groups are {GROUPS}"
                    raise ValueError(msg)
                self._needed[group] = (match["header"].lower(), match["value"].encode())

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._needed)

    @property
    def header_names(self) -> frozenset[bytes]:
        """Return the headers that some group needs, in lower case."""
        return frozenset(name.encode() for name, _ in self._needed.values())

    def __bool__(self) -> bool:
        return bool(self._needed)

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether the group of `path` needs a header, and the request has it.

        `headers` are in lower case. Raises `HttpError` (403) if the header is missing
        or wrong.
        """
        needed = self._needed.get(group_of(path) or "")
        if needed is None:
            return False
        name, value = needed
        given = headers.get(name.encode())
        if given is None or not hmac.compare_digest(given, value):
            msg = f"This API is restricted, expecting header '{name}'"
            raise HttpError(403, msg, "restricted")
        return True

    def __repr__(self) -> str:
        return f"<Restrictions {list(self._needed)}>"
