"""Idle models cost next to nothing; the full counts: `make many-models`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases.models import write_models
from bench.many_models import Ratio, fill
from bench.servers.processes import Usage
from bench.servers.server import compile_models, gateway

MANY = 60


def usage_of(repository: Path) -> Usage:
    with gateway(repository, devices="cpu:1") as server:
        server.wait_ready()
        return server.usage()


@pytest.mark.stress
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


def test_a_ratio_fails_only_where_noise_does_not_explain_it() -> None:
    assert Ratio.of([1.0] * 20) == Ratio(1.0, 1.0, 1.0)
    ranked = [number / 20 for number in range(1, 21)]
    assert Ratio.of(ranked[::-1]) == Ratio(0.525, 0.3, 0.75)
    assert Ratio.of([0.5]) == Ratio(0.5, 0.5, 0.5)
    assert Ratio(0.95, 0.7, 1.2).verdict(0.9) == "pass"
    assert Ratio(0.84, 0.7, 1.2).verdict(0.9).startswith("not clear")
    assert Ratio(0.84, 0.8, 0.88).verdict(0.9) == "FAIL"
