"""A service manager hears when the server is ready, stops, or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.service_manager import ServiceManager, ServiceState
from tests.app.served import ServedGateway, add
from tests.support import WAIT


class Manager:
    """The end of the socket that systemd has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self.socket.settimeout(WAIT)
        self.lines: list[str] = []
        self._unread: list[str] = []

    def wait(self, text: str) -> str:
        """Return the next line that begins with `text`."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if not self._unread:
                self._unread += self.socket.recv(4096).decode().splitlines()
            self.lines.append(self._unread.pop(0))
            if self.lines[-1].startswith(text):
                return self.lines[-1]
        raise AssertionError(f"no {text!r}: {self.lines}")

    def nothing_waits(self) -> bool:
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(WAIT)


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = f"@popgate-test-{os.getpid()}-{tmp_path.name}"
    if request.param == "path":
        name = str(tmp_path / "notify")
    found = Manager(name)
    with found.socket:
        yield found


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_ready_status_reload_and_stop(
    manager: Manager, tmp_path: Path, options: tuple[str, ...]
) -> None:
    models = tmp_path / "models"
    add(models, "affine")
    (models / "broken.popef").write_bytes(b"no model")
    (tmp_path / "keys.toml").write_text("anonymous = ['infer', 'metadata']\n")
    options += ("--keys", str(tmp_path / "keys.toml"))
    with ServedGateway(
        models, *options, NOTIFY_SOCKET=manager.name, WATCHDOG_USEC="200000"
    ) as gateway:
        manager.wait("READY=1")
        assert gateway.client.get("/v1/health/ready").status_code == 200
        # READY comes with the status of that moment.
        status = [line for line in manager.lines if line.startswith("STATUS=")]
        assert status[-1] == "STATUS=1 of 2 models loaded"
        assert "is loading models" in " ".join(status) or len(status) < 3
        manager.wait("WATCHDOG=1")
        gateway.send(signal.SIGHUP)
        manager.wait("RELOADING=1")
        assert manager.wait("MONOTONIC_USEC=").partition("=")[2].isdigit()
        manager.wait("READY=1")
        gateway.send(signal.SIGTERM)
        manager.wait("STOPPING=1")
        assert "READY=1" not in manager.lines[manager.lines.index("STOPPING=1") :]
        assert gateway.join() == 0


def test_not_ready_as_long_as_no_model_can_be_loaded(
    manager: Manager, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "broken.popef").write_bytes(b"no model")
    options = ("--trust-loopback",)
    with ServedGateway(models, *options, NOTIFY_SOCKET=manager.name) as gateway:
        manager.wait("STATUS=0 of 1 models loaded; no model could be loaded")
        assert "READY=1" not in manager.lines
        (models / "broken.popef").unlink()
        add(models, "affine")
        gateway.client.post("/v1/models/affine/load").raise_for_status()
        manager.wait("READY=1")


def test_a_loop_that_hangs_sends_nothing(manager: Manager) -> None:
    environ = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "20000"}
    service = ServiceManager(environ)
    assert environ == {}
    hangs, go_on = threading.Event(), threading.Event()
    ended = asyncio.Event()

    def hang() -> None:
        hangs.set()
        go_on.wait(WAIT)

    async def serve(tell: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        service.begin(lambda: ServiceState(True, "all\nwell"))
        tell(asyncio.get_running_loop())
        await ended.wait()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve(loops.append)))
    thread.start()
    try:
        manager.wait("STATUS=all well")
        manager.wait("READY=1")
        manager.wait("WATCHDOG=1")
        loops[0].call_soon_threadsafe(hang)
        assert hangs.wait(WAIT)
        while not manager.nothing_waits():
            pass  # sent before
        threading.Event().wait(0.1)  # five intervals
        assert manager.nothing_waits()
        go_on.set()
        manager.wait("WATCHDOG=1")
    finally:
        go_on.set()
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(WAIT)
        service.close()


def test_a_watchdog_for_another_process_is_not_fed(manager: Manager) -> None:
    async def begin() -> None:
        service.begin(lambda: ServiceState(True, ""))
        service.stopping()
        service.stopping()

    service = ServiceManager(
        {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    )
    with contextlib.closing(service):
        asyncio.run(begin())
    manager.wait("STOPPING=1")
    assert manager.lines == ["READY=1", "STOPPING=1"]
    assert manager.nothing_waits()


@pytest.mark.parametrize("name", ["", "vsock:2:1234", "/nowhere/at/all"])
def test_without_a_manager_nothing_is_sent(name: str) -> None:
    async def begin() -> None:
        service.begin(lambda: ServiceState(True, "well"))
        service.reloading()
        service.reloaded()
        service.stopping()

    service = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "x"})
    with contextlib.closing(service):
        asyncio.run(begin())
