"""The server's certificate (``--tls-cert``), reloaded when its files change.

TLS itself is Python's `ssl` (app/http/handshake.py). A connection keeps the certificate
that it began with.
"""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.config.file_stamps import stamp_of
from app.config.model_files import read_bytes
from app.http.handshake import ServerContext

logger = logging.getLogger(__name__)

DAY = 86400.0
#: The log warns this long before a certificate expires.
WARN_BEFORE = 7 * DAY
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which `ssl` has no name.
_NO_CHECK_TIME = 0x200000
#: The most bytes of a file. A system's bundle of authorities has a fifth of that.
_LARGEST_FILE = 1 << 20


class TlsError(ValueError):
    """The files are not a certificate and its key; the message tells the user why."""


class Certificate:
    """A certificate and its key, for all ports of a server.

    `key` may be None if the certificate's file contains it. With `client_ca`, clients
    need a certificate of an authority in that file (mutual TLS). `contents` are those
    of the files that another process of the server uses; without them, the files are
    read.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path | None = None,
        client_ca: Path | None = None,
        contents: Sequence[bytes] = (),
    ) -> None:
        """Raise `TlsError`."""
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._files = [
            path for path in (certificate, key, client_ca) if path is not None
        ]
        self._stamp = () if contents else stamp_of(self._files)
        self._problem = ""
        self.context = ServerContext()
        read = contents or self._read()
        self._load_into(self.context, read)
        self._use(read, _times_of(certificate, self.context, read[0]))

    def _use(
        self, contents: Sequence[bytes], times: tuple[float, float] | None
    ) -> None:
        #: The contents of the files that are in use.
        self.contents = contents
        self._begins = None if times is None else times[0]
        #: When it expires, in seconds since 1970; None if that is unknown.
        self.expires = None if times is None else times[1]
        self._tell_at = math.inf if self.expires is None else self.expires - WARN_BEFORE

    def _read(self) -> list[bytes]:
        """Return the contents of the files, read once so that all users see
        the same.
        """
        found = []
        for path in self._files:
            try:
                found.append(read_bytes(path, _LARGEST_FILE))
            except ValueError as e:
                raise TlsError(f"{path}: {e}") from None
        return found

    def _load_into(self, context: ssl.SSLContext, read: Sequence[bytes]) -> None:
        path, key_path = self._certificate, self._key or self._certificate
        chain, key = read[0], read[1 if self._key else 0]
        if b"CERTIFICATE-----" not in chain:
            raise TlsError(f"{path}: the file holds no certificate in PEM form")
        if b"PRIVATE KEY-----" not in key:
            hint = "" if self._key else "; name the file with the key by --tls-key"
            raise TlsError(
                f"{key_path}: the file holds no private key in PEM form{hint}"
            )
        try:
            with _file_of(chain) as chain_file, _file_of(key) as key_file:
                # Without a function, `ssl` would ask for a key's password on the
                # terminal.
                context.load_cert_chain(chain_file, key_file, password=_no_password)
        except ssl.SSLError as e:
            if e.reason == "KEY_VALUES_MISMATCH":
                msg = (
                    f"{path}: the private key in {key_path} does not match the "
                    "certificate"
                )
            else:
                msg = (
                    f"{path}: the certificate, or the key in {key_path}, is damaged "
                    "or incomplete"
                )
            raise TlsError(msg) from None
        except ValueError as e:
            raise TlsError(f"{key_path}: {e}") from None
        if self._client_ca is not None:
            try:
                with _file_of(read[-1]) as authorities:
                    context.load_verify_locations(authorities)
            except ssl.SSLError:
                msg = f"{self._client_ca}: expected certificates in PEM form"
                raise TlsError(msg) from None
            context.verify_mode = ssl.CERT_REQUIRED

    def renew(self) -> bool:
        """Use changed files for new connections, and return whether they were used.

        Files that do not match, as in the middle of a replacement, change nothing. They
        are reported once and checked again the next time.
        """
        self._tell_end()
        stamp = stamp_of(self._files)
        if stamp == self._stamp:
            return False
        try:
            read = self._read()
            # Load into another context first. If loading fails half-way, a context
            # holds a certificate with the key of another.
            fresh = ServerContext()
            self._load_into(fresh, read)
            times = _times_of(self._certificate, fresh, read[0])
            self._check_times(times)
            self._load_into(self.context, read)
        except (TlsError, OSError) as e:  # or no descriptor is left
            if str(e) != self._problem:
                self._problem = str(e)
                logger.error(
                    "the certificate was not reloaded, the old one stays in use: %s", e
                )
            return False
        self._use(read, times)
        self._stamp, self._problem = stamp, ""
        logger.info("reloaded the certificate from %s", self._certificate)
        return True

    def _check_times(self, times: tuple[float, float] | None) -> None:
        """Raise `TlsError` if an invalid certificate would replace a valid one."""
        now = time.time()
        if self.expires is None or self._begins is None or times is None:
            return
        begins, ends = times
        if not self._begins <= now < self.expires or begins <= now < ends:
            return
        why = "it has expired" if ends <= now else "it is not valid yet"
        raise TlsError(f"{self._certificate}: {why}")

    def _tell_end(self) -> None:
        """Warn once a day that the certificate has expired or will expire soon."""
        now = time.time()
        if now < self._tell_at or self.expires is None:
            return
        self._tell_at = now + DAY
        verb = "expires" if now < self.expires else "has expired:"
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.expires))
        logger.warning("the certificate of %s %s %s", self._certificate, verb, when)

    def __repr__(self) -> str:
        mutual = f", clients by {self._client_ca}" if self._client_ca else ""
        return f"<Certificate {self._certificate}{mutual}>"


#: The names of RFC 4514. Other attributes have OpenSSL's names.
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_SPECIAL = re.compile(r'([,+"\\<>;=])')


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a client's certificate in a file of keys.

    The first is its subject in its own order, as in ``CN=shop,O=Example``, with a
    backslash before special characters. The alternative names follow, as in
    ``DNS:shop``. `certificate` comes from `ssl.SSLSocket.getpeercert`.
    """
    subject = ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in certificate.get("subject", ())
    )
    others = (f"{kind}:{name}" for kind, name in certificate.get("subjectAltName", ()))
    return (subject, *others) if subject else tuple(others)


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)


def _no_password() -> str:
    raise ValueError("the private key has a password; expected a key without one")


def _times_of(
    path: Path, context: ssl.SSLContext, chain: bytes
) -> tuple[float, float] | None:
    """Return when the certificate in file `path` becomes valid and when it expires.

    The times are those that a client receives. Raises `TlsError` if they are invalid.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.verify_flags |= _NO_CHECK_TIME
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        with _file_of(chain) as file:
            client.load_verify_locations(file)
        ours = context.wrap_bio(into, out, server_side=True)
        theirs = client.wrap_bio(out, into)
        for side in (theirs, ours, theirs):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        found = theirs.getpeercert()
        if not found:
            return None
        begins, ends = str(found["notBefore"]), str(found["notAfter"])
        return ssl.cert_time_to_seconds(begins), ssl.cert_time_to_seconds(ends)
    except ssl.SSLError:  # no client would accept it
        return None
    except ValueError as e:  # `ssl` loads certificates with times of any digits
        raise TlsError(f"{path}: the period of validity cannot be read: {e}") from None


@contextmanager
def _file_of(data: bytes) -> Iterator[str]:
    """Yield a file in memory with these bytes, because `ssl` reads certificates from
    files only.
    """
    with open(os.memfd_create("certificate"), "wb", buffering=0) as file:
        file.write(data)
        yield f"/proc/self/fd/{file.fileno()}"
