"""A pytest plugin: a process that shares the test files sends two messages for a test.

Without it there are five for each of 12,000 tests: its start, its setup, its call, its
teardown and its end. To pack and to unpack them took more than many of the tests do.
A setup or a teardown that fails is sent as before.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol


def pytest_configure(config: pytest.Config) -> None:
    """Register what is left out where a run is shared and asks for no durations."""
    if hasattr(config, "workerinput") and config.option.durations is None:
        config.pluginmanager.register(_Fewer())


class _Fewer:
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
