"""The runner end to end: real files, real device process, real rings.

Covers: engine/model/anchors.py, engine/model/frozen.py, engine/model/interface.py,
engine/model/validation.py, engine/runner/model_health.py,
engine/runner/replica_channel.py, engine/runner/result.py, engine/worker/loading.py,
engine/worker/scheduler.py.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    Cancelled,
    DeadlineExceeded,
    DeadlineUnreachable,
    Device,
    EngineError,
    ExecutionFailed,
    InvalidConfig,
    InvalidInput,
    InvalidModel,
    ModelRunner,
    ModelRunnerConfig,
    QueueFull,
    Request,
    RunnerClosed,
    Tensor,
    UnknownAnchor,
)
from engine.runner.replica_channel import ReplicaChannel
from tests.engine import models
from tests.support import WAIT, occupied, until


def on(device: Device, **options: object) -> ModelRunnerConfig:
    return ModelRunnerConfig(replica_to_device={0: device}, **options)  # type: ignore[arg-type]


def rows(*values: float) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.array([[v] * 4 for v in values], np.float32)


def wait_all(requests: list[Request]) -> None:
    for request in requests:
        assert request.wait(30)


def error_of(
    runner: ModelRunner, tensors: Mapping[str, Tensor], deadline: float
) -> EngineError:
    request = runner.submit(tensors, deadline=deadline)
    wait_all([request])
    assert request.error is not None
    return request.error


def test_numbers_may_be_numpys(tmp_path: Path, shared_device: Device) -> None:
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        replica, timeout = np.int64(0), np.float32(WAIT)
        result = runner.execute_async(
            {"input": rows(1)}, replica_id=replica, timeout=timeout
        )
        assert result.wait(timeout)
        runner.execute({"input": rows(1)}, replica_id=replica, timeout=np.int64(WAIT))
        for late in (1e12, math.inf):
            runner.execute({"input": rows(1)}, timeout=late)
        tensors = {"input": Tensor.from_numpy(rows(1))}
        for early in (-1e12, -math.inf, math.nan):
            with pytest.raises((DeadlineExceeded, DeadlineUnreachable)):
                runner.execute({"input": rows(1)}, timeout=early)
        for passed in (0.0, -1.0, math.nan):
            with pytest.raises((DeadlineExceeded, DeadlineUnreachable)):
                raise error_of(runner, tensors, passed)
        assert runner.tracepoints(replica).count == 0
        assert runner.run_save_programs(replica) == {}
        with pytest.raises(InvalidInput, match="from 0 to 0, got 1"):
            runner.execute({"input": rows(1)}, replica_id=np.int64(1))
        for wrong in (np.int64(1), -1):
            with pytest.raises(InvalidInput, match=f"from 0 to 0, got {wrong}"):
                runner.submit(tensors, replica_id=wrong)
        request = runner.submit(tensors, replica_id=replica)
        wait_all([request])


@pytest.mark.parametrize("count", [1, 2, 7, 200])
def test_rows_of_any_number_come_back(
    tmp_path: Path, shared_device: Device, count: int
) -> None:
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        data = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
        assert np.array_equal(runner.execute({"input": data})["output"], data * 2 + 1)
        assert runner.batching
        assert runner.in_flight == 0


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 11])
def test_a_fixed_batch_is_padded_and_split(
    tmp_path: Path, shared_device: Device, count: int
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = on(shared_device, batching_dim=0, timeout_ns=1)
    with ModelRunner(path, config) as runner:
        data = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
        assert np.array_equal(runner.execute({"input": data})["output"], data * 2 + 1)


def test_many_requests_in_flight_each_get_their_rows(
    tmp_path: Path, shared_device: Device
) -> None:
    rng = np.random.default_rng(1)
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        sent = [
            rng.normal(size=(rng.integers(1, 9), 4)).astype(np.float32)
            for _ in range(700)
        ]
        requests = [runner.submit({"input": Tensor.from_numpy(x)}) for x in sent]
        wait_all(requests)
        for data, request in zip(sent, requests, strict=True):
            assert request.error is None
            assert np.array_equal(request.outputs["output"].numpy(), data * 2 + 1)
        assert max(r.batch_rows for r in requests) > 8  # they did run together


def test_a_model_that_is_not_batched_runs_alone(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.mean_over_rows(tmp_path / "m.popef")
    with ModelRunner(path, on(shared_device)) as runner:
        assert not runner.batching
        sent = [
            np.random.default_rng(i).normal(size=(3, 4)).astype("f4") for i in range(50)
        ]
        requests = [runner.submit({"input": Tensor.from_numpy(x)}) for x in sent]
        wait_all(requests)
        for data, request in zip(sent, requests, strict=True):
            np.testing.assert_allclose(
                request.outputs["output"].numpy(), data - data.mean(0), atol=1e-6
            )


def test_frozen_inputs_win_over_the_file(tmp_path: Path, shared_device: Device) -> None:
    path = models.weighted(tmp_path / "m.popef")
    a, b = np.ones((2, 3), np.float32), np.full((2, 3), 10, np.float32)
    stored = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ModelRunner(path, on(shared_device)) as runner:
        assert [d.name for d in runner.execute_inputs] == ["A", "B"]
        assert np.array_equal(runner.execute({"A": a, "B": b})["output"], stored + 10)
    frozen = {"weights": np.full((2, 3), 5, np.float32), "B": b}
    with ModelRunner(path, on(shared_device, frozen_inputs=frozen)) as runner:
        assert [d.name for d in runner.execute_inputs] == ["A"]
        assert np.array_equal(runner.execute({"A": a})["output"], a * 5 + 10)


def test_frozen_inputs_are_checked(tmp_path: Path, shared_device: Device) -> None:
    path = models.weighted(tmp_path / "m.popef")
    with pytest.raises(UnknownAnchor, match="nonsense"):
        ModelRunner(path, on(shared_device, frozen_inputs={"nonsense": np.ones(1)}))
    with pytest.raises(InvalidInput, match=r"shape \[7\], the model expects \[2, 3\]"):
        ModelRunner(path, on(shared_device, frozen_inputs={"B": np.ones(7, "f4")}))
    with pytest.raises(InvalidInput, match="F32, got float64"):
        ModelRunner(path, on(shared_device, frozen_inputs={"B": np.ones((2, 3))}))


def test_strings_travel_and_mix(tmp_path: Path, shared_device: Device) -> None:
    with ModelRunner(models.text(tmp_path / "m.popef"), on(shared_device)) as runner:
        sent = [
            np.array(["", "ä" * n, b"x"][: 1 + n % 3], dtype=object) for n in range(60)
        ]
        requests = [runner.submit({"input": Tensor.from_numpy(x)}) for x in sent]
        wait_all(requests)
        for words, request in zip(sent, requests, strict=True):
            raw = [w.encode() if isinstance(w, str) else w for w in words]
            got = request.outputs["output"].numpy().tolist()
            assert got == [w + b"!" for w in raw]


class SlowMemory(dict[str, np.ndarray[Any, Any]]):
    """Memory for outputs that takes its time to be found in other threads."""

    def __init__(self, **arrays: np.ndarray[Any, Any]) -> None:
        super().__init__(**arrays)
        self.maker = threading.get_ident()
        self.asked, self.go = threading.Event(), threading.Event()

    def get(self, name: str, default: Any = None) -> Any:
        if threading.get_ident() != self.maker:
            self.asked.set()
            assert self.go.wait(30)
        return super().get(name, default)


def test_a_result_is_whole_for_every_thread(
    tmp_path: Path, shared_device: Device
) -> None:
    memory = SlowMemory(output=np.zeros((1, 4), np.float32))
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        result = runner.execute_async({"input": rows(3)}, memory)
        assert result.request is not None
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(result.wait)
            assert memory.asked.wait(30)
            assert not result.request.done
            second = pool.submit(lambda: result["output"].tolist())
            with pytest.raises(TimeoutError):
                second.result(0.05)
            memory.go.set()
            assert first.result(30)
            assert second.result(30) == rows(7).tolist()


def test_callers_memory_is_filled(tmp_path: Path, shared_device: Device) -> None:
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        target = np.zeros((1, 4), np.float32)
        result = runner.execute_async({"input": rows(3)}, {"output": target})
        assert result.wait(30)
        assert np.array_equal(target, rows(7))
        assert result["output"] is target
        with pytest.raises(InvalidInput, match="nope"):
            runner.execute({"input": rows(3)}, {"nope": target})
        wrong = np.zeros((2, 3), np.float32)
        with pytest.raises(InvalidInput, match="output"):
            runner.execute({"input": rows(3)}, {"output": wrong})


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        ({}, InvalidInput, "'input' is missing"),
        ({"other": rows(1)}, UnknownAnchor, "no input 'other'; it has"),
        ({"input": rows(1).astype("f8")}, InvalidInput, "F64"),
        ({"input": np.ones((1, 5), "f4")}, InvalidInput, r"expects shape \[-1, 4\]"),
        ({"input": np.ones(4, "f4")}, InvalidInput, r"got \[4\]"),
    ],
)
def test_bad_input_is_refused_and_the_next_request_works(
    tmp_path: Path,
    shared_device: Device,
    inputs: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    error: type[EngineError],
    words: str,
) -> None:
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        tensors = {k: Tensor.from_numpy(v) for k, v in inputs.items()}
        with pytest.raises(error, match=words):
            runner.submit(tensors)
        assert np.array_equal(runner.execute({"input": rows(1)})["output"], rows(3))


def test_arrays_of_another_type_are_refused(
    tmp_path: Path, shared_device: Device
) -> None:
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        for dtype in (np.int32, np.float64, np.float16, np.uint32):
            with pytest.raises(InvalidInput, match="must be F32, got"):
                runner.execute({"input": np.ones((1, 4), dtype)})
        assert np.array_equal(runner.execute({"input": rows(1)})["output"], rows(3))


@pytest.mark.parametrize(
    "wrong", [[1.0], None, np.ma.masked_array(np.ones((1, 4), "f4"), mask=True)]
)
def test_what_is_no_plain_array_is_refused_by_its_kind(
    tmp_path: Path, shared_device: Device, wrong: Any
) -> None:
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        kind = type(wrong).__name__
        words = f"input 'input': expected a plain numpy array, got {kind}$"
        with pytest.raises(InvalidInput, match=words):
            runner.execute({"input": wrong})


@pytest.mark.parametrize(
    "wrong", [["a"], None, np.array([5], object), np.array(["\ud800"])]
)
def test_what_is_no_array_of_strings_is_refused(
    tmp_path: Path, shared_device: Device, wrong: Any
) -> None:
    with ModelRunner(models.text(tmp_path / "m.popef"), on(shared_device)) as runner:
        with pytest.raises(InvalidInput, match="input 'input': "):
            runner.execute({"input": wrong})
        assert runner.execute({"input": np.array(["a"])})["output"] == [b"a!"]


def test_a_failing_request_fails_alone(tmp_path: Path, shared_device: Device) -> None:
    with ModelRunner(models.gather(tmp_path / "m.popef"), on(shared_device)) as runner:
        indexes = [n % 10 for n in range(100)]
        indexes[50] = 99
        requests = [
            runner.submit({"index": Tensor.from_numpy(np.array([i], np.int64))})
            for i in indexes
        ]
        wait_all(requests)
        failed = [n for n, r in enumerate(requests) if r.error is not None]
        assert failed == [50]
        assert isinstance(requests[50].error, ExecutionFailed)
        for index, request in zip(indexes, requests, strict=True):
            if request.error is None:
                expected = [[index * 2, index * 2 + 1]]
                assert request.outputs["output"].numpy().tolist() == expected


def test_cancelled_before_it_runs_is_dropped(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.slow(tmp_path / "m.popef")
    with ModelRunner(path, on(shared_device)) as runner:
        count = Tensor.from_numpy(np.array(2000, np.int64))
        with occupied(runner):
            waiting = [runner.submit({"count": count}) for _ in range(5)]
            for request in waiting:
                request.cancel()
                assert request.done
                assert isinstance(request.error, Cancelled)
        until(lambda: shared_device.ping().running_ns == 0)
        before = shared_device.ping().batches
        last = runner.execute({"count": np.array(1, np.int64)})
        assert last["output"].shape == (128, 128)
        # The five never ran: one batch between the two pings, not six.
        assert shared_device.ping().batches - before <= 2
        assert runner.in_flight == 0


def test_cancelled_requests_that_fill_the_queue_do_not_stop_the_next(
    tmp_path: Path, shared_device: Device
) -> None:
    """No one else asks what has become of them."""
    path = models.affine(tmp_path / "m.popef")
    row = {"input": np.ones((1, 4), np.float32)}
    with ModelRunner(path, on(shared_device, max_queue_size=4)) as runner:
        for result in [runner.execute_async(row) for _ in range(4)]:
            result.request.cancel()
        assert runner.execute(row, timeout=WAIT)["output"][0, 0] == 3.0
    slow = models.slow(tmp_path / "slow.popef")
    with ModelRunner(slow, on(shared_device, max_queue_size=1)) as runner:
        count = {"count": np.array(20_000, np.int64)}
        started = runner.execute_async(count)
        until(lambda: shared_device.ping().running_ns > 0)
        started.request.cancel()
        with pytest.raises((DeadlineExceeded, QueueFull)):
            runner.execute(count, timeout=0.05)


def test_a_deadline_that_passes_is_named(tmp_path: Path, shared_device: Device) -> None:
    with ModelRunner(models.slow(tmp_path / "m.popef"), on(shared_device)) as runner:
        with pytest.raises(DeadlineExceeded):
            runner.execute({"count": np.array(20_000, np.int64)}, timeout=0.05)
        assert runner.execute({"count": np.array(1, np.int64)}, timeout=60)


def test_a_full_queue_refuses_at_once(tmp_path: Path, shared_device: Device) -> None:
    path = models.slow(tmp_path / "m.popef")
    with ModelRunner(path, on(shared_device, max_queue_size=3)) as runner:
        count = Tensor.from_numpy(np.array(500, np.int64))
        requests = [runner.submit({"count": count}) for _ in range(3)]
        with pytest.raises(QueueFull, match="3 waiting") as refused:
            runner.submit({"count": count})
        assert refused.value.retry_after > 0
        wait_all(requests)
        assert runner.execute({"count": np.array(1, np.int64)})


def test_more_than_the_rings_hold_waits_its_turn(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", width=1024)
    config = on(shared_device, channel_memory=1 << 16)
    with ModelRunner(path, config) as runner:
        sent = [np.full((30, 1024), n, np.float32) for n in range(60)]
        requests = [runner.submit({"input": Tensor.from_numpy(x)}) for x in sent]
        wait_all(requests)
        for n, request in enumerate(requests):
            assert request.error is None
            assert np.all(request.outputs["output"].numpy() == n * 2 + 1)
        too_big = Tensor.from_numpy(np.zeros((30_000, 1024), np.float32))
        with pytest.raises(InvalidInput, match="channel_memory"):
            runner.submit({"input": too_big})


def shared_bytes(name: str) -> int:
    """What the channels of a runner have of the machine's memory."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            counts = f"memfd:popgate-{name}" in line
        elif counts and first == "Rss:":
            total += int(rest[0]) * 1024
    return total


