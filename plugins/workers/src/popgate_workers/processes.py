"""The processes of a server with `--workers` (`app.run.ServerProcesses`)."""

from __future__ import annotations

import socket
from typing import Any

from app.http.front import InferFront
from app.http.listeners import MAIN, Listeners
from app.http.server import GatewayServer
from app.observe.metrics import MetricsRegistry
from app.serving.table import ModelTable
from app.settings import Settings
from popgate_workers.server import SupervisorServer
from popgate_workers.supervisor import Workers


class WorkerProcesses:
    """The workers have a listener each. This process answers what they relay."""

    def __init__(self, settings: Settings, listeners: Listeners) -> None:
        self.listeners: list[socket.socket] = []
        self._settings = settings
        self._of_workers = listeners.of_workers
        self._keeps_listeners = MAIN in listeners.inherited
        self._workers: Workers | None = None

    def others(self, table: ModelTable, metrics: MetricsRegistry) -> Workers:
        self._workers = Workers(
            self._settings,
            self._of_workers,
            table,
            metrics,
            keeps_listeners=self._keeps_listeners,
        )
        return self._workers

    def server(self, app: InferFront, options: dict[str, Any]) -> GatewayServer:
        assert self._workers is not None
        return SupervisorServer(app, self._workers, **options)
