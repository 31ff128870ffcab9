"""Whole servers: starting, losing their device, waiting for one, ending.

Covers: app/http/side_fronts.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import engine.tensor
from tests.app.served import ServedGateway
from tests.app.serving.test_scheduling import Asking, in_flight
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until

ROW = [[1.0, 2.0, 3.0, 4.0]]
AFFINE = [3.0, 5.0, 7.0, 9.0]
BODY = {"inputs": {"input": ROW}}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    models.slow(root / "slow.popef")
    return root


class Load:
    """Clients that ask all the time, each on a connection of its own."""

    def __init__(self, gateway: ServedGateway, clients: int = 4) -> None:
        self.codes: list[int] = []
        self.errors: list[Exception] = []
        self.wrong = 0
        self.some = threading.Event()
        self._stop = threading.Event()
        self._url = f"{gateway.url}/v1/models/affine/infer"
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()
        assert self.some.wait(WAIT)

    def _ask(self) -> None:
        with httpx.Client(timeout=WAIT, trust_env=False) as client:
            while not self._stop.is_set():
                try:
                    response = client.post(self._url, json=BODY)
                except httpx.ConnectError:
                    return  # nobody listens any more: not accepted
                except httpx.TransportError as e:
                    self.errors.append(e)
                    return
                self.codes.append(response.status_code)
                if response.status_code == 200:
                    data = response.json()["outputs"][0]["data"]
                    self.wrong += data != AFFINE
                    self.some.set()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive()


def device_of(gateway: ServedGateway) -> Any:
    (device,) = gateway.client.get("/v1/devices").json()["devices"]
    return device


def alive(pid: int) -> bool:
    """Whether a process runs (and is no zombie)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def wait_gone(pid: int) -> None:
    ended = threading.Event()
    for _ in range(int(WAIT / 0.01)):
        if not alive(pid):
            return
        ended.wait(0.01)
    raise AssertionError(f"process {pid} is still there")


def test_start_print(repository: Path) -> None:
    options = ("--devices", "cpu:1", "--host", "0.0.0.0")
    with ServedGateway(repository, *options) as gateway:
        gateway.wait_ready()
        gateway.wait_line("  manage  ")
        text = gateway.output
        assert f"listens on {gateway.url}, loading models from {repository}" in text
        assert f"device   cpu:0, process {device_of(gateway)['pid']}, " in text
        assert "threads  " in text
        assert "models   2 ready, after " in text
        plain = str(engine.tensor.__file__).endswith(".py")
        assert f"hot path {'plain Python' if plain else 'compiled'}\n" in text
        assert f"affine  ready        {gateway.url}/v1/models/affine/infer" in text
        open_to_all = "health, infer, metadata, metrics, pages without a key"
        assert f"open     {open_to_all}\n" in text
        port = gateway.url.rpartition(":")[2]
        gateway.wait_line(f"any client that can reach 0.0.0.0, port {port}, may run")
        assert gateway.stop() == 0


def test_sigterm_under_load_answers_everybody(repository: Path) -> None:
    with ServedGateway(repository) as gateway:
        gateway.wait_ready()
        device = device_of(gateway)["pid"]
        load = Load(gateway)
        assert gateway.stop(signal.SIGTERM) == 0
        load.stop()
        assert load.errors == []
        assert set(load.codes) == {200}
        assert load.wrong == 0
        wait_gone(device)


@pytest.mark.parametrize(
    ("options", "number", "count", "status"),
    [
        pytest.param((), signal.SIGINT, 5000, 200, id="ctrl-c waits for what runs"),
        pytest.param(
            ("--shutdown-timeout", "0"),
            signal.SIGTERM,
            1_000_000,
            503,
            id="what takes too long gets an answer",
        ),
    ],
)
def test_the_end_of_a_server_that_is_busy(
    repository: Path, options: tuple[str, ...], number: int, count: int, status: int
) -> None:
    with ServedGateway(repository, *options) as gateway:
        gateway.wait_ready()
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {"inputs": {"count": count}}
            answers.append(gateway.client.post("/v1/models/slow/infer", json=body))

        asker = threading.Thread(target=ask)
        asker.start()
        with httpx.Client(base_url=gateway.url, trust_env=False) as other:
            while not other.get("/v1/devices").json()["devices"][0]["in_flight"]:
                assert not answers
        gateway.send(number)
        assert gateway.join() == 0
        asker.join()
        assert answers[0].status_code == status


