"""One gateway with the triton profile, for the tests that do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.serving import ServedGateway


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    cache: Path = tmp_path_factory.mktemp("cache")
    with ServedGateway(
        None, "--profile", "triton", "--cache-dir", str(cache)
    ) as served:
        yield served.wait_ready()
