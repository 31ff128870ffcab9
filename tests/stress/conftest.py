"""What the tests of `bench` and of long runs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


# Not of the package: this folder is none, so that would be until the end of the run.
@pytest.fixture(autouse=True, scope="module")
def devices_are_children() -> Iterator[None]:
    """As with users: `bench` looks for the devices of a gateway among its children,
    where those that `tests.warm` forks are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("WARM_TESTS_RUN")
        yield
