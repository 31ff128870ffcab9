"""Bounds, processes, versions and sources in `/metrics` of real servers."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.app.served import ServedGateway, add
from tests.support import until


def value(served: ServedGateway, name: str, **labels: str) -> float:
    """The value of a sample; -1 if there is none."""
    shown = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
    sample = re.escape(f"{name}{{{shown}}}" if shown else name)
    found = re.search(
        rf"^{sample} (\S+)$", served.client.get("/metrics").text, re.MULTILINE
    )
    return float(found[1]) if found else -1.0


@pytest.mark.parametrize("workers", [1, 2])
def test_bounds_and_what_is_used_of_them(tmp_path: Path, workers: int) -> None:
    add(tmp_path, "affine", config="max_queue_size = 17\n")
    options = ["--workers", str(workers), "--max-connections", "50"]
    options += ["--transfer-memory", "100MiB"]
    with ServedGateway(tmp_path, *options) as served:
        served.wait_ready()
        assert value(served, "popgate_connections_limit") == 50
        assert value(served, "popgate_transfer_memory_limit_bytes") == 100 << 20
        assert value(served, "popgate_transfer_memory_bytes") == 0
        model = {"model": "affine", "version": "1"}
        assert value(served, "popgate_model_queue_limit", **model) == 17
        device = next(
            d["id"] for d in served.client.get("/v1/devices").json()["devices"]
        )
        assert value(served, "popgate_model_replica", device=device, **model) == 1
        for name in ("log_lines", "spans"):
            assert value(served, f"popgate_{name}_dropped_total") == 0
        address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        until(lambda: value(served, "popgate_connections") == 1)  # the one that asks
        held = [socket.create_connection(address) for _ in range(5)]
        until(lambda: value(served, "popgate_connections") == 6)
        body = b"x" * (1 << 20)
        head = b"POST /v1/models/affine/infer HTTP/1.1\r\nHost: x\r\n"
        held[0].sendall(head + b"Content-Length: %d\r\n\r\n" % (2 * len(body)) + body)
        until(lambda: value(served, "popgate_transfer_memory_bytes") > len(body) // 2)
        for connection in held:
            connection.close()
        until(lambda: value(served, "popgate_connections") == 1)
        until(lambda: value(served, "popgate_transfer_memory_bytes") == 0)


def test_each_instance_has_a_queue_of_its_own(tmp_path: Path) -> None:
    add(tmp_path, "affine", config="instances = 2\nmax_queue_size = 17\n")
    with ServedGateway(tmp_path, "--devices", "cpu:2") as served:
        served.wait_ready()
        labels = {"model": "affine", "version": "1"}
        assert value(served, "popgate_model_queue_limit", **labels) == 34


@pytest.mark.parametrize("workers", [1, 2])
def test_every_process_has_its_memory_and_its_time(
    tmp_path: Path, workers: int
) -> None:
    add(tmp_path, "affine")
    (tmp_path / "own" / "1").mkdir(parents=True)
    (tmp_path / "own" / "1" / "model.py").write_text(
        'class Own:\n    inputs = {"x": "FP32[1]"}\n    outputs = {"x": "FP32[1]"}\n'
        '    def __call__(self, x):\n        return {"x": x}\n'
    )
    options = ["--workers", str(workers), "--allow-python"]
    with ServedGateway(tmp_path, *options) as served:
        served.wait_ready()
        wanted = {("gateway", "gateway")}
        if workers > 1:
            wanted |= {("worker", f"worker:{number}") for number in range(workers)}
        for device in served.client.get("/v1/devices").json()["devices"]:
            kind = "python" if device["id"].startswith("python:") else "device"
            wanted.add((kind, device["id"]))
        assert {kind for kind, _ in wanted} >= {"gateway", "device", "python"}
        for name in ("resident_memory_bytes", "cpu_seconds_total"):
            for kind, process in wanted:
                sample = f"popgate_process_{name}"
                assert value(served, sample, kind=kind, process=process) > 0


def test_a_rollout_that_fails_is_seen_though_the_old_version_serves(
    tmp_path: Path,
) -> None:
    add(tmp_path, "affine")
    options = ["--repository-poll-secs", "0.1", "--model-control-mode", "poll"]
    with ServedGateway(tmp_path, *options) as served:
        served.wait_ready()
        name = "popgate_model_last_load_success"
        assert value(served, name, model="affine") == 1
        (tmp_path / "affine" / "2").mkdir()
        bad = tmp_path / "affine" / "2" / "m.popef"
        bad.write_bytes(b"no model")
        until(lambda: value(served, name, model="affine") == 0)
        assert value(served, "popgate_model_versions", state="READY") == 1
        assert value(served, "popgate_model_versions", state="FAILED") == 1
        assert value(served, "popgate_models", state="UNAVAILABLE") == 0
        bad.unlink()
        bad.parent.rmdir()
        until(lambda: value(served, name, model="affine") == 1)
        assert value(served, "popgate_model_versions", state="FAILED") == 0


def test_polls_that_fail_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    add(root, "affine")
    options = ["--repository-poll-secs", "0.1", "--model-control-mode", "poll"]
    with ServedGateway(root, *options) as served:
        served.wait_ready()
        at = "popgate_repository_last_poll_timestamp_seconds"
        failures = "popgate_repository_poll_failures_total"
        until(lambda: value(served, at) > 0)
        assert value(served, failures) == 0
        root.rename(tmp_path / "gone")
        until(lambda: value(served, failures) > 0)
        served.infer("affine", input=[[1.0, 2.0, 3.0, 4.0]])
        (tmp_path / "gone").rename(root)
        before = value(served, at)
        until(lambda: value(served, at) > before)