def test_a_request_may_be_much_larger_than_usual_and_leaves_nothing(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef")
    large = np.ones((1 << 20, 4), np.float32)
    with ModelRunner(path, on(shared_device), name="large") as runner:
        for data in (large, large):
            (output,) = runner.execute({"input": data}, timeout=30).values()
            assert output.shape == data.shape
            assert np.all(output == 3)
        assert shared_bytes("large") >= large.nbytes
        for _ in range(2):
            runner.execute({"input": large[:1]}, timeout=30)
        assert shared_bytes("large") < 4 << 20


def test_closing_fails_what_is_in_flight(tmp_path: Path, shared_device: Device) -> None:
    runner = ModelRunner(models.slow(tmp_path / "m.popef"), on(shared_device))
    request = runner.submit({"count": Tensor.from_numpy(np.array(500, np.int64))})
    runner.close()
    assert isinstance(request.error, RunnerClosed)
    with pytest.raises(RunnerClosed):
        runner.submit({"count": Tensor.from_numpy(np.array(1, np.int64))})
    runner.close()


def test_a_request_that_comes_while_it_is_closed_is_told_so(
    tmp_path: Path, shared_device: Device
) -> None:
    """After what was in flight has failed, and beside the channel that closes."""
    runner = ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device))
    channel = shared_device.channels.all[-1]
    assert isinstance(channel, ReplicaChannel)
    row = {"input": Tensor.from_numpy(np.ones((1, 4), np.float32))}
    with shared_device.lock:  # results are not taken meanwhile
        late = channel.submit(row, 1)
        channel.close()
        assert isinstance(late.error, RunnerClosed)
        with pytest.raises(RunnerClosed, match="was unloaded"):
            channel.submit(row, 1)
    runner.close()


