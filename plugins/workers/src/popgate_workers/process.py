"""The worker process. Started by supervisor.py, never imported.

It has the supervisor's socket, and the read end of a pipe that the supervisor holds
open. When the supervisor dies in any way, the kernel ends this process.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from app.api.plugin_routes import access_groups, plugin_routes
from app.codec.compression import CompressResponses
from app.http.access import Access
from app.http.application import FrontOptions
from app.http.open_connections import OpenConnections
from app.http.proxies import TrustedProxies
from app.http.server import GatewayServer
from app.observe.access_log import AccessLog
from app.observe.answers import OTHER, Answers
from app.observe.journal import Journal, span_recorder
from app.observe.log import LogControl, is_written
from app.server_process import (
    certificate_of,
    prepare_process,
    server_options,
    spare_the_collector,
)
from app.serving.keys import Keys
from app.serving.service import Service
from app.serving.transfer_memory import TransferMemory
from app.settings import Settings
from engine import die_with, leave_ending_to_owner
from popgate_workers.front import WorkerFront
from popgate_workers.messages import START, Files, Start, document_in
from popgate_workers.relay import Relay
from popgate_workers.shared_counters import CounterSegment
from popgate_workers.shared_totals import SharedTotals
from popgate_workers.worker import Worker

#: Loggers of what the supervisor reads and logs, too.
_SAID_BY_SUPERVISOR = ("app.http.tls", "app.serving.keys")


class WorkerServer(GatewayServer):
    """Runs a worker's connections. Ends when the supervisor requests it, because the
    supervisor handles the signals.
    """

    def __init__(self, front: WorkerFront, worker: Worker, **options: Any) -> None:
        super().__init__(
            front,
            is_drained=lambda: worker.is_drained,
            on_listening=worker.say_listening,
            abort=worker.abort,
            **options,
        )
        self._worker = worker

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker.start(self)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._worker.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="popgate-worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--owner-fd", type=int, required=True)
    options: Any = parser.parse_args(arguments)
    leave_ending_to_owner()
    die_with(options.owner_fd)
    sock = socket.socket(fileno=options.control_fd)
    start, (counters_fd, totals_fd, listener_fd, files_fd) = START.receive(sock)
    files = msgspec.msgpack.decode(document_in(files_fd, start.files), type=Files)
    settings = Settings(**start.settings)
    prepare_process(settings)
    spans = span_recorder()
    journal = Journal(AccessLog.of(settings.access_log, settings.workers), spans)
    keyless = "" if settings.keys is None else OTHER
    counters = CounterSegment.attach(counters_fd, keyless)
    connections = OpenConnections(settings.max_connections)
    worker = _worker(sock, counters, journal, settings, start, files, connections)
    totals = SharedTotals.attach(totals_fd, start.workers + 1)
    listener = socket.socket(fileno=listener_fd)
    server = _server(
        worker, journal, settings, start, files, totals, counters.answers, listener,
        connections,
    )  # fmt: skip
    spare_the_collector()
    server.run(sockets=[listener])
    journal.write_gathered()
    if spans is not None:
        spans.close()
    is_written()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    return server.exit_code


def _worker(
    sock: socket.socket,
    counters: CounterSegment,
    journal: Journal,
    settings: Settings,
    start: Start,
    files: Files,
    connections: OpenConnections,
) -> Worker:
    control = LogControl(settings.log_level, settings.log_format)
    for name in _SAID_BY_SUPERVISOR:
        logging.getLogger(name).disabled = True
    secret = settings.api_key
    key = None if secret is None else secret.get_secret_value()
    worker = Worker(
        start.number,
        sock,
        counters,
        settings.limits,
        Keys(
            settings.keys,
            key,
            shared=True,
            config=files.keys,
            has_certificates=settings.tls_client_ca is not None,
        ),
        control,
        journal,
        settings.shutdown_timeout,
        connections.state.connections,
        is_drained=start.is_drained,
    )
    if start.log is not None:
        control.apply(start.log)
    if start.access is not None:
        journal.set_access(start.access)
    return worker


def _server(
    worker: Worker,
    journal: Journal,
    settings: Settings,
    start: Start,
    files: Files,
    totals: SharedTotals,
    answers: Answers,
    listener: socket.socket,
    connections: OpenConnections,
) -> WorkerServer:
    number = start.number
    added = plugin_routes(settings)
    transfers = TransferMemory(settings.transfer_memory, totals.bytes_held(number))
    front = WorkerFront(
        worker,
        Relay(start.relay),
        Service(
            worker.table,
            timeout=settings.request_timeout,
            transfers=transfers,
            journal=journal,
            answers=answers,
        ),
        FrontOptions(
            access=Access(
                settings.restrictions, worker.keys, groups=access_groups(added)
            ),
            operations=(*(operation for one in added for operation in one.operations),),
            naming=[op for one in added for op in one.naming if op.by_workers],
            compress_responses=CompressResponses(settings.compress_responses),
            base_path=settings.base_path,
            origins=settings.allow_origin,
            proxies=TrustedProxies(settings.trusted_proxy),
        ),
    )
    return WorkerServer(
        front,
        worker,
        open_connections=connections,
        **server_options(settings),
        # Without a limit, only the descriptors bound connections, and each process has
        # its own.
        connections=totals.connections(number) if settings.max_connections else None,
        certificate=certificate_of(settings, files.tls),
        kept=[listener] if start.keeps_listener else [],
    )


if __name__ == "__main__":
    # The interpreter's own exit would wait for threads.
    os._exit(main())
