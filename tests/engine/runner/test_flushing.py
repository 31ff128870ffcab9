"""What happens to rows that fill no run: timeouts, whose rows complete it, blocking."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from engine import (
    CallbackFailed,
    Cancelled,
    DeadlineExceeded,
    Device,
    DeviceLost,
    ExecutionFailed,
    InvalidConfig,
    ModelRunner,
    ModelRunnerConfig,
    QueueFull,
    RunnerClosed,
    Tensor,
)
from engine.transport.outcome import NEEDS_ROWS
from popef_io import DataType
from tests.engine import models

Array = np.ndarray[Any, np.dtype[np.float32]]
Arrays = dict[str, Array]
MS = 1_000_000
FOR_EVER = np.array(1 << 60, np.int64)


def on(device: Device, **options: Any) -> ModelRunnerConfig:
    return ModelRunnerConfig(replica_to_device={0: device}, **options)


def by_rows(device: Device, **options: Any) -> ModelRunnerConfig:
    return on(device, batching_dim=0, **options)


def numbers(rows: int, start: int = 0) -> Array:
    return np.arange(start, start + 4 * rows, dtype=np.float32).reshape(rows, 4)


# -- timeouts


def test_batch_and_run_have_timeouts_of_their_own(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4), iterations=2)
    never = 2**63 - 1
    waits = {
        # timeout_ns is looked at in none of them.
        "batch": (30 * MS, never),
        "run": (never, 30 * MS),
    }
    for which, (batch, run) in waits.items():
        config = by_rows(
            shared_device,
            timeout_ns=1,
            is_batch_size_timeout_enabled=True,
            batch_size_timeout_ns=batch,
            data_parallel_timeout_ns=run,
        )
        with ModelRunner(path, config) as runner:
            incomplete_batch = runner.execute_async({"input": numbers(1)})
            if which == "batch":
                assert incomplete_batch.wait(30)
                whole = runner.execute_async({"input": numbers(3)})
                assert not whole.wait(0.1)
                assert runner.execute_async({"input": numbers(2)}).wait(30)
            else:
                assert not incomplete_batch.wait(0.1)
                assert runner.execute_async({"input": numbers(2)}).wait(30)
            assert runner.execute({"input": numbers(6)})["output"].shape == (6, 4)


def test_both_timeouts_are_ignored_unless_enabled(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = by_rows(shared_device, timeout_ns=0, batch_size_timeout_ns=1)
    with ModelRunner(path, config) as runner:
        assert not runner.execute_async({"input": numbers(1)}).wait(0.1)


# -- flush_callback


def test_the_callback_supplies_the_missing_rows(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    asked: list[str] = []
    outputs = np.zeros((3, 4), np.float32)

    def flush(tensor_id: str, inputs: Arrays, output: Arrays) -> None:
        asked.append(tensor_id)
        inputs["input"] = numbers(3, start=100)  # one more than is missing
        output["output"] = outputs

    # An answer that takes longer is asked for again, which a busy machine can cause.
    config = by_rows(shared_device, timeout_ns=1000 * MS, flush_callback=flush)
    with ModelRunner(path, config) as runner:
        result = runner.execute({"input": numbers(2)}, timeout=30)
        np.testing.assert_array_equal(result["output"], numbers(2) * 2 + 1)
        expected = numbers(3, start=100) * 2 + 1
        expected[2] = 0
        # Its rows ran with ours; their results come with the same batch.
        assert runner.drain(30)
        np.testing.assert_array_equal(outputs, expected)
        assert asked == ["input"]
        assert runner.execute({"input": numbers(4)})["output"].shape == (4, 4)
        assert asked == ["input"]  # nothing was missing


def test_a_callback_that_changes_nothing_is_asked_again(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4), iterations=2)
    asked: list[str] = []
    config = on(
        shared_device,
        timeout_ns=5 * MS,
        flush_callback=lambda tensor_id, inputs, outputs: asked.append(tensor_id),
    )
    with ModelRunner(path, config) as runner:
        first = runner.execute_async({"input": numbers(3)})
        end = time.monotonic() + 30
        while len(asked) < 3:
            assert not first.wait(0.01)
            assert time.monotonic() < end
        second = runner.execute_async({"input": numbers(3, start=50)})
        assert first.wait(30)
        assert second.wait(30)
        np.testing.assert_array_equal(second["output"], numbers(3, start=50) * 2 + 1)


def _no_rows_today(tensor_id: str, inputs: Arrays, outputs: Arrays) -> None:
    raise LookupError("no rows today")


def _giving(**given: Any) -> Callable[[str, Arrays, Arrays], None]:
    def flush(tensor_id: str, inputs: Arrays, outputs: Arrays) -> None:
        inputs.update(given.get("inputs", {}))
        outputs.update(given.get("outputs", {}))

    return flush


def _read_only() -> Array:
    array = numbers(3)
    array.flags.writeable = False
    return array


WRONG: dict[str, tuple[Any, str]] = {
    "raises": (_no_rows_today, "raised LookupError: no rows today"),
    "takes nothing": (lambda: None, "raised TypeError: .*takes 0 positional"),
    "takes four": (lambda a, b, c, d: None, "missing 1 required positional"),
    "returns": (
        lambda a, b, c: 5,
        "expected None, got int; it must fill the two mappings",
    ),
    "shape": (_giving(inputs={"input": numbers(3)[:, :2]}), "input 'input' expects"),
    "type": (_giving(inputs={"input": numbers(3).astype(int)}), "input 'input'"),
    "list": (_giving(inputs={"input": [[1]]}), "must be a numpy array, got list"),
    "unknown": (_giving(inputs={"x": numbers(3)}), "no input 'x'"),
    "output": (_giving(outputs={"x": numbers(3)}), "no output 'x'; it has .*'output'"),
    "output rank": (
        _giving(outputs={"output": np.zeros((2, 2, 2), np.float32)}),
        r"must be writable float32\[4, 4\], got float32\[2, 2, 2\]",
    ),
    "output type": (_giving(outputs={"output": np.zeros((3, 4))}), "float64"),
    "output list": (_giving(outputs={"output": [1]}), "must be a numpy array"),
    "output read-only": (_giving(outputs={"output": _read_only()}), "read-only"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_callback_that_fails_fails_what_waits(
    tmp_path: Path, shared_device: Device, wrong: str
) -> None:
    """At once, all of it, once; and the rows of what failed are in no later run."""
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    callback, why = WRONG[wrong]
    asked = 0
    failing = True

    def flush(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if failing:
            return callback(*arguments)
        arguments[1]["input"] = numbers(3)
        return None

    config = by_rows(shared_device, timeout_ns=5 * MS, flush_callback=flush)
    with ModelRunner(path, config) as runner:
        waiting = [runner.execute_async({"input": numbers(1, n)}) for n in range(3)]
        for result in waiting:
            with pytest.raises(CallbackFailed, match=f"(?s)flush_callback.*{why}"):
                result.wait(60)
        # Whoever comes while the first are asked for is asked for anew.
        assert 1 <= asked <= 3
        assert runner.drain(60)
        whole = runner.execute({"input": numbers(4, start=50)}, timeout=60)
        np.testing.assert_array_equal(whole["output"], numbers(4, start=50) * 2 + 1)
        assert asked <= 3
        failing = False
        result = runner.execute({"input": numbers(2)}, timeout=60)
        np.testing.assert_array_equal(result["output"], numbers(2) * 2 + 1)


def test_a_question_that_comes_late_concerns_only_its_own_requests(
    tmp_path: Path, shared_device: Device
) -> None:
    """The device asked for rows, and the requests it asked for have ended meanwhile."""
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    asked: list[str] = []

    def flush(name: str, inputs: Arrays, outputs: Arrays) -> None:
        asked.append(name)
        raise LookupError(name)

    config = by_rows(shared_device, timeout_ns=1 << 60, flush_callback=flush)
    with ModelRunner(path, config) as runner:
        (channel,) = runner._replicas.channels
        ended = runner.execute_async({"input": numbers(4)})
        assert ended.wait(60)
        later = runner.execute_async({"input": numbers(1)})
        question = (NEEDS_ROWS, ended.request.number, 0, 0, 3, 0, "input")
        with shared_device.lock:
            channel.finish(*question)
        assert not shared_device.data_requests
        rest = runner.execute_async({"input": numbers(3)})
        assert later.wait(60)
        assert rest.wait(60)
        assert not asked


def test_what_a_callback_raised_is_the_cause(
    tmp_path: Path, shared_device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = by_rows(shared_device, timeout_ns=5 * MS, flush_callback=_no_rows_today)
    with (
        caplog.at_level(logging.WARNING),
        ModelRunner(path, config) as runner,
        pytest.raises(CallbackFailed) as failed,
    ):
        runner.execute({"input": numbers(1)}, timeout=60)
    assert isinstance(failed.value.__cause__, LookupError)
    assert caplog.text.count("Traceback") == 1
    assert "in _no_rows_today" in caplog.text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_ends_who_asked_and_nobody_else(
    tmp_path: Path, own_device: Device, kind: type[BaseException]
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    turns = iter([kind])

    def flush(tensor_id: str, inputs: Arrays, outputs: Arrays) -> None:
        for raised in turns:
            raise raised
        inputs["input"] = numbers(3)

    config = by_rows(own_device, timeout_ns=5 * MS, flush_callback=flush)
    with ModelRunner(path, config) as runner:
        first = runner.execute_async({"input": numbers(1)})
        with pytest.raises(kind):
            first.wait(60)
        second = runner.execute({"input": numbers(1, start=9)}, timeout=60)
        np.testing.assert_array_equal(second["output"], numbers(1, start=9) * 2 + 1)
        if kind is KeyboardInterrupt:  # it was asked again
            assert first.wait(60)
        else:
            with pytest.raises(CallbackFailed, match="raised SystemExit"):
                first.wait(60)


def test_a_callback_that_waits_for_a_request_is_told(
    tmp_path: Path, own_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)

    def flush(tensor_id: str, inputs: Arrays, outputs: Arrays) -> None:
        inputs["input"] = runner.execute({"input": numbers(1)})["output"]

    config = by_rows(own_device, timeout_ns=5 * MS, flush_callback=flush)
    with (
        ModelRunner(path, config) as runner,
        pytest.raises(CallbackFailed, match=r"DeviceBusy: a callback .* cannot"),
    ):
        runner.execute({"input": numbers(1)}, timeout=60)


def test_a_callback_that_stays_holds_up_no_other_device(
    tmp_path: Path, shared_device: Device, own_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    inside, go = threading.Event(), threading.Event()

    def flush(tensor_id: str, inputs: Arrays, outputs: Arrays) -> None:
        inside.set()
        assert go.wait(60)
        inputs["input"] = numbers(3)

    config = by_rows(own_device, timeout_ns=5 * MS, flush_callback=flush)
    with (
        ModelRunner(path, config) as stays,
        ModelRunner(path, by_rows(shared_device)) as other,
    ):
        waiting = stays.execute_async({"input": numbers(1)})
        thread = threading.Thread(target=waiting.wait)
        thread.start()
        assert inside.wait(60)
        assert other.execute({"input": numbers(4)})["output"].shape == (4, 4)
        go.set()
        thread.join()
        assert waiting.wait(60)


def test_what_cannot_be_called_is_refused(shared_device: Device) -> None:
    with pytest.raises(InvalidConfig, match="flush_callback must be callable, got 3"):
        by_rows(shared_device, flush_callback=3)


# -- look-ahead


@pytest.mark.parametrize(
    ("look_ahead", "together"), [("unlimited", 20), ("0", 4), ("2", 8), ("99", 20)]
)
def test_look_ahead_is_how_many_runs_are_prepared(
    tmp_path: Path, shared_device: Device, look_ahead: str, together: int
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = by_rows(shared_device, max_look_ahead=look_ahead)
    with ModelRunner(path, config) as runner:
        result = runner.execute_async({"input": numbers(20)})
        np.testing.assert_array_equal(result["output"], numbers(20) * 2 + 1)
        assert result.request is not None
        # Five runs; what was prepared with the last of them.
        assert result.request.batch_rows == together


def test_look_ahead_of_whole_batches(tmp_path: Path, shared_device: Device) -> None:
    path = models.regular(tmp_path / "m.popef", (4, 4))
    with ModelRunner(path, on(shared_device, max_look_ahead="0")) as runner:
        for count in (4, 12):
            result = runner.execute_async({"input": numbers(count)})
            np.testing.assert_array_equal(result["output"], numbers(count) * 2 + 1)
            assert result.request is not None
            assert result.request.batch_rows == 1


# -- blocking


def test_execute_waits_for_room_and_submit_does_not(
    tmp_path: Path, own_device: Device
) -> None:
    path = models.slow(tmp_path / "m.popef")
    config = on(own_device, ring_buffer_size_multiplier=20, max_queue_size=21)
    with ModelRunner(path, config) as runner:
        first = [runner.execute_async({"count": FOR_EVER}) for _ in range(20)]
        with pytest.raises(DeadlineExceeded, match="20 requests are in flight"):
            runner.execute_async({"count": np.array(1)}, timeout=0.1)
        submitted = runner.submit({"count": Tensor.from_numpy(np.array(1))})
        with pytest.raises(QueueFull):
            runner.submit({"count": Tensor.from_numpy(np.array(1))})
        done = threading.Event()

        def work() -> None:
            runner.execute({"count": np.array(1)})
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.1)
        for result in first:
            assert result.request is not None
            result.request.cancel()
        assert submitted.wait(30)
        assert done.wait(30)
        thread.join()
        with pytest.raises(Cancelled):
            first[0].wait()


def test_waiting_for_room_never_waits_for_itself(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=20)
    config = by_rows(shared_device, timeout_ns=0, ring_buffer_size_multiplier=1)
    with ModelRunner(path, config) as runner:
        results = [
            runner.execute_async({"input": numbers(1, start=n)}) for n in range(80)
        ]
        for number, result in enumerate(results):
            assert result.wait(30)
            expected = numbers(1, start=number) * 2 + 1
            np.testing.assert_array_equal(result["output"], expected)


# -- endings


def test_waiting_rows_end_with_their_runner(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = by_rows(shared_device, timeout_ns=0)
    with ModelRunner(path, config) as stays:
        for _ in range(3):
            runner = ModelRunner(path, config)
            waiting = runner.execute_async({"input": numbers(3)})
            assert not waiting.wait(0.02)
            runner.close()
            with pytest.raises(RunnerClosed):
                waiting.wait()
        assert stays.execute({"input": numbers(4)})["output"].shape == (4, 4)
        late = stays.execute_async({"input": numbers(1)}, timeout=0.05)
        with pytest.raises(DeadlineExceeded):
            late.wait()
        # Its row has gone, so that four others are a run.
        results = [stays.execute_async({"input": numbers(2, n)}) for n in range(2)]
        for number, result in enumerate(results):
            assert result.wait(30)
            expected = numbers(2, number) * 2 + 1
            np.testing.assert_array_equal(result["output"], expected)


def test_waiting_rows_are_lost_with_their_device(
    tmp_path: Path, own_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = by_rows(own_device, timeout_ns=0, auto_reset=True)
    with ModelRunner(path, config) as runner:
        waiting = runner.execute_async({"input": numbers(3)})
        assert not waiting.wait(0.02)
        own_device.kill("the test wants it")
        with pytest.raises(DeviceLost):
            waiting.wait(30)
        result = runner.execute({"input": numbers(8)}, timeout=60)
        np.testing.assert_array_equal(result["output"], numbers(8) * 2 + 1)


def test_one_request_of_a_run_that_fails_is_to_blame(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.write_model(
        tmp_path / "m.popef",
        [helper.make_node("Gather", ["table", "index"], ["output"])],
        [models.Port("index", (4,), DataType.S64)],
        [models.Port("output", (4, 2))],
        {"table": np.arange(20, dtype=np.float32).reshape(10, 2)},
        batching="rows",
        batch_size=4,
    )
    with ModelRunner(path, by_rows(shared_device, timeout_ns=0)) as runner:
        sent = [[1], [2, 3], [99], [4, 5], [6, 7]]
        results = [runner.execute_async({"index": np.array(rows)}) for rows in sent]
        for rows, result in zip(sent, results, strict=True):
            if rows == [99]:
                with pytest.raises(ExecutionFailed):
                    result.wait(30)
            else:
                assert result.wait(30)
                assert result["output"][:, 0].tolist() == [2 * row for row in rows]
