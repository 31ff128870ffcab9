"""Servers of the three kinds of buckets, as processes that can be killed.

Between them and the libraries is a relay that counts what they send and can hold it up,
so that a test knows that a download is in its middle.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import WAIT, until

ROOT = Path(__file__).resolve().parents[4]
#: Azurite's well-known account.
_ACCOUNT = "devstoreaccount1"
_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"
    "/K1SZFPTOtr/KBHBeksoGMGw=="
)


def azurite() -> str | None:
    """The command of Azurite, where it is installed."""
    here = ROOT / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    return str(here) if here.exists() else shutil.which("azurite-blob")


class Relay:
    """Hands bytes on to a port of this machine. `sent` counts those that came back;
    from `hold` on no more than so many do."""

    def __init__(self, target: int) -> None:
        self.sent = 0
        self._room: int | None = None
        self._changed = threading.Condition()
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                try:
                    server = socket.create_connection(("127.0.0.1", target))
                except OSError:
                    return  # it is dead, and so is this connection
                with server:
                    up = threading.Thread(target=_pump, args=(self.request, server))
                    up.start()
                    relay._back(server, self.request)
                    for each in (server, self.request):
                        with contextlib.suppress(OSError):
                            each.shutdown(socket.SHUT_RDWR)
                    up.join()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.01,), daemon=True).start()

    def hold(self, room: int) -> None:
        """From now on only so many bytes come back, and none until `let_go`."""
        with self._changed:
            self.sent, self._room = 0, room

    def let_go(self) -> None:
        with self._changed:
            self._room = None
            self._changed.notify_all()

    def close(self) -> None:
        self.let_go()
        self._server.shutdown()
        self._server.server_close()

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 14):
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._room is None or self.sent < self._room
                    )
                    self.sent += len(data)
                client.sendall(data)


def _pump(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(1 << 16):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


@dataclass
class Store:
    """A server of one kind of bucket, with a bucket `models`."""

    scheme: str
    command: list[str]
    port: int
    relay: Relay
    variables: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Returns when it answers."""
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(self._answers)

    def kill(self) -> None:
        """With SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT)

    def put(self, key: str, body: bytes) -> None:
        import fsspec

        files: Any = fsspec.filesystem(
            self.scheme, use_listings_cache=False, skip_instance_cache=True
        )
        with contextlib.suppress(FileExistsError):
            if not files.exists("models"):
                files.mkdir("models")
        files.pipe_file(f"models/{key}", body)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.command} has ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False


@contextlib.contextmanager
def store(scheme: str, folder: Path) -> Iterator[Store]:
    """A server whose data are in `folder`, where it keeps any."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    relay = Relay(port)
    url = f"http://127.0.0.1:{relay.port}"
    python, host = sys.executable, "127.0.0.1"
    if scheme == "s3":
        command = [python, "-m", "moto.server", "-H", host, "-p", str(port)]
        variables = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    elif scheme == "gs":
        start = (
            "import sys; from gcp_storage_emulator.server import create_server as c; "
            "c('127.0.0.1', int(sys.argv[1]), data_dir=sys.argv[2]).run()"
        )
        command = [python, "-c", start, str(port), str(folder)]
        variables = {
            "STORAGE_EMULATOR_HOST": url,
            "FSSPEC_GS_TOKEN": "anon",
            # Else it asks over gRPC, which the server does not speak.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
    else:
        command = [azurite() or "azurite-blob", "--disableTelemetry"]
        command += ["--blobHost", host, "--blobPort", str(port)]
        command += ["--location", str(folder), "--skipApiVersionCheck"]
        variables = {
            "AZURE_STORAGE_CONNECTION_STRING": (
                f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};"
                f"AccountKey={_KEY};BlobEndpoint={url}/{_ACCOUNT};"
            )
        }
    found = Store(scheme, command, port, relay, variables)
    found.start()
    try:
        yield found
    finally:
        found.kill()
        relay.close()