def test_a_killed_device_comes_back(repository: Path) -> None:
    with ServedGateway(repository) as gateway:
        gateway.wait_ready()
        load = Load(gateway)
        first = device_of(gateway)["pid"]
        os.kill(first, signal.SIGKILL)
        gateway.wait_line("was lost")
        gateway.wait_line("is back")
        gateway.until("/v1/health/ready", 200)
        assert device_of(gateway)["pid"] != first
        assert gateway.infer("affine", input=ROW)["output"] == AFFINE
        load.stop()
        assert load.errors == []
        assert set(load.codes) <= {200, 503}
        assert load.wrong == 0
        text = gateway.client.get("/metrics").text
        assert 'popgate_device_restarts_total{device="cpu:0"} 1' in text
        assert gateway.stop() == 0


def test_a_killed_gateway_leaves_nothing(repository: Path) -> None:
    with ServedGateway(repository, "--devices", "cpu:1") as gateway:
        device = device_of(gateway.wait_ready())["pid"]
        gateway.send(signal.SIGKILL)
        gateway.join()
        wait_gone(device)
        with ServedGateway(
            repository, "--devices", "cpu:1", pool=gateway.pool
        ) as again:
            assert again.wait_ready().infer("affine", input=ROW)["output"] == AFFINE


@pytest.fixture(scope="module")
def holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """A gateway that has the only device of its pool. Leave it as it is."""
    root = tmp_path_factory.mktemp("holder")
    models.affine(root / "affine.popef")
    with ServedGateway(root, "--devices", "cpu:1") as gateway:
        yield gateway.wait_ready()


def test_files_are_served_without_a_folder_and_without_a_free_core(
    tmp_path: Path,
) -> None:
    """As the first command of somebody who has a model, and other servers running."""
    digits = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    other = models.affine(tmp_path / "v7.popef")
    command = (str(digits), f"affine={other}", "--log-level", "warning")
    with ServedGateway(None, *command) as first:
        pool = first.wait_ready().pool
        with ServedGateway(None, "-m", str(other), pool=pool) as second:
            second.wait_ready()
            with ServedGateway(None, "--model", str(other), pool=pool) as third:
                third.wait_ready()
                assert third.infer("v7", input=ROW)["output"] == AFFINE
                assert len({device_of(g)["id"] for g in (first, second, third)}) == 3
        assert first.infer("affine", input=ROW)["output"] == AFFINE
        names = [m["name"] for m in first.client.get("/v1/models").json()["models"]]
        assert names == ["affine", "digits"]


def test_a_second_signal_is_a_line_of_the_log(repository: Path) -> None:
    with ServedGateway(repository, "--devices", "cpu:1") as gateway:
        gateway.wait_ready()
        endless = {"inputs": {"count": FOR_EVER}}
        # By either way: past ASGI, and through it.
        asking = [Asking(gateway, "slow", endless, chunked=c) for c in (False, True)]
        until(lambda: in_flight(gateway) == 2)
        gateway.send(signal.SIGTERM)
        line = gateway.wait_line("SIGTERM: shutting down")
        # The request that counted them may be one, to its last moment.
        assert re.search("waiting at most 30 s for [23] requests in flight", line)
        assert "a second signal exits immediately" in line
        # Until it has ended: signals that come close together are one, and what comes
        # while it exits changes nothing.
        while gateway.process.poll() is None:
            gateway.send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                gateway.process.wait(0.01)
        for each in asking:
            each.leave()
        assert gateway.join() == 1
        assert "SIGTERM received again: exiting immediately" in gateway.output
        assert "Traceback" not in gateway.output


def test_without_waiting_the_second_gateway_fails(
    repository: Path, holder: ServedGateway
) -> None:
    with ServedGateway(repository, "--devices", "cpu:1", pool=holder.pool) as second:
        assert second.join() == 3
        assert "popgate: error: no device is free" in second.output
        assert "--device-wait" in second.output
        assert "Traceback" not in second.output
    assert holder.infer("affine", input=ROW)["output"] == AFFINE


def test_the_second_gateway_gives_up_waiting(
    repository: Path, holder: ServedGateway
) -> None:
    options = ["--devices", "cpu:1", "--device-wait", "0.3"]
    options += ["--device-wait-sleep", "0.05"]
    with ServedGateway(repository, *options, pool=holder.pool) as second:
        assert second.join() == 3
        assert "within 0.3 s" in second.output


