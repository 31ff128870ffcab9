"""A gateway whose device fails: what a new process cures, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.devices.device_lock import address_of
from engine.transport import control
from engine.worker.failures import VARIABLE, Failure
from tests.app.served import ServedGateway
from tests.engine import models

ROW = [[1.0, 2.0, 3.0, 4.0]]
BODY = {"inputs": {"input": ROW}}
INFER = "/v1/models/affine/infer"


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
            message = {"op": "inject", "failure": failure.value, "after": 0}
            control.call(address_of("cpu:0"), message)
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
