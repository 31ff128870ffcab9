"""What all tests of programs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popart import logs


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Take back the levels of loggers that a program has set for the process."""
    yield
    for logger in logs._loggers.values():
        logger.level = None
