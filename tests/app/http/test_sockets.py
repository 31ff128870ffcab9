"""Listening sockets: what stands in their way, and how much the kernel keeps."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from pathlib import Path

import pytest

from app.http.sockets import UNSENT, ListenError, listen_tcp, listen_unix
from tests.support import as_nobody

WAIT = 10.0  # seconds that nothing here should ever take


def test_the_kernel_keeps_little_for_who_reads_nothing() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen_tcp("127.0.0.1", 0))
        stack.enter_context(socket.create_connection(listener.getsockname(), WAIT))
        wire = stack.enter_context(listener.accept()[0])
        wire.setblocking(False)
        sent, piece = 0, bytes(1 << 16)
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += wire.send(piece)
        assert sent < 2 * UNSENT


def test_a_port_in_use_is_explained() -> None:
    with contextlib.closing(listen_tcp("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}: it is in use"):
            listen_tcp("127.0.0.1", port)


def test_a_host_that_is_none_is_explained() -> None:
    with pytest.raises(ListenError, match=r"cannot listen on host 'no\.such\.invalid'"):
        listen_tcp("no.such.invalid", 0)
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1:0"):
        listen_tcp("192.0.2.1", 0)
    with pytest.raises(ListenError, match=r"host 'a\.\.b': it is not a name of a host"):
        listen_tcp("a..b", 0)


def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    listen_unix(path).close()
    assert path.is_socket()
    taken = listen_unix(path)
    with pytest.raises(ListenError, match=r"by another process; .* another path$"):
        listen_unix(path)
    taken.close()
    path.unlink()
    path.write_text("a file")
    with pytest.raises(ListenError, match=r"it is not a socket; choose another path$"):
        listen_unix(path)
    assert path.read_text() == "a file"


def test_a_path_that_is_not_permitted_is_explained() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gate.sock")
        Path(folder).chmod(0o755)
        with contextlib.closing(listen_unix(path, private=True)):
            Path(folder).chmod(0o555)
            for each in (path, Path(folder, "other.sock")):
                with (
                    as_nobody(),
                    pytest.raises(ListenError, match=r"not permitted \(its folder"),
                ):
                    listen_unix(each)
        Path(folder).chmod(0o755)
