"""The example model, and a runner of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import own_device, shared_device

__all__ = ["own_device", "shared_device"]

import model_runtime

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    """A small machine: the default pool has two devices, however large this one is."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[:2])
    yield
    os.sched_setaffinity(0, all_cores)


@pytest.fixture(scope="session")
def simple(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file `simple.popef`, as the example writes it."""
    folder = tmp_path_factory.mktemp("simple")
    script = ROOT / "examples" / "build_popef.py"
    subprocess.run([sys.executable, script, "--out", folder], check=True, timeout=60)
    return str(folder / "simple.popef")


@pytest.fixture(scope="module")
def runner(simple: str) -> Iterator[model_runtime.ModelRunner]:
    """A runner that the tests of a module share."""
    runner = model_runtime.ModelRunner(simple)
    yield runner
    del runner


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Levels that a test sets for loggers of `popart` are its own."""
    yield
    logs = sys.modules.get("popart.logs")
    for logger in () if logs is None else logs._loggers.values():
        logger.level = None