def test_threads_share_a_runner(tmp_path: Path, shared_device: Device) -> None:
    wrong: list[object] = []
    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(100):
                x = rng.normal(size=(rng.integers(1, 5), 4)).astype(np.float32)
                y = runner.execute({"input": x}, timeout=30)["output"]
                if not np.array_equal(y, x * 2 + 1):
                    wrong.append(x)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not wrong


def test_replicas_on_two_devices(tmp_path: Path) -> None:
    from engine import DeviceManager

    manager = DeviceManager("cpu:30-31")
    config = ModelRunnerConfig(replication_factor=2)
    path = models.affine(tmp_path / "m.popef")
    with ModelRunner(path, config, manager=manager) as runner:
        assert [d.id for d in runner.devices] == ["cpu:30", "cpu:31"]
        for replica in (0, 1):
            got = runner.execute({"input": rows(1)}, replica_id=replica)["output"]
            assert np.array_equal(got, rows(3))
        with pytest.raises(InvalidInput, match="replica_id must be"):
            runner.execute({"input": rows(1)}, replica_id=2)
    assert [info.state for info in manager.list()] == ["free", "free"]


def test_bad_files_are_named(tmp_path: Path, shared_device: Device) -> None:
    missing = tmp_path / "missing.popef"
    with pytest.raises(InvalidModel, match=r"missing\.popef"):
        ModelRunner(missing, on(shared_device))
    garbage = tmp_path / "garbage.popef"
    garbage.write_bytes(b"This is not cache")
    with pytest.raises(InvalidModel, match=r"garbage\.popef"):
        ModelRunner(garbage, on(shared_device))
    path = models.mean_over_rows(tmp_path / "m.popef")
    with pytest.raises(InvalidConfig, match="max_queue_size"):
        on(shared_device, max_queue_size=0)
    with pytest.raises(InvalidConfig, match="must be a valid string, got "):
        ModelRunner(path, on(shared_device), name="\ud800")
    with pytest.raises((InvalidConfig, TypeError)):  # the latter if compiled
        ModelRunner(path, on(shared_device), name=5)  # type: ignore[arg-type]
    with ModelRunner(path, on(shared_device, batching=True)) as runner:
        assert runner.batching  # the operator may overrule the compiler


