"""Processes die and stop under load; the acts are those of `make chaos`.

What two gateways do with one device is in tests/app/test_serving.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases.workload import Job
from bench.chaos import (
    device_killed,
    gateway_killed,
    group_terminated,
    rows_apart,
    terminated,
)
from bench.soak import prepare

CLIENTS = 16


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Job]]:
    """A repository folder and requests with their answers."""
    folder = tmp_path_factory.mktemp("chaos")
    return folder / "models", prepare(folder, ("small", "slow", "mixing"), 20)


@pytest.mark.stress
def test_device_process_killed(models: tuple[Path, list[Job]]) -> None:
    assert "back in" in device_killed(*models, CLIENTS)


@pytest.mark.stress
def test_gateway_killed(models: tuple[Path, list[Job]]) -> None:
    assert "next start" in gateway_killed(*models, CLIENTS)


@pytest.mark.stress
def test_terminated(models: tuple[Path, list[Job]]) -> None:
    assert "exit 0" in terminated(*models, CLIENTS)


@pytest.mark.stress
def test_terminated_with_its_whole_group(models: tuple[Path, list[Job]]) -> None:
    assert "exit 0" in group_terminated(*models, CLIENTS)


@pytest.mark.stress
def test_rows_that_depend_on_each_other(models: tuple[Path, list[Job]]) -> None:
    assert "right answers" in rows_apart(*models, each=10)
