"""Life and death of a device: killed, hung, stopped; nobody waits for ever.

Covers: engine/devices/connection.py, engine/devices/device_launch.py,
engine/devices/device_state.py, engine/owner.py, engine/worker/device_process.py,
engine/worker/device_service.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine import (
    Device,
    DeviceClosed,
    DeviceLost,
    DeviceManager,
    DeviceState,
    InvalidConfig,
    ModelRunner,
    ModelRunnerConfig,
    NoDeviceAvailable,
    PythonOptions,
    Tensor,
)
from engine.devices import python_options
from engine.devices.device import pause_after
from engine.transport import control
from engine.transport.device_messages import Done, Invite, OpenChannel, Ping, Status
from engine.transport.error_report import ErrorReport
from engine.transport.messages import Message, encode
from tests.engine import models
from tests.support import is_gone, until

ROOT = Path(__file__).parents[3]


def test_pauses_between_starts_double_up_to_a_limit() -> None:
    pauses = [pause_after(failures) for failures in range(12)]
    assert pauses[:5] == [0, 0.05, 0.1, 0.2, 0.4]
    assert pauses[-1] == pause_after(2000) == 10  # hours later


def count_of(value: int) -> dict[str, Tensor]:
    return {"count": Tensor.from_numpy(np.array(value, np.int64))}


def test_a_channel_is_not_open_whose_process_died_as_it_opened(
    tmp_path: Path, own_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a number of the old process. The new one knows no such channel, or another
    one."""
    config = ModelRunnerConfig(replica_to_device={0: own_device}, auto_reset=True)
    path, ask = models.affine(tmp_path / "m.popef"), own_device.process.ask
    row = {"input": np.zeros((1, 4), np.float32)}
    killed: list[int] = []

    def ask_and_kill(message: Message, *arguments: Any) -> Any:
        answer, pid = ask(message, *arguments), own_device.pid
        if isinstance(message, OpenChannel) and not killed:
            assert pid is not None
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
            until(lambda: not own_device.check())
        return answer

    with ModelRunner(path, config) as runner:
        monkeypatch.setattr(own_device.process, "ask", ask_and_kill)
        with pytest.raises(DeviceLost, match="its process died of SIGKILL"):
            ModelRunner(path, config)
        assert runner.execute(row, timeout=60)["output"].shape == (1, 4)
        killed.clear()  # now while the model is loaded again
        os.kill(own_device.process.pid or 0, signal.SIGKILL)
        until(lambda: not own_device.check())
        with pytest.raises(DeviceLost, match="its process died of SIGKILL"):
            runner.execute(row, timeout=60)
        assert runner.execute(row, timeout=60)["output"].shape == (1, 4)


def test_a_killed_device_fails_its_requests_and_comes_back(
    tmp_path: Path, own_device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: own_device}, auto_reset=True)
    lost: list[Device] = []
    own_device.on_lost(lost.append)
    with ModelRunner(models.slow(tmp_path / "m.popef"), config) as runner:
        requests = [runner.submit(count_of(1_000_000)) for _ in range(3)]
        pid = own_device.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for request in requests:
            assert request.wait(20)
            assert isinstance(request.error, DeviceLost)
        assert lost == [own_device]
        assert own_device.state is DeviceState.LOST
        with pytest.raises(DeviceLost):
            runner.submit(count_of(1))
        # A blocking caller brings it back by itself (auto_reset).
        assert runner.execute({"count": np.array(1, np.int64)}, timeout=60)
        assert own_device.state.value == "ready"
        assert own_device.restarts == 1
        assert own_device.pid != pid
        assert is_gone(pid)


def test_closing_a_device_that_comes_back_ends_its_new_process(
    own_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int | None] = []
    closing = threading.Thread(target=own_device.close)

    def link_up(*arguments: Any) -> Any:
        answer = ask(*arguments)
        pids.append(own_device.pid)
        closing.start()
        until(lambda: own_device.state is DeviceState.CLOSED)
        return answer

    assert own_device.pid is not None
    os.kill(own_device.pid, signal.SIGKILL)
    until(lambda: not own_device.check())
    ask = control.ask
    monkeypatch.setattr(control, "ask", link_up)
    with pytest.raises(DeviceClosed):
        own_device.recover()
    closing.join(20)
    assert not closing.is_alive()
    assert own_device.state is DeviceState.CLOSED
    assert own_device.pid is None
    (pid,) = pids
    assert not Path(f"/proc/{pid}").exists()


def test_a_device_that_lives_is_not_reset(tmp_path: Path, own_device: Device) -> None:
    config = ModelRunnerConfig(replica_to_device={0: own_device}, auto_reset=True)
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        pid = own_device.pid
        assert runner.execute({"input": np.zeros((1, 4), np.float32)}, timeout=30)
        assert own_device.check()
        assert (own_device.pid, own_device.restarts) == (pid, 0)


def test_without_auto_reset_it_stays_lost(tmp_path: Path, own_device: Device) -> None:
    config = ModelRunnerConfig(replica_to_device={0: own_device})
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        own_device.kill("killed by a test")
        with pytest.raises(DeviceLost):
            runner.execute({"input": np.zeros((1, 4), np.float32)})
        own_device.recover()
        assert runner.execute({"input": np.zeros((1, 4), np.float32)})


