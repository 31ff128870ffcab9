"""`Listeners`: the sockets of a server."""

from __future__ import annotations

import socket
from pathlib import Path

from app.http.front import InferFront
from app.http.management_socket import ManagementFront
from app.http.metrics_port import MetricsFront
from app.http.server import ListenError, listen_tcp, listen_unix
from app.settings import Settings


class Listeners:
    """The sockets that are listened on, which are closed, and whose files are removed,
    together."""

    def __init__(self, settings: Settings) -> None:
        """Raises `ListenError`, with nothing left open."""
        self._settings = settings
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

    @property
    def url(self) -> str:
        """Where the main socket is reached."""
        path = self._settings.uds
        return f"unix:{path}" if path else _url(self._settings, self.main)

    @property
    def metrics_url(self) -> str | None:
        """Of the port for metrics; None without one."""
        return None if self.metrics is None else _url(self._settings, self.metrics)

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


def _url(settings: Settings, listener: socket.socket) -> str:
    host, port = settings.host, listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    if ":" in shown and not shown.startswith("["):
        shown = f"[{shown}]"
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{shown}:{port}"
