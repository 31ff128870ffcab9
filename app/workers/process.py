"""The worker process. Started by app/workers/supervisor.py, never imported.

It has the supervisor's socket, and the read end of a pipe that the supervisor holds
open: when that dies, however it does, the kernel ends this process.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from app.api.routes import generate, kserve_v1
from app.codec.compression import CompressResponses
from app.errors import use_statuses
from app.http.access import Access
from app.http.relay import Relay
from app.http.server import GatewayServer
from app.http.tls import Certificate
from app.limits import DEFAULT_LIMITS
from app.observe.access_log import AccessLog, parse_ratio
from app.observe.journal import Journal
from app.observe.log import LogControl, LogSettings, is_written, set_up_logging
from app.observe.shared_counters import CounterSegment
from app.observe.shared_totals import SharedTotals
from app.observe.spans import spans_of_environment
from app.serving.keys import Keys
from app.serving.service import Service
from app.serving.transfer_memory import TransferMemory
from app.settings import Settings
from app.workers.front import WorkerFront
from app.workers.messages import receive
from app.workers.worker import Worker
from engine import die_with, keep_large_blocks, raise_descriptor_limit

GC_THRESHOLD = 20_000


class WorkerServer(GatewayServer):
    """Ends when its supervisor says so: signals are that one's business."""

    on_listening: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="popgate-worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--owner-fd", type=int, required=True)
    options: Any = parser.parse_args(arguments)
    # Ctrl-C in a terminal, and what stops a service, go to the whole group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with(options.owner_fd)
    sock = socket.socket(fileno=options.control_fd)
    start, (counters_fd, totals_fd, listener_fd) = receive(sock)
    totals = SharedTotals.attach(totals_fd, start["workers"] + 1)
    settings = Settings(**start["settings"])
    set_up_logging(settings.log_level, settings.log_format)
    use_statuses(settings.error_statuses)
    keep_large_blocks()
    raise_descriptor_limit()
    spans = spans_of_environment()
    ratio, processes = parse_ratio(settings.access_log), start["workers"] + 1
    journal = Journal(AccessLog(ratio, processes), spans)
    control = LogControl(settings.log_level, settings.log_format)
    key = settings.api_key
    worker = Worker(
        sock,
        CounterSegment.attach(counters_fd),
        replace(DEFAULT_LIMITS, max_body_bytes=settings.max_body_size),
        Keys(
            settings.keys,
            None if key is None else key.get_secret_value(),
            shared=True,
        ),
        control,
        journal,
        settings.shutdown_timeout,
    )
    if "log" in start:
        control.apply(LogSettings(**start["log"]))
    if "access" in start:
        journal.set_access(start["access"])
    worker.is_drained = "drained" in start
    service = Service(
        worker.table,
        timeout=settings.request_timeout,
        transfers=TransferMemory(
            settings.transfer_memory, totals.bytes_held(start["number"])
        ),
        journal=journal,
    )
    front = WorkerFront(
        worker,
        Relay(start["relay"]),
        service,
        Access(settings.restrictions, worker.keys),
        operations=(*generate.OPERATIONS, *kserve_v1.OPERATIONS),
        compress_responses=CompressResponses(settings.compress_responses),
        base_path=settings.base_path,
        origins=settings.allow_origin,
    )
    server = WorkerServer(
        front,
        drain_grace=settings.drain_grace,
        shutdown_timeout=settings.shutdown_timeout,
        header_timeout=settings.header_timeout,
        upload_timeout=settings.upload_timeout,
        send_timeout=settings.send_timeout,
        max_connections=settings.max_connections,
        # Without a number, descriptors are the bound, and each process has its own.
        connections=(
            totals.connections(start["number"]) if settings.max_connections else None
        ),
        certificate=_certificate(settings),
        is_drained=lambda: worker.is_drained,
        abort=worker.abort,
    )
    server.on_listening = worker.say_listening
    worker.on_connection = server.take_over
    worker.on_drain = lambda: server.stop(0)
    worker.connections = lambda: server.server_state.connections
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    server.run(sockets=[socket.socket(fileno=listener_fd)])
    journal.write_gathered()
    if spans is not None:
        spans.close()
    is_written()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    return server.exit_code


def _certificate(settings: Settings) -> Certificate | None:
    if settings.tls_cert is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


if __name__ == "__main__":
    # Not the interpreter's way, which would wait for threads.
    os._exit(main())
