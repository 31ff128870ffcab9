"""A worker hears of changed models while a device does not answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.spec import ModelSpec
from engine import Device, DeviceManager, ObjectField, RunnerDescription
from engine.devices import device as device_module
from engine.model.batch_plan import BatchPlan
from engine.transport.channel import ChannelLayout
from popgate_workers import announcements
from popgate_workers.announcements import Announcements
from popgate_workers.messages import (
    TO_WORKER,
    JoinDevice,
    ModelChanged,
    SharedEntry,
    SharedModel,
    ToWorker,
)
from tests.support import WAIT


class Published:
    """Two models on one device, of which the second is always there."""

    def __init__(self, device: Device) -> None:
        self._runner = SimpleNamespace(devices=(device,))

    def names(self) -> list[str]:
        return ["slow", "other"]

    def default_of(self, name: str) -> str:
        return "1"

    def device_number(self, device_id: str) -> int:
        return 0

    def entries_of(self, name: str) -> Iterator[tuple[SharedEntry, Any]]:
        if name == "slow":
            plan, layout = BatchPlan(0, 0, 1, 8, (), ()), ChannelLayout(4, (), ())
            runner = RunnerDescription("slow/1", (), (), plan, layout, 64)
            spec = ObjectField(ModelSpec("slow", "1", (), ()))
            yield (
                SharedEntry(5, 1, spec, SharedModel(ObjectField(runner))),
                self._runner,
            )


async def heard(sock: socket.socket) -> ToWorker:
    while True:
        try:
            message, fds = TO_WORKER.receive(sock)
        except BlockingIOError:
            await asyncio.sleep(0.01)
            continue
        for fd in fds:
            os.close(fd)
        return message


def test_a_device_that_does_not_answer_keeps_no_change_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its model runs in the supervisor, until the device answers again."""
    monkeypatch.setattr(device_module, "STOP_TIMEOUT", 0.2)
    monkeypatch.setattr(announcements, "_AGAIN", 0.1)

    async def run(device: Device) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        published: Any = Published(device)
        told = Announcements(published, ours)
        pid = device.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        task = asyncio.create_task(told.send_all())
        try:
            first, second = await heard(theirs), await heard(theirs)
            assert isinstance(first, ModelChanged)
            assert (first.name, first.entries) == ("slow", ())
            assert isinstance(second, ModelChanged)
            assert second.name == "other"
            os.kill(pid, signal.SIGCONT)
            while isinstance(message := await heard(theirs), ModelChanged):
                assert message.entries == ()  # it was still stopped
            assert isinstance(message, JoinDevice)
            last = await heard(theirs)
            assert isinstance(last, ModelChanged)
            assert [entry.key for entry in last.entries] == [5]
        finally:
            os.kill(pid, signal.SIGCONT)
            task.cancel()
            ours.close()
            theirs.close()

    with DeviceManager("cpu:20-20").get_device() as device:
        asyncio.run(asyncio.wait_for(run(device), WAIT))


def test_a_change_that_cannot_be_sent_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(announcements, "MOST", 1)
    published: Any = SimpleNamespace(
        names=lambda: ["m"], default_of=lambda _: "1", entries_of=lambda _: ()
    )

    async def run() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            told = Announcements(published, ours)
            assert told.is_behind
            task = asyncio.create_task(told.send_all())
            while "cannot tell a worker" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert not told.is_behind
            task.cancel()

    asyncio.run(asyncio.wait_for(run(), WAIT))
