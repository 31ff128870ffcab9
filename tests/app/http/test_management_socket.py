"""The management socket: who may open it, and what it allows."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.http.sockets import listen_unix
from popgate import Client
from tests.app.served import ServedGateway, run_popgate
from tests.engine import models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("management")
    (folder / "models").mkdir()
    models.affine(folder / "models" / "affine.popef")
    return folder


@pytest.fixture(scope="module")
def closed(folder: Path) -> Iterator[ServedGateway]:
    """As it is without `--trust-loopback`; with a stale socket in its way."""
    place = folder / "management"
    listen_unix(place).close()
    options = ("--management-socket", str(place))
    root = folder / "models"
    with ServedGateway(root, *options, POPGATE_TRUST_LOOPBACK="") as gateway:
        yield gateway.wait_ready()
        assert gateway.stop() == 0
        assert not place.exists()


def test_only_the_socket_manages(closed: ServedGateway, folder: Path) -> None:
    place = folder / "management"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    with Client(closed.url) as client, pytest.raises(Exception, match="refused"):
        client.unload("affine")
    with Client(f"unix:{place}") as client:
        client.unload("affine")
        assert not client.ready("affine")
        client.load("affine")
        row = [[1.0, 2.0, 3.0, 4.0]]
        assert client.infer("affine", {"input": row})["output"].shape == (1, 4)
    transport = httpx.HTTPTransport(uds=str(place))
    with httpx.Client(transport=transport, base_url="http://some.name") as plain:
        forwarded = {"x-forwarded-for": "10.0.0.1"}
        load = "/v1/models/affine/load"
        assert plain.post(load).status_code == 200
        assert plain.post(load, headers=forwarded).status_code == 403
    line = closed.wait_line("  manage ")
    assert f"curl --unix-socket {place} -X POST http://localhost/v1/" in line


def test_top_takes_it(closed: ServedGateway, folder: Path) -> None:
    for url in (f"unix:{folder}/management", f"unix://{folder}/management"):
        shown = run_popgate("top", "--url", url, "--once", "--interval", "0.1")
        assert shown.returncode == 0, shown.stderr
        assert "affine" in shown.stdout
        assert url in shown.stdout


def test_a_private_socket_is_never_open(tmp_path: Path) -> None:
    modes = []
    for private in (True, False):
        place = tmp_path / str(private)
        with listen_unix(place, private=private):
            modes.append(stat.S_IMODE(place.stat().st_mode))
    plain = tmp_path / "plain"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(plain))  # by the umask, which is as it was
    assert modes == [0o600, stat.S_IMODE(plain.stat().st_mode)]
