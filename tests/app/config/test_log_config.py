"""The file of log settings, and a server that reads it again.

Covers: app/reloading.py.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from app.config.config_keys import KeyProblem
from app.config.log_config import LogConfig, read_log_config
from app.observe.journal import Journal
from app.observe.log import LogControl
from app.other_processes import OtherProcesses
from app.reloading import Reloading
from app.serving.keys import Keys
from app.settings import Settings
from tests.app.served import ServedGateway
from tests.engine import models
from tests.support import WAIT, until

ROW = [[1.0, 2.0, 3.0, 4.0]]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_what_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "log.toml"
    assert read_log_config(write(path, "")) == LogConfig()
    both = 'log_level = "debug"\naccess_log = "0.01"\n'
    assert read_log_config(write(path, both)) == LogConfig("debug", "0.01")
    for text in ("1e-3", "OFF", ".5", "all"):  # as the option
        found = read_log_config(write(path, f'access_log = "{text}"'))
        assert found.access_log == text.lower()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("log_level = ", "not TOML"),
        ('log_level = "loud"', "log_level"),
        ('access_log = "2"', 'must be "off", "errors", "all" or a share'),
        ("access_log = 0.5", 'as in "0.01", got 0.5'),
        ("level = 1", "unknown key 'level'"),
        ("#" * (1 << 17), "more than 65536 bytes"),
    ],
)
def test_what_cannot(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(KeyProblem, match=why):
        read_log_config(write(tmp_path / "log.toml", text))


def test_keys_are_watched_on_after_a_check_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process may have no thread left at that moment."""
    path = write(tmp_path / "keys.toml", "anonymous = ['infer']\n")
    keys, settings = Keys(path), Settings(keys=path)
    log, in_thread, done = LogControl("info"), asyncio.to_thread, asyncio.Event()

    async def no_thread(*_: object) -> None:
        monkeypatch.setattr(asyncio, "to_thread", in_thread)
        raise RuntimeError("can't start new thread")

    async def follow() -> None:
        reloading = Reloading(settings, keys, log, Journal(), OtherProcesses())
        reloading.start()
        reloading.request(done.set)
        await asyncio.wait_for(done.wait(), WAIT)
        write(path, "anonymous = ['metrics']\n")
        done.clear()
        reloading.request(done.set)
        await asyncio.wait_for(done.wait(), WAIT)
        reloading.stop()

    monkeypatch.setattr(asyncio, "to_thread", no_thread)
    asyncio.run(follow())
    assert keys.table.anonymous == {"metrics"}
    assert "can't start new thread" in caplog.text


def test_a_server_reads_it_again(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    path = write(tmp_path / "log.toml", 'log_level = "error"\n')
    with ServedGateway(root, "--log-config", str(path)) as served:
        served.wait_ready()
        quiet = served.client.get("/none", headers={"x-request-id": "quiet"})
        assert quiet.status_code == 404
        write(path, 'access_log = "all"\n')
        served.send(signal.SIGHUP)

        def logged() -> bool:
            served.infer("affine", input=ROW)
            return any("/infer 200 " in line for line in list(served.lines))

        until(logged)
        assert not any("id=quiet" in line for line in served.lines)
        write(path, 'access_log = "some"\n')
        served.send(signal.SIGHUP)
        served.wait_line("was not reloaded")
        served.client.get("/v1/models", headers={"x-request-id": "still-all"})
        served.wait_line("id=still-all")
