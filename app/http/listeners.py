"""`Listeners`: the sockets of a server.

A service manager may have opened the sockets and may hand them over (LISTEN_FDS).
systemd opens them before the server starts and keeps them when it ends. So clients that
connect in between wait for the next process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from app.config.file_stamps import Stamp, stamp_of
from app.http.front import InferFront
from app.http.side_fronts import ManagementFront, MetricsFront
from app.http.sockets import UNSENT, ListenError, listen_tcp, listen_unix
from app.settings import Settings

#: The first descriptor that is handed over. The others have the numbers after it.
_FIRST = 3
#: Names of sockets for purposes other than requests (FileDescriptorName=).
METRICS, MANAGEMENT = "metrics", "management"
#: The name of the main socket among the sockets that are handed over.
MAIN = ""


class Listeners:
    """The listening sockets. They are closed, and their files removed, together.

    `inherited` sockets replace those that the settings name. Their owner keeps them
    open, so that connections to them wait for the next process.
    """

    def __init__(
        self, settings: Settings, inherited: Mapping[str, socket.socket] | None = None
    ) -> None:
        """Raise `ListenError`, with nothing left open."""
        self._settings = settings
        self.inherited = dict(inherited or {})
        self._open: list[socket.socket] = [*self.inherited.values()]
        #: The files of sockets, to be removed unless another server has replaced them.
        self._files: dict[Path, Stamp] = {}
        self.metrics: socket.socket | None = None
        self.management: socket.socket | None = None
        port, path = settings.metrics_port, settings.management_socket
        try:
            workers = settings.workers
            if MAIN in self.inherited:
                self.main = self.inherited[MAIN]
                if self.main.family != socket.AF_UNIX:
                    lowat = socket.TCP_NOTSENT_LOWAT
                    self.main.setsockopt(socket.IPPROTO_TCP, lowat, UNSENT)
                self.of_workers = [self.main] * workers
            elif settings.uds is not None:
                self.main = self._unix(settings.uds)
                self.of_workers = [self.main] * workers
            else:
                self.main = self._tcp(settings.host, settings.port, "--port")
                self.of_workers = [self.main]
                if workers > 1:
                    self._share_out(settings.host, workers)
            is_tcp = self.main.family != socket.AF_UNIX
            if port and is_tcp and port == self.main.getsockname()[1]:
                port = None  # the main port answers these paths already
            if METRICS in self.inherited:
                self.metrics = self.inherited[METRICS]
            elif port is not None:
                self.metrics = self._tcp(settings.host, port, "--metrics-port")
            if MANAGEMENT in self.inherited:
                self.management = self.inherited[MANAGEMENT]
            elif path is not None:
                self.management = self._unix(path, private=True)
        except ListenError:
            self.close()
            raise

    def _share_out(self, host: str, workers: int) -> None:
        """Open a socket for each worker; the kernel spreads connections among them.

        All remain open here, so connections that wait in one go to the next process of
        its worker.
        """
        port = self.main.getsockname()[1]
        # The main socket was exclusive, so no other server has the port. Shared sockets
        # could be opened beside those of another server.
        self._open.remove(self.main)
        self.main.close()
        self.of_workers = []
        for _ in range(workers):
            self.of_workers.append(listen_tcp(host, port, shared=True))
            self._open.append(self.of_workers[-1])
        self.main = self.of_workers[0]

    def _tcp(self, host: str, port: int, option: str) -> socket.socket:
        self._open.append(listen_tcp(host, port, option=option))
        return self._open[-1]

    def _unix(self, path: Path, *, private: bool = False) -> socket.socket:
        self._open.append(listen_unix(path, private=private))
        self._files[path] = stamp_of([path])
        return self._open[-1]

    @property
    def url(self) -> str:
        """The URL of the main socket."""
        return self._url(self.main)

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics port; None without one."""
        return None if self.metrics is None else self._url(self.metrics)

    def _url(self, listener: socket.socket) -> str:
        name = listener.getsockname()
        if listener.family == socket.AF_UNIX:
            return f"unix:{name}"
        is_ours = listener not in self.inherited.values()
        host, port = self._settings.host if is_ours else name[0], name[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        if ":" in shown and not shown.startswith("["):
            shown = f"[{shown}]"
        scheme = "http" if self._settings.tls_cert is None else "https"
        return f"{scheme}://{shown}:{port}"

    def sides(self, app: InferFront) -> list[tuple[InferFront, socket.socket]]:
        """Return the fronts besides the main one, each with its socket."""
        found: list[tuple[InferFront, socket.socket]] = []
        if self.metrics is not None:
            found.append((MetricsFront(app), self.metrics))
        if self.management is not None:
            found.append((ManagementFront(app), self.management))
        return found

    def close(self) -> None:
        for listener in self._open:
            listener.close()
        for path, stamp in self._files.items():
            if stamp_of([path]) == stamp:
                path.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"<Listeners {self._open}>"


def inherited_sockets(
    environ: MutableMapping[str, str] = os.environ,
) -> dict[str, socket.socket]:
    """Return the sockets handed over to this process, by their use: `MAIN`, `METRICS`
    and `MANAGEMENT`.

    Remove the variables from `environ`: child processes must not see them. Raise
    `ListenError` for sockets that cannot be served.
    """
    process = environ.pop("LISTEN_PID", "")
    text = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not (text.isascii() and text.isdigit()):
        return {}
    found: dict[str, socket.socket] = {}
    for number in range(int(text)):
        name = names[number] if number < len(names) else ""
        use = name if name in (METRICS, MANAGEMENT) else MAIN
        if use in found:
            msg = (
                f"LISTEN_FDS={text}: there are several sockets for "
                f"{use or 'requests'}; pass one, and name the others {METRICS} or "
                f"{MANAGEMENT} (FileDescriptorName=)"
            )
            raise ListenError(msg)
        found[use] = _listening(_FIRST + number)
    if MANAGEMENT in found:
        _check_private(found[MANAGEMENT])
    return found


def _check_private(listener: socket.socket) -> None:
    """Raise `ListenError` if every user could open a socket that needs no key."""
    name = listener.getsockname()
    if (
        listener.family != socket.AF_UNIX
        or not isinstance(name, str)
        or not name.startswith("/")
        or os.stat(name).st_mode & 0o002
    ):
        msg = (
            f"LISTEN_FDS: any user can connect to the socket {MANAGEMENT} ({name!r}), "
            "which needs no key: set ListenStream=/PATH and SocketMode=0600"
        )
        raise ListenError(msg)


def _listening(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=descriptor)
        is_stream = listener.type == socket.SOCK_STREAM
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as e:
        msg = f"LISTEN_FDS: descriptor {descriptor}: {e.strerror or e}"
        raise ListenError(msg) from None
    if not (is_stream and listens):
        msg = (
            f"LISTEN_FDS: descriptor {descriptor} is not a listening stream socket; "
            "set ListenStream= and Accept=no"
        )
        raise ListenError(msg)
    listener.setblocking(False)
    return listener
