"""What all tests share: devices, examples and a cache of their own."""

from __future__ import annotations

import os
import signal

# Before anything of ours is imported: the devices of a gateway that happens to run on
# this machine are not ours, and two test runs, or two workers of one run, do not wait
# for each other.
os.environ["POPGATE_POOL"] = f"tests-{os.getpid()}"
os.environ.pop("POPGATE_DEVICES", None)
# Before NumPy is imported: its threads wait for each other by spinning, on cores that
# four processes share.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Many tests load and unload models; those about who may take it away again.
os.environ["POPGATE_TRUST_LOOPBACK"] = "1"
# What `tests.warm` forks is this run's own: the workers of a run share what forks.
os.environ["WARM_TESTS_RUN"] = str(
    os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
)

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tests.authorities
import tests.warm  # noqa: F401 - before the engine, which starts processes
from tests.app.served import ServedGateway

#: Fixtures for the tests of the core and of the plugins: one gateway for all of them.
pytest_plugins = ["tests.app.fixtures", "tests.app.cli.fixtures"]

# A shell ignores Ctrl-C in what it starts in the background, and so would all that is
# started here, which some tests interrupt.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        is_int = number is signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_int else signal.SIG_DFL)

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
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled models are kept in a folder of this run, not in the user's.

    The workers of a run share it: a model that one has compiled is there for all.
    """
    root = tmp_path_factory.getbasetemp()  # of this worker, where there are any
    cache = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield cache


@pytest.fixture(scope="session")
def triton(compile_cache: Path) -> Iterator[ServedGateway]:
    """A gateway with the triton profile: ask, but leave it as it is."""
    folder = compile_cache / "triton"
    options = ["--profile", "triton", "--cache-dir", str(folder), "--metrics-port", "0"]
    options += ["--allow-shared-memory"]
    with ServedGateway(None, *options) as served:
        yield served.wait_ready()
