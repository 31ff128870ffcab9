"""Parts that all processes of a server share that accept connections."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

from app.config.profiles import profile_named
from app.errors import use_statuses
from app.http.tls import Certificate
from app.observe.log import set_up_logging
from app.settings import HTTP_STATUSES, Settings
from engine import keep_large_blocks, raise_descriptor_limit

GC_THRESHOLD = 20_000  # surviving containers between two collections

#: Seconds after which a thread that runs Python code lets the event loop run. Each of
#: the loop's callbacks may have to wait for it.
SWITCH_INTERVAL = 0.0005


def prepare_process(settings: Settings) -> None:
    """Set up the whole process as a server: its log, its memory, its descriptors."""
    set_up_logging(settings.log_level, settings.log_format)
    if settings.error_statuses != HTTP_STATUSES:
        use_statuses(profile_named(settings.error_statuses).statuses)
    # The interpreter's lock lets only one thread at a time allocate anyway. Free memory
    # is returned at a chosen time (`TransferMemory`), because that takes long.
    keep_large_blocks(arenas=1, returns=False)
    # A loaded model and a connection take one descriptor each, so the usual 1024 are
    # soon used up.
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL)


def spare_the_collector() -> None:
    """Freeze present objects, so that the garbage collector does not traverse them
    again.

    Requests make no cycles, so rarer collections cost no memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def certificate_of(
    settings: Settings, contents: Sequence[bytes] = ()
) -> Certificate | None:
    """Return the certificate for TLS (`Certificate`). Raises `TlsError`."""
    if settings.tls_cert is None:
        return None
    return Certificate(
        settings.tls_cert, settings.tls_key, settings.tls_client_ca, contents
    )


def server_options(settings: Settings) -> dict[str, Any]:
    """Return the options of a `GatewayServer`."""
    return {
        "drain_grace": settings.drain_grace,
        "shutdown_timeout": settings.shutdown_timeout,
        "header_timeout": settings.header_timeout,
        "upload_timeout": settings.upload_timeout,
        "send_timeout": settings.send_timeout,
        "max_connections_per_address": settings.max_connections_per_address,
    }
