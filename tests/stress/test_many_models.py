"""Idle models cost next to nothing; the full counts: `make many-models`."""

from __future__ import annotations

from pathlib import Path

from bench.many_models import fill
from bench.models import write_models
from bench.processes import Usage
from bench.serving import compile_models, gateway

MANY = 60


def usage_of(repository: Path) -> Usage:
    with gateway(repository, devices="cpu:1") as server:
        server.wait_ready()
        return server.usage()


def test_idle_models_share_threads_and_descriptors(tmp_path: Path) -> None:
    source = write_models(tmp_path / "onnx", "small")["small"]
    assert compile_models([source], tmp_path / "compiled").returncode == 0
    model = tmp_path / "compiled" / "small.popef"
    one = usage_of(fill(tmp_path, model, 1))
    many = usage_of(fill(tmp_path, model, MANY))
    assert many.processes == one.processes
    # Threads that load models may still be ending; one for each would be 59 more.
    assert many.threads - one.threads < MANY // 4
    assert many.pss - one.pss < MANY * 2**20
