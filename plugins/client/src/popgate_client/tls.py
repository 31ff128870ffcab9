"""TLS of clients: the authorities that they trust."""

from __future__ import annotations

import ssl


def default_context(cafile: str | None = None) -> ssl.SSLContext:
    """Return the context of a client's connections.

    It trusts the authorities in `cafile`, else those of `SSL_CERT_FILE` and
    `SSL_CERT_DIR`, else the usual ones of the web. Raises OSError for a file that
    cannot be read.
    """
    if cafile:
        return ssl.create_default_context(cafile=cafile)
    import httpx

    return httpx.create_ssl_context()


def context_without_authorities() -> ssl.SSLContext:
    """Return the context of clients that use no TLS: loading authorities takes 20 ms.

    A connection with TLS fails.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
