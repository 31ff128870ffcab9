"""Several feeders of the gateway's devices, told as one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Sequence

import pytest

from app.observe.answers import Answers
from app.observe.metrics import ModelMetrics
from app.serving.feeders import Feeder, Feeders, FeedingProcess, device_key
from engine import Device, DeviceManager
from tests.support import WAIT, until


class Told:
    """A feeder that keeps what it was told."""

    def __init__(self, name: str, told: list[object]) -> None:
        self.name, self.told = name, told
        self.answers = Answers()

    def model_changed(self, name: str) -> None:
        self.told.append((self.name, name))

    async def release(self, runners: Sequence[object]) -> None:
        self.told.append((self.name, *runners))

    def counted(self, name: str, version: str) -> Iterable[ModelMetrics]:
        return (ModelMetrics(self.name, version),)

    def answered(self) -> Iterable[Answers]:
        return (self.answers,)


def test_all_of_them_are_told_in_order() -> None:
    told: list[object] = []
    first, second = Told("first", told), Told("second", told)
    feeders = Feeders()
    feeders.add(first, second)
    feeders.model_changed("m")
    asyncio.run(feeders.release(["runner"]))
    assert told == [
        *(("first", "m"), ("second", "m")),
        *(("first", "runner"), ("second", "runner")),
    ]
    assert [one.name for one in feeders.counted("m", "1")] == ["first", "second"]
    assert list(feeders.answered()) == [first.answers, second.answers]
    both: Feeder = feeders
    assert both is feeders


class Broken(Told):
    """A feeder that fails."""

    def model_changed(self, name: str) -> None:
        super().model_changed(name)
        raise RuntimeError("broken")


def test_others_are_told_after_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []
    feeders = Feeders()
    feeders.add(Broken("first", told), Told("second", told))
    feeders.model_changed("m")
    assert told == [("first", "m"), ("second", "m")]
    assert "RuntimeError: broken" in caplog.text


def test_a_process_releases_runners_or_ends() -> None:
    async def check() -> None:
        first, second, end = object(), object(), FeedingProcess()
        process = FeedingProcess()
        process.held |= {1: first, 2: second, 3: first}
        assert await process.released([object()], WAIT)
        assert not await process.released([second], 0.0)
        waits = [
            asyncio.create_task(process.released(runners, WAIT))
            for runners in ([first], [second])
        ]
        for key in (1, 2, 4):
            process.left(key)
            await asyncio.sleep(0)
        assert await waits[1]
        assert not waits[0].done()
        process.process_ended()
        assert await waits[0]
        end.held[1] = first
        end.process_ended()
        assert await end.released([first], WAIT)

    asyncio.run(check())


def test_a_process_joins_each_process_of_a_device_once() -> None:
    async def check(device: Device) -> None:
        process = FeedingProcess()
        with pytest.raises(BlockingIOError):
            async with process.doors([device]):
                raise BlockingIOError  # it was not told
        for number in range(2):
            async with process.doors([device, device]) as doors:
                assert list(doors) == [(device_key(device), device.id)][number:]
        before = device_key(device)
        assert device.pid is not None
        os.kill(device.pid, signal.SIGKILL)
        until(lambda: not device.check())
        device.recover()
        async with process.doors([device]) as doors:
            ((key, _),) = doors
            assert key == device_key(device) != before

    with DeviceManager("cpu:21-21").get_device() as device:
        asyncio.run(check(device))
