"""Run a gateway in this process until a signal ends it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Protocol

from app.assembly import gateway_of
from app.gateway import Gateway
from app.http.access import Access, is_loopback
from app.http.front import InferFront
from app.http.listeners import Listeners, inherited_sockets
from app.http.open_connections import OpenConnections
from app.http.server import GatewayServer
from app.http.sockets import ListenError
from app.http.tls import Certificate, TlsError
from app.observe.log import is_written
from app.observe.metrics import MetricsRegistry
from app.other_processes import OtherProcesses
from app.plugins import PROCESSES, first_plugin
from app.server_process import (
    certificate_of,
    prepare_process,
    server_options,
    spare_the_collector,
)
from app.service_manager import ServiceManager, state_of
from app.serving.table import ModelTable
from app.settings import Settings
from engine import InvalidConfig, NoDeviceAvailable, TimedOut, raise_descriptor_limit

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_NO_DEVICE = 3
#: The descriptors of a server with one model, one device and some connections.
_FEWEST = 64
NO_PLUGIN = (
    "no plugin that serves with several processes is installed: install one, or leave "
    "out --workers"
)


class ServerProcesses(Protocol):
    """The processes that accept the connections of a server.

    A plugin has them for `--workers N` if N is more than 1 (entry point group
    `popgate.processes`: a function of the settings and the listeners).
    """

    #: The sockets from which this process itself accepts connections.
    listeners: list[socket.socket]

    def others(self, table: ModelTable, metrics: MetricsRegistry) -> OtherProcesses:
        """Return the link to the other processes. They run the models of `table`, and
        count for `metrics`. Called once, before `server`.
        """

    def server(self, app: InferFront, options: dict[str, Any]) -> GatewayServer:
        """Return the server of this process."""


class OneProcess:
    """This process accepts all connections."""

    def __init__(self, listeners: Listeners) -> None:
        self.listeners = [listeners.main]

    def others(self, table: ModelTable, metrics: MetricsRegistry) -> OtherProcesses:
        return OtherProcesses()

    def server(self, app: InferFront, options: dict[str, Any]) -> GatewayServer:
        return GatewayServer(app, **options)


def run_gateway(
    settings: Settings,
    create_app: Callable[[Gateway], InferFront],
    *,
    on_listening: Callable[[str, str | None], None],
    on_started: Callable[[str, Gateway], None],
    on_failed: Callable[[Exception], None],
) -> int:
    """Serve until a signal ends the process; return its exit code.

    `create_app` returns the application in front of a gateway.
    `on_listening` receives the URL, and that of the metrics port if there is one, once
    HTTP is up. `on_started` is called when devices are attached and models loaded,
    `on_failed` if that is impossible. Raises `app.http.sockets.ListenError` and
    `engine.InvalidConfig` before anything is started.
    """
    _check_descriptors()
    certificate = _certificate(settings)
    make_processes = _processes_plugin(settings)
    listeners = Listeners(settings, inherited_sockets())
    manager = ServiceManager()
    url = listeners.url

    def started(gateway: Gateway) -> None:
        spare_the_collector()
        on_started(url, gateway)
        manager.look()

    def failed(error: Exception) -> None:
        no_device = isinstance(error, NoDeviceAvailable | TimedOut)
        on_failed(error)
        server.stop(EXIT_NO_DEVICE if no_device else EXIT_FAILED)

    try:
        prepare_process(settings)  # first, because a gateway may log while it is made
        processes = make_processes(settings, listeners)
        gateway = gateway_of(
            settings,
            on_started=started,
            on_failed=failed,
            make_others=processes.others,
            connections=OpenConnections(settings.max_connections),
            certificate=certificate,
        )
        app = create_app(gateway)
        options = _options(settings, gateway, app, listeners, certificate, manager)
        server = processes.server(app, options)
        gc.freeze()
        gc.enable()
        on_listening(url, listeners.metrics_url)
        _warn_of_strangers(settings, app.access, listeners.main)
        server.run(sockets=processes.listeners)
        gateway.journal.write_gathered()
    finally:
        listeners.close()
        manager.close()
    if not is_written() or server.force_exit or gateway.pools.is_busy:
        # A thread may still be writing, compiling or waiting for a device. Exit does
        # not wait for it.
        if sys.stdout is not None:  # None if it was closed before the start
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
        os._exit(server.exit_code)
    return server.exit_code


def _check_descriptors() -> None:
    """Raise `ListenError` if the descriptor limit is too low for a server."""
    # A loaded model and a connection take one descriptor each, so the usual 1024 are
    # soon used up.
    there = raise_descriptor_limit()
    if there < _FEWEST:
        msg = (
            f"this process may open {there} files, but a server needs at least "
            f"{_FEWEST}: raise the limit of file descriptors (ulimit -n, LimitNOFILE)"
        )
        raise ListenError(msg)


def _processes_plugin(
    settings: Settings,
) -> Callable[[Settings, Listeners], ServerProcesses]:
    """Return what makes the processes of a server. Raises `InvalidConfig`."""
    if settings.workers == 1:
        return lambda _, listeners: OneProcess(listeners)
    found = first_plugin(PROCESSES)
    if found is None:
        raise InvalidConfig(NO_PLUGIN)
    make_processes: Callable[[Settings, Listeners], ServerProcesses] = found
    return make_processes


def _options(
    settings: Settings,
    gateway: Gateway,
    app: InferFront,
    listeners: Listeners,
    certificate: Certificate | None,
    manager: ServiceManager,
) -> dict[str, Any]:
    def drain() -> None:
        manager.stopping()
        gateway.begin_drain()

    def reload() -> None:
        manager.reloading()
        gateway.reloading.request(manager.reloaded)

    return server_options(settings) | {
        "certificate": certificate,
        "open_connections": gateway.connections,
        "sides": listeners.sides(app),
        "kept": list(listeners.inherited.values()),
        "is_drained": lambda: gateway.stage.is_drained,
        "on_listening": lambda: manager.begin(lambda: state_of(gateway)),
        "on_drain": drain,
        "on_reload": reload,
        "abort": gateway.abort,
    }


def _certificate(settings: Settings) -> Certificate | None:
    """Return the certificate for TLS. Raises `ListenError`."""
    try:
        return certificate_of(settings)
    except TlsError as e:
        raise ListenError(f"cannot serve TLS with {e}") from None


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
        "any client that can reach %s, port %d, may run models without a key; to "
        "require keys, use --keys FILE",
        *listener.getsockname()[:2],
    )
