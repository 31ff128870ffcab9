"""What all tests share: devices, examples and a cache of their own."""

from __future__ import annotations

import os

# Before anything of ours is imported: the devices of a gateway that happens to run on
# this machine are not ours, and two test runs, or two workers of one run, do not wait
# for each other.
os.environ["POPGATE_POOL"] = f"tests-{os.getpid()}"
os.environ.pop("POPGATE_DEVICES", None)

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.app.served import ServedGateway

# The same examples in every run, however slow the machine is at the moment: what fails
# has been changed. `pytest --hypothesis-profile=default` looks for examples of its own.
settings.register_profile(
    "popgate",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("popgate")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled models are kept in a folder of this run, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """A gateway with the triton profile: ask, but leave it as it is."""
    cache: Path = tmp_path_factory.mktemp("cache")
    options = ("--profile", "triton", "--cache-dir", str(cache), "--metrics-port", "0")
    with ServedGateway(None, *options) as served:
        yield served.wait_ready()
