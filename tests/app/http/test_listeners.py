"""Sockets that a service manager opened are served, and left as they were."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from app.http.listeners import Listeners, inherited_sockets
from app.http.sockets import ListenError, listen_tcp
from app.settings import Settings
from tests.app.served import ROOT, ServedGateway, add, popgate
from tests.support import WAIT

#: Takes sockets from the one that holds them, as the next process of a service would,
#: before it serves: systemd starts a process with its sockets from 3 on.
_HAND_OVER = """
import os, socket
place, count, names = {place!r}, {count}, {names!r}
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
    s.connect(place)
    fds = socket.recv_fds(s, 1, count)[1]
high = [os.dup2(fd, 50 + n) for n, fd in enumerate(fds)]
for n, fd in enumerate(high):
    os.dup2(fd, 3 + n)
    os.close(fd)
os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"] = str(os.getpid()), str(count)
if names:
    os.environ["LISTEN_FDNAMES"] = names
"""


class Holder:
    """Keeps sockets open beyond the servers that it hands them to."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._place = folder / "sockets"
        self._stack = stack
        self._door = stack.enter_context(socket.socket(socket.AF_UNIX))
        self._door.bind(str(self._place))
        self._door.listen()
        self._door.settimeout(WAIT)

    def listen(
        self, address: str | tuple[str, int], mode: int = 0o600
    ) -> socket.socket:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        listener = self._stack.enter_context(socket.socket(family))
        listener.bind(address)
        if isinstance(address, str) and mode >= 0:
            os.chmod(address, mode)
        listener.listen(64)
        return listener

    def serve(
        self, models: Path, sockets: dict[str, socket.socket], *options: str
    ) -> ServedGateway:
        with self._handing_over(sockets) as first:
            return ServedGateway(models, *options, first=first)

    def refused(self, models: Path, sockets: dict[str, socket.socket]) -> str:
        """Return the message with which a server refuses such sockets."""
        with self._handing_over(sockets) as first:
            ended = subprocess.run(
                [*popgate(first), "serve", str(models), "--port", "0"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=WAIT * 2,
                check=False,
            )
        assert ended.returncode == 2
        return ended.stderr

    @contextmanager
    def _handing_over(self, sockets: dict[str, socket.socket]) -> Iterator[str]:
        fds = [s.fileno() for s in sockets.values()]
        names = ":".join(sockets) if any(sockets) else ""

        def hand_over() -> None:
            with self._door.accept()[0] as connection:
                socket.send_fds(connection, [b"."], fds)

        thread = threading.Thread(target=hand_over)
        thread.start()
        try:
            yield _HAND_OVER.format(place=str(self._place), count=len(fds), names=names)
        finally:
            thread.join(WAIT)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    with ExitStack() as stack:
        yield Holder(tmp_path, stack)


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_who_connects_between_two_servers_is_answered(
    holder: Holder, tmp_path: Path, options: tuple[str, ...]
) -> None:
    models = tmp_path / "models"
    add(models, "affine")
    listener = holder.listen(("127.0.0.1", 0))
    address = listener.getsockname()
    with holder.serve(models, {"": listener}, *options) as gateway:
        assert gateway.url == f"http://127.0.0.1:{address[1]}"
        gateway.wait_ready()
        assert gateway.stop() == 0
    with socket.create_connection(address, WAIT) as waiting:
        waiting.sendall(b"GET /v1/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        with holder.serve(models, {"": listener}, *options) as gateway:
            assert waiting.recv(100).startswith(b"HTTP/1.1 200")
            gateway.wait_ready()


def test_named_sockets_are_for_metrics_and_management(
    holder: Holder, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    add(models, "affine")
    main = holder.listen(str(tmp_path / "main"))
    metrics = holder.listen(("127.0.0.1", 0))
    management = holder.listen(str(tmp_path / "management"))
    sockets = {"metrics": metrics, "http": main, "management": management}
    with holder.serve(models, sockets) as gateway:
        assert gateway.url == f"unix:{tmp_path / 'main'}"
        gateway.wait_ready()
        url = f"http://127.0.0.1:{metrics.getsockname()[1]}"
        assert httpx.get(f"{url}/metrics", trust_env=False).status_code == 200
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 404
        transport = httpx.HTTPTransport(uds=str(tmp_path / "management"))
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            assert client.post("/v1/models/affine/unload").status_code == 200
        assert gateway.stop() == 0
    assert (tmp_path / "main").is_socket()  # its owner removes it


def test_sockets_of_another_process_are_left_alone() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "A": "b"}
    assert inherited_sockets(environ) == {}
    assert environ == {"A": "b"}
    assert inherited_sockets({}) == {}
    assert inherited_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}) == {}


@pytest.mark.parametrize("names", ["", "http:api"])
def test_sockets_that_cannot_be_served(
    holder: Holder, tmp_path: Path, names: str
) -> None:
    """One is refused by its kind, two by their number: both exit with a message."""
    models = tmp_path / "models"
    add(models, "affine")
    if names:
        a, b = (holder.listen(("127.0.0.1", 0)) for _ in range(2))
        found = {"http": a, "api": b}
        text = "there are several sockets for requests"
    else:
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found, text = {"": one}, "is not a listening stream socket"
    assert text in holder.refused(models, found)
    for each in found.values():
        each.close()


@pytest.mark.parametrize("kind", ["tcp", "file", "abstract"])
def test_management_is_not_opened_to_every_user(
    holder: Holder, tmp_path: Path, kind: str
) -> None:
    models = tmp_path / "models"
    add(models, "affine")
    listener = {
        "tcp": lambda: holder.listen(("127.0.0.1", 0)),
        "file": lambda: holder.listen(str(tmp_path / "open"), 0o666),
        "abstract": lambda: holder.listen(f"\0popgate-{os.getpid()}", -1),
    }[kind]()
    said = holder.refused(models, {"management": listener})
    assert "any user can connect" in said


def test_what_is_no_socket_is_refused() -> None:
    pid = os.fork()
    if pid == 0:
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        os.closerange(3, 64)
        try:
            inherited_sockets(environ)
        except ListenError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_the_socket_of_the_next_server_is_left(tmp_path: Path) -> None:
    """It replaces that of a server which no longer listens and has not ended yet."""
    main, management = tmp_path / "main", tmp_path / "management"
    settings = Settings(uds=main, management_socket=management)
    first = Listeners(settings)
    assert first.management is not None
    first.main.close()
    first.management.close()
    second = Listeners(settings)
    first.close()
    for path in (main, management):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_the_option_of_a_port_in_use_is_named() -> None:
    with contextlib.closing(listen_tcp("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"{port}: .* with --metrics-port "):
            Listeners(Settings(port=0, metrics_port=port))
