"""Keys of a running server: the key of a request, and whether it may go on now.

Belongs to the event loop's thread.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hmac
import logging
import math
import re
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from app.config.config_keys import KeyProblem
from app.config.file_stamps import stamp_of
from app.config.keys import (
    KEY_GROUPS,
    Group,
    KeyConfig,
    KeysConfig,
    digest_of,
    read_keys,
)
from app.errors import HttpError
from app.sizes import counted

logger = logging.getLogger(__name__)

#: The most valid keys that are remembered in the client's spelling, so that each is
#: hashed once.
_MOST_SEEN = 4096
_LONGEST_KEY = 1024
#: The most keys of one weight with a lane of their own at every device, if they are
#: busy.
MOST_LANES = 8


class Lanes:
    """Lanes for the keys of each weight that have requests in flight.

    Each key has its own lane as long as there are enough. With `only`, all have that
    lane: if several processes serve a key, its requests share one.
    """

    def __init__(self, only: int | None = None) -> None:
        self._only = only
        self._keys: dict[int, list[int]] = {}

    def join(self, weight: int) -> int:
        """Return a lane for one more key: the first of those with the fewest keys."""
        if self._only is not None:
            return self._only
        keys = self._keys.setdefault(weight, [0] * MOST_LANES)
        lane = keys.index(min(keys))
        keys[lane] += 1
        return lane

    def leave(self, weight: int, lane: int) -> None:
        if self._only is None:
            self._keys[weight][lane] -= 1

    def __repr__(self) -> str:
        return f"<Lanes {self._keys if self._only is None else self._only}>"


class Key:
    """The use of a key.

    `requests_per_second` is a token bucket that holds the tokens of one second, at
    least one. A key that `is_free` has no limits and no weight; only its `in_flight` is
    counted.
    """

    __slots__ = (
        "_at", "_clock", "_lanes", "_models", "_tokens",
        "config", "in_flight", "is_free", "lane", "weight",
    )  # fmt: skip

    def __init__(
        self,
        config: KeyConfig,
        clock: Callable[[], float] = time.monotonic,
        lanes: Lanes | None = None,
    ) -> None:
        self._clock = clock
        self._lanes = lanes or Lanes()
        self.weight = self.lane = 0
        self._at = clock()
        self._tokens = math.inf
        self.in_flight = 0
        self.set_up(config)

    def set_up(self, config: KeyConfig, lanes: Lanes | None = None) -> None:
        """Apply a new configuration; requests in flight are kept."""
        self.config = config
        if self.in_flight and self.weight:
            self._lanes.leave(self.weight, self.lane)
        self._lanes = lanes or self._lanes
        self.weight = config.weight or 0
        self.is_free = not (self.weight or self.is_limited)
        if self.in_flight and self.weight:
            self.lane = self._lanes.join(self.weight)
        self._models = (
            None
            if "*" in config.models
            # Without patterns, use one that matches nothing, because an empty one
            # matches everything.
            else re.compile("|".join(map(fnmatch.translate, config.models)) or "(?!)")
        )

    def allows(self, group: Group) -> bool:
        return group in self.config.groups

    def allows_model(self, name: str) -> bool:
        return self._models is None or self._models.match(name) is not None

    @property
    def is_limited(self) -> bool:
        """Return whether its use is counted."""
        config = self.config
        return config.requests_per_second is not None or config.concurrent is not None

    def count_request(self) -> None:
        """Count a request. Raises `HttpError` (429) above the rate."""
        rate = self.config.requests_per_second
        if rate is None:
            return
        now = self._clock()
        most = max(rate, 1.0)
        tokens = min(self._tokens + (now - self._at) * rate, most)
        self._at = now
        if tokens < 1:
            self._tokens = tokens
            wait = math.ceil((1 - tokens) / rate)
            after = (b"retry-after", b"%d" % wait)
            msg = f"key '{self.config.name}' is limited to {rate:g} requests/s"
            raise HttpError(429, msg, "key_rate", (after,))
        self._tokens = tokens - 1

    def enter(self) -> None:
        """Count an inference that begins; `leave` ends it.

        Raises `HttpError` (429) above the limit.
        """
        most = self.config.concurrent
        if most is not None and self.in_flight >= most:
            msg = f"key '{self.config.name}' is limited to {most} requests in flight"
            raise HttpError(429, msg, "key_concurrency", ((b"retry-after", b"1"),))
        self.count_request()
        if self.weight and not self.in_flight:
            self.lane = self._lanes.join(self.weight)
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1
        if self.weight and not self.in_flight:
            self._lanes.leave(self.weight, self.lane)

    def __repr__(self) -> str:
        return f"<Key {self.config.name}, {self.in_flight} in flight>"


class KeyTable:
    """The keys valid at one time.

    A table never changes, so a verdict stays valid as long as its table is the current
    one.
    """

    def __init__(self, keys: Iterable[Key], anonymous: Iterable[Group] = ()) -> None:
        self.keys = tuple(keys)
        self.anonymous = frozenset(anonymous)
        self._of_certificates = {
            key.config.certificate: key for key in self.keys if key.config.certificate
        }
        self._seen: dict[bytes, Key] = {}

    def find(self, given: bytes) -> Key | None:
        """Return the key with these bytes."""
        # Only valid keys are remembered, so the client had them already.
        key = self._seen.get(given)
        if key is None and 0 < len(given) <= _LONGEST_KEY:
            digest = digest_of(given)
            # All keys are compared, each in constant time.
            for candidate in self.keys:
                if hmac.compare_digest(candidate.config.sha256, digest):
                    key = candidate
            if key is not None and len(self._seen) < _MOST_SEEN:
                self._seen[given] = key
        return key

    def of_certificate(self, names: Iterable[str]) -> Key | None:
        """Return the key of a client whose certificate has these names
        (`app.http.tls.names_of`).
        """
        found = self._of_certificates
        return next((found[name] for name in names if name in found), None)

    def __repr__(self) -> str:
        return f"<KeyTable {[key.config.name for key in self.keys]}>"


class Keys:
    """The keys of a file, which is reloaded when it changes, and the key of
    ``--api-key``, which allows everything.
    """

    def __init__(
        self,
        path: Path | None,
        api_key: str | None = None,
        *,
        shared: bool = False,
        config: KeysConfig | None = None,
        has_certificates: bool = True,
    ) -> None:
        """Load the keys.

        With `shared`, other processes serve the same keys. `config` is the content of
        the file that such a process uses; without it, the file is read. Unless
        `has_certificates`, clients show no certificates. Raises `KeyProblem`, and
        OSError for a file that cannot be read.
        """
        self.path = path
        self._shared = shared
        self._has_certificates = has_certificates
        self._more: tuple[KeyConfig, ...] = ()
        if api_key is not None:
            digest = digest_of(api_key.encode())
            self._more = (KeyConfig("(--api-key)", digest, KEY_GROUPS),)
        self._known: dict[str, Key] = {}
        self._lanes = Lanes()
        self._stamp = () if path is None or config else stamp_of([path])
        self._problem = ""
        if config is None:
            config = KeysConfig() if path is None else self._read(path)
        self.table = self._table_of(config)

    def _read(self, path: Path) -> KeysConfig:
        config = read_keys(path)
        named = [key.name for key in config.key if key.certificate]
        if named and not self._has_certificates:
            msg = (
                f"key {named[0]!r} requires a client certificate; set "
                "--tls-client-ca so that the server requests one"
            )
            raise KeyProblem(msg)
        return config

    def _table_of(self, config: KeysConfig) -> KeyTable:
        wanted = (*config.key, *self._more)
        known = self._known
        self._known = {}
        weights: Counter[int | None] = Counter()
        for item in wanted:
            lanes = self._lanes
            if self._shared:
                lanes = Lanes(weights[item.weight] % MOST_LANES)
                weights[item.weight] += 1
            key = known.get(item.name)
            if key is None:
                key = Key(item, lanes=lanes)
            else:
                key.set_up(item, lanes)
            self._known[item.name] = key
        #: The content of the file in use.
        self.config = config
        return KeyTable(self._known.values(), config.anonymous)

    def read_again(self) -> KeysConfig | None:
        """Return the new content of the file if it has changed. For another thread.

        An unreadable file is logged once, and the keys stay unchanged.
        """
        if self.path is None:
            return None
        stamp = stamp_of([self.path])
        # The disk may have been the problem, which the stamp does not show.
        if stamp == self._stamp and not self._problem:
            return None
        self._stamp = stamp
        before, self._problem = self._problem, ""
        try:
            return self._read(self.path)
        except KeyProblem as e:
            self._problem = str(e)
        except OSError as e:
            self._problem = e.strerror or str(e)
        if self._problem != before:
            text = "keys were not reloaded, the former ones stay in use: %s: %s"
            logger.error(text, self.path, self._problem)
        return None

    def take_over(self, config: KeysConfig) -> None:
        """Use these keys from now on. Requests in flight continue."""
        were = {name: key.config for name, key in self._known.items()}
        self.table = self._table_of(config)
        changes = _changes(were, {name: k.config for name, k in self._known.items()})
        count = counted(len(config.key), "key")
        logger.info("reloaded %s from %s%s", count, self.path, changes)

    def __repr__(self) -> str:
        return f"<Keys {self.path}, {self.table!r}>"


def _changes(before: Mapping[str, KeyConfig], now: Mapping[str, KeyConfig]) -> str:
    """Return the names of added, removed and changed keys, for the log."""
    kinds = {
        "added": now.keys() - before.keys(),
        "removed": before.keys() - now.keys(),
        "changed": {n for n in before.keys() & now.keys() if before[n] != now[n]},
    }
    return "".join(
        f"; {kind} {textwrap.shorten(', '.join(sorted(names)), 200)}"
        for kind, names in kinds.items()
        if names
    )


def given_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the key of a request from X-API-Key, a bearer token, or the basic
    password.

    `headers` are in lower case.
    """
    key = headers.get(b"x-api-key")
    if key is not None:
        return key
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    scheme = scheme.lower()
    if scheme == b"bearer":
        return value.strip()
    if scheme == b"basic":
        try:
            decoded = base64.b64decode(value.strip(), validate=True)
        except binascii.Error:
            return None
        return decoded.partition(b":")[2]
    return None
