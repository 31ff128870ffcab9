"""The server's certificate (``--tls-cert``), taken anew when its files change.

TLS itself is Python's `ssl`: 1.2 and later, its default ciphers. A connection keeps the
certificate that it began with.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.config.file_stamps import stamp_of

logger = logging.getLogger(__name__)


class TlsError(ValueError):
    """The files are no certificate and key that belong together; the message says
    why, for the user."""


class Certificate:
    """A certificate and its key, for all ports of a server.

    `key` may be None where the certificate's file has it too. With `client_ca`, clients
    need a certificate by one of the authorities of that file (mutual TLS).
    """

    def __init__(
        self, certificate: Path, key: Path | None = None, client_ca: Path | None = None
    ) -> None:
        """Raises `TlsError`."""
        self._certificate = certificate
        self._key = key or certificate
        self._client_ca = client_ca
        self._files = [
            path for path in (certificate, key, client_ca) if path is not None
        ]
        self._stamp = stamp_of(self._files)
        self.context = self._new_context()

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_into(context)
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        path = self._certificate
        try:
            # Without a function, a key with a password would be asked for on the
            # terminal.
            context.load_cert_chain(path, self._key, password=_no_password)
            path = self._client_ca or path
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as e:  # SSLError is an OSError
            raise TlsError(f"{path}: {_explain(e, self._key)}") from None

    def renew(self) -> bool:
        """Take changed files over, for connections from now on; whether that was done.

        Files that do not belong together, as they are while they are being replaced,
        change nothing and are looked at again the next time.
        """
        stamp = stamp_of(self._files)
        if stamp == self._stamp:
            return False
        try:
            # First into another one: a context that failed half-way has a certificate
            # and the key of another.
            self._new_context()
            self._load_into(self.context)
        except TlsError as e:
            logger.warning("the certificate stays as it was: %s", e)
            return False
        self._stamp = stamp
        logger.info("read the certificate again from %s", self._certificate)
        return True

    def __repr__(self) -> str:
        mutual = f", clients by {self._client_ca}" if self._client_ca else ""
        return f"<Certificate {self._certificate}{mutual}>"


#: As RFC 4514 has them; other attributes have the names that OpenSSL gives them.
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
    """What a client's certificate (`ssl.SSLSocket.getpeercert`) is called in a file of
    keys: its subject, in its own order, as in ``CN=shop,O=Example``, with a backslash
    before what would stand for something; and its other names, as in ``DNS:shop``."""
    subject = ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in certificate.get("subject", ())
    )
    others = (f"{kind}:{name}" for kind, name in certificate.get("subjectAltName", ()))
    return (subject, *others) if subject else tuple(others)


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)


def _no_password() -> str:
    msg = "the key has a password; expected one without"
    raise ValueError(msg)


def _explain(error: Exception, key: Path) -> str:
    if isinstance(error, ssl.SSLError):
        reasons = {
            "KEY_VALUES_MISMATCH": f"the key of {key} belongs to another certificate",
            "NO_START_LINE": "expected a certificate and a key in PEM form",
            "NO_CERTIFICATE_OR_CRL_FOUND": "expected certificates in PEM form",
        }
        # Without a reason it is the commonest: a file that is no PEM.
        return reasons.get(error.reason or "", error.reason or "expected PEM files")
    if isinstance(error, OSError):
        return f"{error.strerror or error} (or of {key})"
    return str(error)