def test_a_batch_is_delayed_only_where_asked(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef")
    config = on(shared_device, max_queue_delay=1.0, max_batch_size=8)
    with ModelRunner(path, config) as runner:
        request = runner.submit({"input": Tensor.from_numpy(rows(1))})
        second = runner.submit({"input": Tensor.from_numpy(rows(2))})
        wait_all([request, second])
        assert request.batch_rows == second.batch_rows == 2
        assert request.queue_ns >= 0.99e9
    with ModelRunner(path, replace(config, max_queue_delay=60.0)) as runner:
        full = runner.submit({"input": Tensor.from_numpy(rows(*range(8)))})
        assert full.wait(30)  # what is full does not wait for more
        assert full.batch_rows == 8


def test_too_many_dimensions_are_refused_and_the_next_request_works(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.weighted(tmp_path / "m.popef")
    ok = np.ones((2, 3), np.float32)
    deep = Tensor.from_numpy(ok.reshape((2, 3) + (1,) * 26))
    with ModelRunner(path, on(shared_device)) as runner:
        good = Tensor.from_numpy(ok)
        with pytest.raises(InvalidInput, match="'B' has 28 dimensions; at most 27 are"):
            runner.submit({"A": good, "B": deep}, validate=False)
        got = runner.execute({"A": ok, "B": ok})["output"]
        assert np.array_equal(got, np.arange(6).reshape(2, 3) + 1)


@pytest.mark.parametrize("check", [True, False])
def test_check_package_hash_decides_about_another_graph_under_the_digest(
    tmp_path: Path, shared_device: Device, check: bool
) -> None:
    path = models.affine(tmp_path / "m.popef", wrong_digest=True)
    config = on(shared_device, check_package_hash=check)
    if check:
        with pytest.raises(InvalidModel, match="digest"):
            ModelRunner(path, config)
        return
    with ModelRunner(path, config) as runner:
        assert np.array_equal(runner.execute({"input": rows(1)})["output"], rows(3))
