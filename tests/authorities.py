"""Load the certificate authorities of the web once for all HTTP clients of the tests.

To load them takes as long as half the start of a server, and each client would do it,
also for a server without TLS.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from functools import cache
from typing import Any

from httpx._transports import default

_NAMES = vars(default)
_load: Callable[..., ssl.SSLContext] = _NAMES["create_ssl_context"]


def _create(
    *, verify: Any = True, cert: Any = None, trust_env: bool = True
) -> ssl.SSLContext:
    if verify is not True or cert is not None:
        return _load(verify=verify, cert=cert, trust_env=trust_env)
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR") if trust_env else ()
    return _shared(trust_env, *map(os.environ.get, names))


@cache
def _shared(trust_env: bool, *variables: str | None) -> ssl.SSLContext:
    return _load(verify=True, cert=None, trust_env=trust_env)


_NAMES["create_ssl_context"] = _create
