"""A gateway whose device fails: what a new process cures, and what it does not."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.devices.device_lock import address_of
from engine.run_failures import MOST
from engine.transport import control
from engine.transport.device_messages import Done, InjectFailure
from engine.worker.injected_failures import VARIABLE, Failure
from tests.app.served import ServedGateway, add
from tests.engine import models
from tests.support import until

OUTPUT = [3.0, 5.0, 7.0, 9.0]
ROW = [[1.0, 2.0, 3.0, 4.0]]
BODY = {"inputs": {"input": ROW}}
INFER = "/v1/models/affine/infer"
# A load with it takes seconds, and so lasts until the device dies.
SLOW_START = f"[warmup]\ncount = 1000\nbatch_sizes = {list(range(1, 17))}\n"


def test_faults_are_told_and_cured_where_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    with ServedGateway(root, "--devices", "cpu:1", **{VARIABLE: "1"}) as gateway:
        gateway.wait_ready()
        monkeypatch.setenv("POPGATE_POOL", gateway.pool)

        def fail(failure: Failure) -> str:
            message = InjectFailure(failure.value, 0)
            control.call(address_of("cpu:0"), message, Done)
            response = gateway.client.post(INFER, json=BODY)
            assert response.status_code == 503
            assert response.json()["code"] == "device_lost"
            return str(response.json()["error"])

        assert "application_runtime_error" in fail(Failure.APPLICATION)
        gateway.wait_line("is back")
        assert gateway.infer("affine", input=ROW)["output"] == [3.0, 5.0, 7.0, 9.0]
        error = fail(Failure.UNKNOWN)
        assert "unknown_runtime_error" in error
        # It stays so, and whoever looks is told.
        for _ in range(3):
            response = gateway.client.post(INFER, json=BODY)
            assert (response.status_code, response.json()["error"]) == (503, error)
        (device,) = gateway.client.get("/v1/devices").json()["devices"]
        assert (device["state"], device["restarts"]) == ("failed", 1)
        assert gateway.client.get("/v1/health/ready").status_code == 503
        assert gateway.client.get("/v1/health/live").status_code == 200
        gateway.client.close()
        assert gateway.stop() == 0


def device_of(gateway: ServedGateway) -> Any:
    (device,) = gateway.client.get("/v1/devices").json()["devices"]
    return device


def until_restarted(gateway: ServedGateway, times: int) -> None:
    until(lambda: device_of(gateway)["restarts"] >= times)
    gateway.wait_ready()


def test_a_load_whose_device_dies_is_nobodys_bad_request(tmp_path: Path) -> None:
    """It is loaded on the device that comes back; where that dies too, again and again,
    it is told to try later."""
    add(tmp_path, "good")
    with ServedGateway(tmp_path, "--devices", "cpu:1") as gateway:
        gateway.wait_ready()
        add(tmp_path, "late", config=SLOW_START)
        calm = threading.Event()

        def kill() -> None:
            while not calm.is_set():
                pid = device_of(gateway)["pid"]
                with contextlib.suppress(OSError):
                    os.kill(pid or 0, signal.SIGKILL if pid else 0)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            answer = gateway.client.post("/v1/models/late/load")
        finally:
            calm.set()
            killer.join()
        assert (answer.status_code, answer.json()["code"]) == (503, "device_lost")
        assert answer.headers["retry-after"] == "1"
        (tmp_path / "late" / "config.toml").unlink()
        answer = gateway.client.post("/v2/repository/models/late/load")
        assert answer.status_code == 200, answer.text
        assert gateway.infer("late", input=ROW)["output"] == OUTPUT
        gateway.wait_ready()
        assert gateway.infer("good", input=ROW)["output"] == OUTPUT


def test_a_model_that_crashes_its_device_again_and_again(tmp_path: Path) -> None:
    """Crashes count in a row: one success in between, and the model is kept."""
    add(tmp_path, "good")
    add(tmp_path, "bad", models.quotient, config="[warmup]\nenabled = false\n")
    with ServedGateway(tmp_path, "--devices", "cpu:1") as gateway:
        gateway.wait_ready()

        def divide(by: int) -> Any:
            body = {"inputs": {"input": [[by]]}}
            return gateway.client.post("/v1/models/bad/infer", json=body)

        for number in range(1, MOST + 1):
            assert divide(4).json()["outputs"][0]["data"] == [2**61]
            answer = divide(1)
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] == "device_lost"
            assert "SIGFPE, while model 'bad/1' was running" in answer.json()["error"]
            until_restarted(gateway, number)
        assert divide(4).status_code == 200
        for number in range(1, MOST + 1):
            assert divide(1).status_code == 503
            until_restarted(gateway, MOST + number)
            # The neighbour is back with the device, whatever the pause of the other.
            assert gateway.infer("good", input=ROW)["output"] == OUTPUT
        answer = divide(4)
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        assert f"{MOST} times in a row on device cpu:0" in answer.json()["error"]
        failed = gateway.client.get("/v1/health/ready").json()["failed"]
        assert list(failed) == ["bad"]
        # An operator who loads it again has looked into it.
        assert gateway.client.post("/v1/models/bad/load").status_code == 200
        assert divide(4).status_code == 200


@pytest.mark.parametrize("divided", [None, 1], ids=["warm-up", "load"])
def test_a_model_that_crashes_its_device_when_it_is_loaded(
    tmp_path: Path, divided: int | None
) -> None:
    """Those that were loaded beside it are not to blame."""
    for number in range(6):
        add(tmp_path, f"good{number}")
    add(tmp_path, "bad", partial(models.quotient, divided=divided))
    with ServedGateway(tmp_path, "--devices", "cpu:1") as gateway:
        found = gateway.wait_ready().client.get("/v1/health/ready").json()
        assert list(found["failed"]) == ["bad"]
        assert "its process died of SIGFPE" in found["failed"]["bad"]
        for number in range(6):
            assert gateway.infer(f"good{number}", input=ROW)["output"] == OUTPUT
        answer = gateway.client.post("/v1/models/bad/load")
        assert answer.status_code == 400, answer.text
        assert "'bad/1' was running" in answer.json()["error"]
        gateway.wait_ready()
        assert gateway.infer("good0", input=ROW)["output"] == OUTPUT


def test_a_model_that_crashes_its_device_when_it_comes_back(tmp_path: Path) -> None:
    """Its file was written over in place, so nothing of that is known before."""
    add(tmp_path, "good")
    path = add(tmp_path, "bad", partial(models.quotient, divided=4))
    bent = models.quotient(tmp_path / ".bent", divided=1).read_bytes()
    with ServedGateway(tmp_path, "--devices", "cpu:1") as gateway:
        gateway.wait_ready()
        assert path.stat().st_size == len(bent)
        with path.open("r+b") as file:
            file.write(bent)
        os.kill(device_of(gateway)["pid"], signal.SIGKILL)
        gateway.wait_line("is not loaded again")
        gateway.wait_ready()
        assert gateway.infer("good", input=ROW)["output"] == OUTPUT
        assert list(gateway.client.get("/v1/health/ready").json()["failed"]) == ["bad"]
