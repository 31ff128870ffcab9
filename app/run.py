"""Runs a gateway in this process until it is told to end."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from app.errors import use_statuses
from app.gateway import Gateway
from app.http.access import Access, is_loopback
from app.http.front import InferFront
from app.http.management_socket import ManagementFront
from app.http.metrics_port import MetricsFront
from app.http.server import GatewayServer, ListenError, listen_tcp, listen_unix
from app.http.tls import Certificate, TlsError
from app.main import create_app
from app.observe.log import is_written, set_up_logging
from app.observe.metrics import MetricsRegistry
from app.other_processes import OtherProcesses
from app.serving.table import ModelTable
from app.settings import Settings
from engine import (
    NoDeviceAvailable,
    TimedOut,
    keep_large_blocks,
    raise_descriptor_limit,
)

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_NO_DEVICE = 3
GC_THRESHOLD = 20_000  # containers made and not freed again between two looks


def run_gateway(
    settings: Settings,
    *,
    on_listening: Callable[[str, str | None], None],
    on_started: Callable[[str, Gateway], None],
    on_failed: Callable[[Exception], None],
) -> int:
    """Serves until a signal ends it; the exit code of the process.

    `on_listening` gets the URL, and that of a port for metrics if there is one, as soon
    as HTTP is up; `on_started` when devices are
    attached and models loaded; `on_failed` when that is impossible. Raises
    `app.http.server.ListenError` and `engine.InvalidConfig` before anything is started.
    """
    certificate = _certificate(settings)
    listeners = Listeners(settings)
    main = listeners.main
    url = f"unix:{settings.uds}" if settings.uds else _url(settings, main)

    def started(gateway: Gateway) -> None:
        _spare_the_collector()
        on_started(url, gateway)

    def failed(error: Exception) -> None:
        no_device = isinstance(error, NoDeviceAvailable | TimedOut)
        on_failed(error)
        server.stop(EXIT_NO_DEVICE if no_device else EXIT_FAILED)

    try:
        gateway = Gateway(
            settings,
            on_started=started,
            on_failed=failed,
            others=partial(_others, settings, listeners.of_workers),
        )
        prepare_process(settings)
        app = create_app(gateway=gateway)
        options: dict[str, Any] = {
            "drain_grace": settings.drain_grace,
            "shutdown_timeout": settings.shutdown_timeout,
            "header_timeout": settings.header_timeout,
            "upload_timeout": settings.upload_timeout,
            "send_timeout": settings.send_timeout,
            "max_connections": settings.max_connections,
            "certificate": certificate,
            "sides": listeners.sides(app),
            "is_drained": lambda: gateway.is_drained,
            "on_drain": gateway.begin_drain,
            "on_reload": gateway.reload,
            "abort": gateway.abort,
        }
        sockets = [main]
        if settings.workers > 1:
            server = _supervisor(gateway, app, options)
            sockets = []  # they are the workers'
        else:
            server = GatewayServer(app, **options)
        in_models = gateway.count_unfinished  # those of workers too
        # Less the one that asks.
        gateway.count_unfinished = lambda: max(in_models(), server.unfinished() - 1)
        if certificate is not None:
            gateway.certificate_expires = lambda: certificate.expires
        metrics = listeners.metrics
        gc.freeze()
        gc.enable()
        on_listening(url, None if metrics is None else _url(settings, metrics))
        _warn_of_strangers(settings, app.access, main)
        server.run(sockets=sockets)
        gateway.journal.write_gathered()
    finally:
        listeners.close()
    if not is_written() or server.force_exit or gateway.is_busy:
        # A thread still writes, compiles or waits for a device: it is not waited for.
        if sys.stdout is not None:  # it was closed before the process began
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
        os._exit(server.exit_code)
    return server.exit_code


def _others(
    settings: Settings,
    listeners: list[socket.socket],
    table: ModelTable,
    metrics: MetricsRegistry,
) -> OtherProcesses:
    if settings.workers == 1:
        return OtherProcesses()
    # One process needs none of it.
    from app.workers.supervisor import Workers

    return Workers(settings, listeners, table, metrics)


def _supervisor(
    gateway: Gateway, app: InferFront, options: dict[str, Any]
) -> GatewayServer:
    from app.workers.server import SupervisorServer
    from app.workers.supervisor import Workers

    assert isinstance(gateway.others, Workers)
    return SupervisorServer(app, gateway.others, **options)


def prepare_process(settings: Settings) -> None:
    """Make the whole process a server: its log, its memory, its descriptors."""
    set_up_logging(settings.log_level, settings.log_format)
    use_statuses(settings.error_statuses)
    keep_large_blocks()
    # A loaded model and a connection take one each; the usual 1024 is soon used up.
    raise_descriptor_limit()


def _certificate(settings: Settings) -> Certificate | None:
    """What to speak TLS with. Raises `ListenError`."""
    if settings.tls_cert is None:
        return None
    try:
        return Certificate(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    except TlsError as e:
        msg = f"cannot speak TLS with {e}"
        raise ListenError(msg) from None


def _warn_of_strangers(
    settings: Settings, access: Access, listener: socket.socket
) -> None:
    if (
        "infer" not in access.open_groups
        or settings.tls_client_ca is not None
        or listener.family == socket.AF_UNIX
        or is_loopback(listener.getsockname()[0])
    ):
        return
    logger.warning(
        "whoever reaches %s, port %d, may run models: no key is needed; "
        "--keys FILE changes that",
        *listener.getsockname()[:2],
    )


class Listeners:
    """The sockets that are listened on, which are closed, and whose files are removed,
    together."""

    def __init__(self, settings: Settings) -> None:
        """Raises `ListenError`, with nothing left open."""
        self._open: list[socket.socket] = []
        self._files: list[Path] = []
        self.metrics: socket.socket | None = None
        self.management: socket.socket | None = None
        port, path = settings.metrics_port, settings.management_socket
        try:
            workers = settings.workers
            if settings.uds is not None:
                self.main = self._unix(settings.uds)
                self.of_workers = [self.main] * workers
            else:
                self.main = self._tcp(settings.host, settings.port)
                self.of_workers = [self.main]
                if workers > 1:
                    self._share_out(settings.host, workers)
            if port and port == settings.port and settings.uds is None:
                port = None  # all of it is there already
            if port is not None:
                self.metrics = self._tcp(settings.host, port)
            if path is not None:
                self.management = self._unix(path, private=True)
        except ListenError:
            self.close()
            raise

    def _share_out(self, host: str, workers: int) -> None:
        """A socket for each worker, among which the kernel spreads connections. All are
        kept open here: what waits in one goes to the next process of its worker."""
        port = self.main.getsockname()[1]
        # While it was there, no other server was: those that share would not notice.
        self._open.remove(self.main)
        self.main.close()
        self.of_workers = []
        for _ in range(workers):
            self.of_workers.append(listen_tcp(host, port, shared=True))
            self._open.append(self.of_workers[-1])
        self.main = self.of_workers[0]

    def _tcp(self, host: str, port: int) -> socket.socket:
        self._open.append(listen_tcp(host, port))
        return self._open[-1]

    def _unix(self, path: Path, *, private: bool = False) -> socket.socket:
        self._open.append(listen_unix(path, private=private))
        self._files.append(path)
        return self._open[-1]

    def sides(self, app: InferFront) -> list[tuple[InferFront, socket.socket]]:
        """What is served besides the main socket, and where."""
        found: list[tuple[InferFront, socket.socket]] = []
        if self.metrics is not None:
            found.append((MetricsFront(app), self.metrics))
        if self.management is not None:
            found.append((ManagementFront(app), self.management))
        return found

    def close(self) -> None:
        for listener in self._open:
            listener.close()
        for path in self._files:
            path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<Listeners {self._open}>"


def _spare_the_collector() -> None:
    """What is there now stays: the garbage collector need not walk through it again.

    Requests make no cycles, so that looking for them less often costs no memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _url(settings: Settings, listener: socket.socket) -> str:
    host, port = settings.host, listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    if ":" in shown and not shown.startswith("["):
        shown = f"[{shown}]"
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{shown}:{port}"
