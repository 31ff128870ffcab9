"""A pytest plugin: run the longest files first, and keep what is collected out of gc.

The last file of a run occupies one process while the others have ended, so it has to be
a short one. Each of the processes that share the files has all 12,000 tests in memory.
A full collection of garbage there takes a quarter of a second, and some tests ask for
it.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

#: Files whose tests take the most time together, the longest first.
LONGEST = (
    "tests/stress/test_counts.py",
    "tests/docs/test_blocks.py",
    "plugins/onnx/tests/test_hostile_models.py",
    "tests/app/test_pairs.py",
    "plugins/pages/tests/test_pages.py",
    "tests/app/test_pairs_at_work.py",
    "tests/native/test_modules.py",
    "plugins/tools/tests/perf/test_perf.py",
    "plugins/telemetry/tests/test_spans.py",
    "tests/conformance/test_triton_examples.py",
    "tests/deploy/test_deploy.py",
    "tests/examples/test_scripts.py",
    "plugins/pages/tests/test_axe.py",
    "tests/app/http/connection/test_pipelining.py",
    "plugins/popxl/tests/popir/instances/test_launcher.py",
    "tests/app/repository/test_repository.py",
    "plugins/tools/tests/test_pack.py",
    "tests/stress/test_bench.py",
    "tests/test_architecture.py",
    "plugins/remote/tests/test_served.py",
    "plugins/pages/tests/test_drawings.py",
    "plugins/model_runtime/tests/test_listings.py",
    "tests/app/http/test_hostile.py",
    "tests/app/test_serving.py",
    "plugins/python_models/tests/popgate_python_interface/test_routes.py",
    "plugins/popxl/tests/popir/test_programs.py",
    "plugins/tools/tests/tune/test_tune.py",
    "tests/popef_io/test_damage.py",
    "plugins/python_models/tests/test_python_file.py",
    "tests/app/http/test_tls.py",
    "tests/native/test_wheel.py",
    "tests/app/repository/test_device_failures.py",
    "tests/native/test_locks.py",
    "tests/native/test_build.py",
    "tests/app/http/connection/test_transfers.py",
    "tests/stress/test_simulator.py",
    "tests/app/serving/test_shares.py",
    "plugins/pages/tests/test_conformance.py",
    "plugins/tools/tests/test_pack_sklearn.py",
    "plugins/workers/tests/test_workers.py",
    "plugins/client/tests/test_faults.py",
    "tests/engine/runner/test_replica_channel.py",
)
_RANKS = {name: rank for rank, name in enumerate(LONGEST)}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without a garbage collector, and have it pass over the result."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """After a file, have the garbage collector pass over what is there by then.

    A hundred files leave a million objects, mostly of modules. To look at all of them
    takes a quarter of a second, and tests that leave garbage have it collected.
    """
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the longest files to the front; the order within a file remains."""
    items.sort(key=lambda item: _RANKS.get(item.nodeid.partition("::")[0], len(_RANKS)))
