"""A device for the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine import Device, DeviceManager


@pytest.fixture(scope="module")
def shared_device() -> Iterator[Device]:
    """One device for the tests of a module that do not kill it."""
    with DeviceManager("cpu:1").get_device() as device:
        yield device


@pytest.fixture
def own_device() -> Iterator[Device]:
    """A device for one test, which may kill it."""
    with DeviceManager("cpu:20-20").get_device() as device:
        yield device
