"""Files of models that change under a gateway which serves them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.served import ServedGateway, add
from tests.engine import models

ROW = [[1.0, 2.0, 3.0, 4.0]]
OUTPUT = [3.0, 5.0, 7.0, 9.0]


def cut(path: Path) -> None:
    os.truncate(path, 0)


def cut_short(path: Path) -> None:
    os.truncate(path, 4096)


def pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.with_name("pipe").rename(path)


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("change", "width", "survives"),
    [(cut, 4, False), (cut_short, 4096, False), (pipe, 4, True), (gone, 4, True)],
)
def test_a_file_that_changes_before_its_device_dies(
    tmp_path: Path, change: Callable[[Path], None], width: int, survives: bool
) -> None:
    """The gateway lives, other models are served again, and so is the old content of a
    file that was replaced."""
    add(tmp_path, "good")
    bad = add(tmp_path, "bad", lambda path: models.affine(path, width=width))
    with ServedGateway(tmp_path, "--devices", "cpu:1") as gateway:
        gateway.wait_ready()
        change(bad)
        (device,) = gateway.client.get("/v1/devices").json()["devices"]
        os.kill(device["pid"], signal.SIGKILL)
        gateway.wait_line("is back")
        assert gateway.infer("good", input=ROW)["output"] == OUTPUT
        body = {"inputs": {"input": [[1.0] * width]}}
        response = gateway.client.post("/v1/models/bad/infer", json=body)
        assert response.status_code == (200 if survives else 503), response.text
        if not survives:
            assert (
                "bad/1/m.popef cannot be read again: the file was trunc"
                in response.text
            )
            assert str(tmp_path) not in response.text
        assert "Traceback" not in gateway.output
        # As before, and its own error.
        response = gateway.client.post("/v1/models/bad/load")
        assert response.status_code == 400, response.text
        assert gateway.infer("good", input=ROW)["output"] == OUTPUT
        assert gateway.stop() == 0
