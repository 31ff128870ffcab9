"""The query of the KEDA manifest, by a real Prometheus on a real server.

Covers: deploy/kubernetes/keda/scaledobject.yaml.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from plugins.ray.tests.test_saturation import SLEEPY
from tests.app.served import ROOT, ServedGateway
from tests.engine import models
from tests.support import WAIT, until

#: In place of the two minutes of the manifest, which a test need not wait for.
RANGE = "5s"


def keda() -> tuple[str, float]:
    """The query and its threshold, over `RANGE`."""
    path = ROOT / "deploy/kubernetes/keda/scaledobject.yaml"
    (trigger,) = yaml.safe_load(path.read_text())["spec"]["triggers"]
    data = trigger["metadata"]
    assert "[2m]" in data["query"]
    return data["query"].replace("[2m]", f"[{RANGE}]"), float(data["threshold"])


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes `target` as it does in Kubernetes."""
    folder.mkdir()
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {
                "job_name": "popgate",
                "static_configs": [
                    {"targets": [target], "labels": {"pod": "popgate-0"}}
                ],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    socket_file = folder / "listening"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml"]
    command += [f"--storage.tsdb.path={folder}/data"]
    command += ["--web.listen-address=127.0.0.1:0", "--log.format=json"]
    with (
        socket_file.open("w+") as log,
        subprocess.Popen(command, stderr=log, stdout=log) as process,
    ):
        try:
            until(lambda: listening(socket_file), "Prometheus does not listen")
            address = listening(socket_file)
            with httpx.Client(base_url=f"http://{address}", timeout=WAIT) as client:
                yield client
        finally:
            process.kill()


def listening(log: Path) -> str:
    """The address in the log of Prometheus; empty before it is there."""
    for line in log.read_text().splitlines():
        told = json.loads(line) if line.endswith("}") else {}
        if told.get("msg") == "Listening on" and "127.0.0.1" in told["address"]:
            return str(told["address"])
    return ""


def value(client: httpx.Client, query: str) -> float:
    """What the query says now; -1 before there is anything."""
    answer = client.get("/api/v1/query", params={"query": query})
    if answer.status_code != 200:
        return -1.0
    result = answer.json()["data"]["result"]
    return float(result[0]["value"][1]) if result else -1.0


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus")
def test_a_saturated_python_model_is_over_the_threshold(tmp_path: Path) -> None:
    root = tmp_path / "models"
    (root / "sleepy" / "1").mkdir(parents=True)
    (root / "sleepy" / "1" / "model.py").write_text(SLEEPY)
    models.affine(root / "affine.popef")
    query, threshold = keda()
    options = ["--allow-python", "--devices", "cpu:3"]
    with ServedGateway(root, *options) as served:
        served.wait_ready()
        ends = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=served.url, timeout=WAIT) as client:
                while not ends.is_set():
                    body = {"inputs": {"x": [1.0]}}
                    client.post("/v1/models/sleepy/infer", json=body)

        target = served.url.removeprefix("http://")
        with prometheus(tmp_path / "prometheus", target) as client:
            until(lambda: value(client, query) >= 0)
            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            try:
                until(lambda: value(client, query) > threshold, "not saturated")
                busy = f"rate(popgate_device_busy_seconds_total[{RANGE}])"
                # One of four devices is busy, which the mean over them hides.
                assert value(client, f"avg by (pod) ({busy})") < threshold / 2
            finally:
                ends.set()
                for thread in threads:
                    thread.join()
            until(lambda: value(client, query) < threshold, "it stays saturated")