def test_the_second_gateway_waits(repository: Path) -> None:
    options = ["--devices", "cpu:1", "--device-wait", "forever"]
    options += ["--device-wait-sleep", "0.05"]
    with ServedGateway(repository, *options) as first:
        first.wait_ready()
        with ServedGateway(repository, *options, pool=first.pool) as second:
            response = second.until("/v1/health/ready", 503)
            reasons = response.json()["reasons"]
            assert reasons == ["the gateway is waiting for a device"]
            assert second.client.get("/v1/health/live").status_code == 200
            assert second.client.get("/v1/devices").json() == {"devices": []}
            early = second.client.post(
                "/v1/models/affine/infer",
                json={"inputs": {}},
                headers={"X-Request-Timeout": "0.5"},  # it would wait for 30 s
            )
            assert early.status_code == 503
            assert "the gateway is waiting for a device" in early.json()["error"]
            first.send(signal.SIGKILL)
            assert second.wait_ready().infer("affine", input=ROW)["output"] == AFFINE


def test_ending_while_waiting_for_a_device(
    repository: Path, holder: ServedGateway
) -> None:
    options = ("--devices", "cpu:1", "--device-wait", "forever")
    with ServedGateway(repository, *options, pool=holder.pool) as second:
        second.until("/v1/health/ready", 503)
        assert second.stop() == 0


def test_unix_socket(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with ServedGateway(repository, f"--uds={path}", "--metrics-port", "0") as gateway:
        gateway.wait_ready()
        metrics = gateway.wait_line("  metrics  ").split()[-1]
        assert "nv_inference_count" in httpx.get(metrics, trust_env=False).text
        assert gateway.infer("affine", input=ROW)["output"] == AFFINE
        response = gateway.client.post("/v1/models/affine/unload")
        assert response.status_code == 200
        gateway.client.close()
        assert gateway.stop() == 0
        assert not path.exists()


def test_a_port_for_metrics_only(triton: ServedGateway) -> None:
    url = triton.wait_line("  metrics  ").split()[-1]
    base = url.removesuffix("/metrics")
    assert base != triton.url
    with httpx.Client(base_url=base, timeout=WAIT, trust_env=False) as client:
        page = client.get("/metrics")
        assert page.status_code == 200
        assert 'nv_inference_count{model="simple",version="1"}' in page.text
        assert client.get("/v2/health/ready").status_code == 200
        assert client.post("/metrics").status_code == 405
        for path in ("/v2", "/docs", "/v2/models/simple", "/metrics/"):
            response = client.get(path)
            assert (response.status_code, response.json()["code"]) == (404, "not_found")
        for path in ("/v2/models/simple/infer", "/v1/models/simple/unload"):
            response = client.post(path, content=b"{}")
            assert response.status_code == 404
            assert (
                "this port serves /metrics and the health checks only"
                in response.json()["error"]
            )


def test_several_devices_and_instances(repository: Path) -> None:
    (repository / "affine").mkdir()
    config = repository / "affine" / "config.toml"
    config.write_text("instances = 2\ndevices = [1, 0]\nmax_queue_size = 2")
    (repository / "slow").mkdir()
    (repository / "slow" / "config.toml").write_text("devices = [7]")
    with ServedGateway(repository, "--devices", "cpu:2") as gateway:
        failed = gateway.wait_ready().client.get("/v1/health/ready").json()["failed"]
        assert "devices = [7] needs 8 devices, but 2 are attached" in failed["slow"]
        listed = gateway.client.get("/v1/devices").json()["devices"]
        assert [(d["id"], d["models"]) for d in listed] == [("cpu:0", 1), ("cpu:1", 1)]
        assert gateway.client.get("/v1/models/affine").json()["instances"] == 2
        assert gateway.infer("affine", input=ROW)["output"] == AFFINE


def test_limits_timeouts_and_log_format_are_settings(repository: Path) -> None:
    options = ("--max-body-size", "1KiB", "--request-timeout", "0.05")
    (repository / "bad.popef").write_bytes(b"")
    with ServedGateway(repository, *options, "--log-format", "json") as gateway:
        gateway.wait_ready()
        line = gateway.wait_line("failed to load 'bad'")
        assert line.startswith('{"time":"2')
        assert '"level":"error","logger":"app.repository.control.folder_loads"' in line
        big = {"inputs": {"input": ROW * 100}}
        response = gateway.client.post("/v1/models/affine/infer", json=big)
        assert response.status_code == 413
        load = b'{"parameters":{"config":"%b"}}' % (b"x" * 2000)
        for path in ("v1/models/affine", "v2/repository/models/affine"):
            response = gateway.client.post(f"/{path}/load", content=load)
            assert response.status_code == 413
            assert response.json()["error"] == (
                "request JSON size of 2028 bytes exceeds the maximum allowed input "
                "size of 1024 bytes. Use --http-max-input-size to increase the limit."
            )
        slow = {"inputs": {"count": 50_000}}
        response = gateway.client.post("/v1/models/slow/infer", json=slow)
        assert response.status_code == 504
