"""Servers of every kind of place, as processes that can be killed.

Those of S3, Google, Azure and registries are others'; of Hugging Face's hub
there is none, so one that its library takes for it stands in.

Between them and the libraries is a relay that counts what they send and can hold it up,
so that a test knows that a download is in its middle.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from plugins.remote.tests.hub import TOKEN
from tests.support import WAIT, until

ROOT = Path(__file__).resolve().parents[3]
#: Azurite's well-known account.
_ACCOUNT = "devstoreaccount1"
_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq"
    "/K1SZFPTOtr/KBHBeksoGMGw=="
)


#: Files of a model by their names.
Files: TypeAlias = Mapping[str, bytes]


def _installed(name: str) -> str | None:
    """A command that `make test-buckets` has put below build, or that is there."""
    below = {
        "azurite-blob": "azurite/node_modules/.bin/azurite-blob",
        "docker-registry": "registry/usr/bin/docker-registry",
    }
    here = ROOT / "build" / below[name]
    return str(here) if here.exists() else shutil.which(name)


def missing(scheme: str) -> str:
    """What it lacks, or nothing."""
    modules, command = {
        "s3": (("s3fs", "moto"), ""),
        "gs": (("gcsfs", "gcp_storage_emulator"), ""),
        "az": (("adlfs",), "azurite-blob"),
        "hf": (("huggingface_hub",), ""),
        "oci": ((), "docker-registry"),
    }[scheme]
    lacks = [name for name in modules if importlib.util.find_spec(name) is None]
    if command and _installed(command) is None:
        lacks.append(command)
    return f"needs {', '.join(lacks)}: make test-buckets" if lacks else ""


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
    # Also behind a client that resets its connection: the way back waits for this.
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_WR)


@dataclass
class Store:
    """A server of one kind of place, with a model at `url`.

    `fill` brings files of that model there, and what has to be around them; at
    `nothing` there is none. `sums` is the kind of checksum that the server states.
    """

    url: str
    nothing: tuple[str, ...]
    sums: str
    command: list[str]
    variables: Mapping[str, str]
    fill: Callable[[Files], None]
    port: int
    relay: Relay
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Returns when it answers."""
        ours = self.variables  # the server is not its own client
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k not in ours},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(self._answers)

    def kill(self) -> None:
        """With SIGKILL, and what it has started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(WAIT)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.command} has ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False


@contextlib.contextmanager
def store(scheme: str, folder: Path) -> Iterator[Store]:
    """A server that may keep its data in `folder`; its variables are set."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    relay = Relay(port)
    found = _STORES[scheme](folder, port, relay)
    before = {name: os.environ.get(name) for name in found.variables}
    os.environ.update(found.variables)
    try:
        found.start()
        yield found
    finally:
        found.kill()
        relay.close()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _s3(folder: Path, port: int, relay: Relay) -> Store:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{relay.port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    return _bucket("s3", command, variables, port, relay)


def _gs(folder: Path, port: int, relay: Relay) -> Store:
    start = (
        "import sys; from gcp_storage_emulator.server import create_server as c; "
        "c('127.0.0.1', int(sys.argv[1]), data_dir=sys.argv[2]).run()"
    )
    command = [sys.executable, "-c", start, str(port), str(folder)]
    variables = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{relay.port}",
        "FSSPEC_GS_TOKEN": "anon",
        # Else it asks over gRPC, which the server does not speak.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    return _bucket("gs", command, variables, port, relay)


def _az(folder: Path, port: int, relay: Relay) -> Store:
    command = [_installed("azurite-blob") or "", "--disableTelemetry"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--location", str(folder), "--skipApiVersionCheck"]
    url = f"http://127.0.0.1:{relay.port}/{_ACCOUNT}"
    variables = {
        "AZURE_STORAGE_CONNECTION_STRING": (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};"
            f"AccountKey={_KEY};BlobEndpoint={url};"
        )
    }
    return _bucket("az", command, variables, port, relay)


def _bucket(
    scheme: str,
    command: list[str],
    variables: Mapping[str, str],
    port: int,
    relay: Relay,
) -> Store:
    def fill(files: Files) -> None:
        import fsspec

        there: Any = fsspec.filesystem(
            scheme, use_listings_cache=False, skip_instance_cache=True
        )
        with contextlib.suppress(FileExistsError):
            if not there.exists("models"):
                there.mkdir("models")
        for name, body in files.items():
            there.pipe_file(f"models/digits/{name}", body)

    nothing = f"{scheme}://models/none", f"{scheme}://nope/digits"
    url = f"{scheme}://models/digits"
    return Store(url, nothing, "md5", command, variables, fill, port, relay)


def _hf(folder: Path, port: int, relay: Relay) -> Store:
    def fill(files: Files) -> None:
        for name, body in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(body)

    module = "plugins.remote.tests.hub"
    command = [sys.executable, "-m", module, str(port), str(folder)]
    variables = {"HF_ENDPOINT": f"http://127.0.0.1:{relay.port}", "HF_TOKEN": TOKEN}
    nothing = "hf://me/digits@none", "hf://me/none"
    return Store(
        "hf://me/digits", nothing, "sha256", command, variables, fill, port, relay
    )


def _oci(folder: Path, port: int, relay: Relay) -> Store:
    base = f"http://127.0.0.1:{port}/v2/me/digits"

    def blob(client: httpx.Client, body: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        place = client.post(f"{base}/blobs/uploads/").headers["location"]
        target = httpx.URL(place).copy_merge_params({"digest": digest})
        answer = client.put(target, content=body)
        assert answer.status_code == 201, answer.text
        return {"digest": digest, "size": len(body), "mediaType": "application/x"}

    def fill(files: Files) -> None:
        kind = "application/vnd.oci.image.manifest.v1+json"
        title = "org.opencontainers.image.title"
        with httpx.Client(trust_env=False, timeout=WAIT) as client:
            layers = [
                blob(client, body) | {"annotations": {title: name}}
                for name, body in files.items()
            ]
            manifest = {
                "schemaVersion": 2,
                "mediaType": kind,
                "config": blob(client, b"{}"),
                "layers": layers,
            }
            answer = client.put(
                f"{base}/manifests/1",
                content=json.dumps(manifest),
                headers={"content-type": kind},
            )
            assert answer.status_code == 201, answer.text

    settings = folder / "registry.json"  # which is YAML too
    storage = {"filesystem": {"rootdirectory": str(folder)}}
    address = {"addr": f"127.0.0.1:{port}"}
    settings.write_text(
        json.dumps({"version": 0.1, "storage": storage, "http": address})
    )
    command = [_installed("docker-registry") or "", "serve", str(settings)]
    host = f"oci://127.0.0.1:{relay.port}/me"
    nothing = f"{host}/digits:2", f"{host}/none:1"
    # No credentials of whoever runs this.
    variables = {"DOCKER_CONFIG": str(folder)}
    return Store(
        f"{host}/digits:1", nothing, "sha256", command, variables, fill, port, relay
    )


_STORES = {"s3": _s3, "gs": _gs, "az": _az, "hf": _hf, "oci": _oci}
SCHEMES = tuple(_STORES)