def test_closing_a_device_that_hangs(tmp_path: Path) -> None:
    manager = DeviceManager("cpu:21-21")
    device = manager.get_device()
    pid = device.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    device.close()
    assert is_gone(pid)
    assert manager.list()[0].state == "free"


def test_closing_ends_the_process_and_frees_the_device(tmp_path: Path) -> None:
    manager = DeviceManager("cpu:21-21")
    device = manager.get_device()
    config = ModelRunnerConfig(replica_to_device={0: device})
    runner = ModelRunner(models.slow(tmp_path / "m.popef"), config)
    request = runner.submit(count_of(1_000_000))
    pid = device.pid
    assert pid is not None
    device.close()
    assert request.done
    assert isinstance(request.error, DeviceClosed)
    assert is_gone(pid)
    assert manager.list()[0].state == "free"
    with pytest.raises(DeviceClosed):
        device.call(Ping(), Status)
    runner.close()
    device.close()
    assert "closed" in repr(device)


OWNER = """
    import sys, threading
    from engine import DeviceManager
    device = DeviceManager("cpu:22-22").get_device()
    print(device.pid, flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("when", ["idle", "stopped"])
def test_when_the_owner_is_killed_the_process_goes_and_the_device_is_free(
    when: str,
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        manager = DeviceManager("cpu:22-22")
        info = manager.list()[0]
        assert (info.state, info.pid, info.owner) == ("attached", pid, owner.pid)
        with pytest.raises(NoDeviceAvailable):
            manager.get_device()
        if when == "stopped":
            os.kill(pid, signal.SIGSTOP)
        owner.kill()
        if when == "stopped":
            # The kernel's signal is delivered as soon as it may run again.
            os.kill(pid, signal.SIGCONT)
        until(lambda: is_gone(pid))
        until(lambda: manager.list()[0].state == "free")
    with manager.get_device() as device:
        assert device.pid != pid


def test_no_shared_memory_has_a_name_and_no_descriptor_is_left(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with DeviceManager("cpu:23-23").get_device() as device:
            config = ModelRunnerConfig(replica_to_device={0: device})
            with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
                assert runner.execute({"input": np.zeros((1, 4), np.float32)})
                for pid in (os.getpid(), device.pid):
                    maps = Path(f"/proc/{pid}/maps").read_text()
                    assert "memfd:" in maps
                    assert "/dev/shm/" not in maps
            ModelRunner(tmp_path / "m.popef", config)
            device.kill("killed by a test")
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_process_without_a_command_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_plugin() -> None:
        raise InvalidConfig(python_options.NO_PLUGIN)

    monkeypatch.setattr(python_options, "_kind", no_plugin)
    manager = DeviceManager("cpu:1")
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidConfig, match="no plugin that runs Python models"):
        manager.create_python_device(PythonOptions())
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_an_error_of_a_callback_is_raised_and_the_next_call_closes(
    own_device: Device,
) -> None:
    calls: list[Device] = []

    def fail(device: Device) -> None:
        calls.pop()

    own_device.on_close(calls.append)
    own_device.on_close(fail)
    with pytest.raises(IndexError):
        own_device.close()
    assert calls == [own_device]
    own_device.close()
    assert own_device.state is DeviceState.CLOSED


def test_an_unknown_message_is_answered_with_a_named_error(own_device: Device) -> None:
    from engine import EngineBug

    with pytest.raises(EngineBug, match="Invalid value 'Done'"):
        own_device.call(Done(), Done)
    with control.connect(own_device.process.address, 30) as sock:
        for raw, why in (
            (b"nonsense", "malformed"),
            (msgspec.msgpack.encode(["Load", 0]), "at least length 15"),
            (msgspec.msgpack.encode(["Unload", "1"]), "Expected `int`, got `str`"),
            (msgspec.msgpack.encode(["Save", -1]), "Expected `int` >= 0"),
            (
                msgspec.msgpack.encode(["OpenChannel", 1, 1, [0, [], [], []]]),
                "Expected `int` >= 1",
            ),
            (encode(Invite()), "Invite expects 1 descriptors beside it, got 0"),
        ):
            sock.send(raw)
            answer, _ = control.answers_of(Done).receive(sock)
            assert isinstance(answer, ErrorReport)
            assert why in answer.message
        # The connection still answers.
        assert control.ask(sock, Ping(), Status)[0].replicas == 0


def test_a_model_whose_file_was_cut_short_keeps_no_other_away(
    tmp_path: Path, own_device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: own_device}, auto_reset=True)
    path, other = models.weighted(tmp_path / "a.popef"), tmp_path / "b.popef"
    with (
        ModelRunner(path, config) as cut,
        ModelRunner(models.affine(other), config) as whole,
    ):
        assert cut.serving
        os.truncate(path, 100)
        assert own_device.pid is not None
        os.kill(own_device.pid, signal.SIGKILL)
        until(lambda: not own_device.check())
        own_device.recover()
        data = np.ones((1, 4), np.float32)
        assert whole.execute({"input": data}, timeout=60)["output"].shape == (1, 4)
        assert whole.serving
        assert not cut.serving
