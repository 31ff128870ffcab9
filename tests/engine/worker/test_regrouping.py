"""Requests of any size on runs of a fixed size: multiples, iterations, remainders.

Covers: engine/arrays.py, engine/worker/batch.py, engine/worker/results.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    Device,
    ExecuteResult,
    InvalidConfig,
    InvalidInput,
    ModelRunner,
    ModelRunnerConfig,
)
from tests.engine import models

SECOND = 10**9


def on(device: Device, **options: Any) -> ModelRunnerConfig:
    return ModelRunnerConfig(replica_to_device={0: device}, **options)


def numbers(*shape: int, start: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    count = int(np.prod(shape))
    return np.arange(start, start + count, dtype=np.float32).reshape(shape)


def check(result: ExecuteResult, data: np.ndarray[Any, Any]) -> None:
    assert result.wait(30)
    np.testing.assert_array_equal(result["output"], data * 2 + 1)


# -- whole compiled batches


def test_multiples_of_the_compiled_batch_and_nothing_else(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4, 2))
    with ModelRunner(path, on(shared_device)) as runner:
        assert runner.execute_inputs[0].shape == (3, 4, 2)
        assert runner.request_inputs[0].shape == (-1, 4, 2)
        for multiple in (1, 2, 5):
            data = numbers(3 * multiple, 4, 2)
            check(runner.execute({"input": data}), data)
            check(runner.execute_async({"input": data}), data)
        for rows in (0, 1, 2, 4, 7):
            with pytest.raises(InvalidInput, match=r"a multiple of 3 in dimension 0"):
                runner.execute({"input": numbers(rows, 4, 2)})
        with pytest.raises(InvalidInput, match=r"expects shape \[-1, 4, 2\]"):
            runner.execute({"input": numbers(3, 4, 3)})


# -- device iterations


def test_a_run_takes_a_batch_for_each_device_iteration(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4), iterations=4)
    with ModelRunner(path, on(shared_device, timeout_ns=60 * SECOND)) as runner:
        assert runner.execute_inputs[0].shape == (3, 4)
        for runs in (1, 3):
            data = numbers(runs * 12, 4)
            check(runner.execute({"input": data}), data)
        targets = {"output": np.zeros((12, 4), np.float32)}
        runner.execute({"input": numbers(12, 4)}, targets)
        np.testing.assert_array_equal(targets["output"], numbers(12, 4) * 2 + 1)
        with pytest.raises(InvalidInput, match="a multiple of 3"):
            runner.execute({"input": numbers(4, 4)})


def test_requests_share_the_iterations_of_a_run(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4), iterations=4)
    with ModelRunner(path, on(shared_device, timeout_ns=0)) as runner:
        # 1 + 2 + 3 + 2 batches: two runs, the third request is in both.
        sent = [numbers(3 * n, 4, start=100 * n) for n in (1, 2, 3, 2)]
        results = [runner.execute_async({"input": data}) for data in sent]
        for data, result in zip(sent, results, strict=True):
            check(result, data)


def test_missing_iterations_are_zeros_after_the_timeout(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4), iterations=4)
    with ModelRunner(path, on(shared_device, timeout_ns=50_000_000)) as runner:
        result = runner.execute_async({"input": numbers(3, 4)})
        check(result, numbers(3, 4))
        assert result.request is not None
        assert result.request.queue_ns >= 50_000_000
        data = numbers(15, 4)  # one run at once, the rest after the timeout
        check(runner.execute({"input": data}), data)


def test_without_a_timeout_a_partial_run_waits_for_ever(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4), iterations=4)
    with ModelRunner(path, on(shared_device, timeout_ns=0)) as runner:
        first = runner.execute_async({"input": numbers(3, 4)})
        assert not first.wait(0.1)
        second = runner.execute_async({"input": numbers(9, 4, start=50)})
        check(first, numbers(3, 4))
        check(second, numbers(9, 4, start=50))


def test_who_fills_no_run_is_awaiting_one(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4), iterations=4)
    with ModelRunner(path, on(shared_device, timeout_ns=0)) as runner:
        one = {"input": numbers(3, 4)}
        check([runner.execute_async(one) for _ in range(5)][3], numbers(3, 4))
        assert runner.stats.awaiting == 1
        check([runner.execute_async(one) for _ in range(3)][2], numbers(3, 4))
        assert runner.stats.awaiting == 0


def test_iterations_of_a_free_batch_are_equal_parts(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.regular(tmp_path / "m.popef", (-1, 4), iterations=4)
    with ModelRunner(path, on(shared_device)) as runner:
        for rows in (4, 12):
            check(runner.execute({"input": numbers(rows, 4)}), numbers(rows, 4))
        with pytest.raises(InvalidInput, match="multiple of the 4 device iterations"):
            runner.execute({"input": numbers(6, 4)})
    with ModelRunner(path, on(shared_device, batching_dim=0)) as runner:
        for rows in (1, 3, 6, 9):
            check(runner.execute({"input": numbers(rows, 4)}), numbers(rows, 4))


# -- any number of rows


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_size_in_any_dimension(
    tmp_path: Path, shared_device: Device, dim: int
) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4, 2))
    config = on(shared_device, batching_dim=dim, timeout_ns=300_000)
    with ModelRunner(path, config) as runner:
        for size in (1, 2, 3, 4, 7, 9):
            shape = [3, 4, 2]
            shape[dim] = size
            data = numbers(*shape)
            check(runner.execute({"input": data}), data)
        shape[(dim + 1) % 3] += 1
        with pytest.raises(InvalidInput, match="expects shape"):
            runner.execute({"input": numbers(*shape)})


@pytest.mark.parametrize("dim", [0, 1])
def test_rows_of_a_free_dimension(
    tmp_path: Path, shared_device: Device, dim: int
) -> None:
    shape = [3, 3]
    shape[dim] = -1
    path = models.regular(tmp_path / "m.popef", (shape[0], shape[1]))
    with ModelRunner(path, on(shared_device, batching_dim=dim)) as runner:
        assert runner.batching
        sent = []
        for size in (1, 5, 2, 8):
            shape[dim] = size
            sent.append(numbers(*shape, start=size))
        results = [runner.execute_async({"input": data}) for data in sent]
        for data, result in zip(sent, results, strict=True):
            check(result, data)


def test_remainders_of_requests_fill_batches_together(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = on(shared_device, batching_dim=0, timeout_ns=0)
    with ModelRunner(path, config) as runner:
        # Nothing is ever padded, so the results tell that rows were regrouped.
        first = runner.execute_async({"input": numbers(3, 4)})
        assert not first.wait(0.05)
        second = runner.execute_async({"input": numbers(3, 4, start=20)})
        check(first, numbers(3, 4))
        assert not second.wait(0.05)  # two of its rows still wait
        third = runner.execute_async({"input": numbers(7, 4, start=40)})
        check(second, numbers(3, 4, start=20))
        assert not third.wait(0.05)
        fourth = runner.execute_async({"input": numbers(3, 4, start=80)})
        check(third, numbers(7, 4, start=40))
        check(fourth, numbers(3, 4, start=80))


def test_a_run_ends_with_the_rest_of_a_request(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    config = on(shared_device, batching_dim=0, timeout_ns=20_000_000)
    with ModelRunner(path, config) as runner:
        # The last two rows of four run alone, after two that filled a batch.
        first = runner.execute_async({"input": numbers(2, 4)})
        second = runner.execute_async({"input": numbers(4, 4, start=30)})
        check(first, numbers(2, 4))
        check(second, numbers(4, 4, start=30))


@pytest.mark.parametrize("drops", [False, True])
def test_random_sizes_from_many_threads_some_given_up(
    tmp_path: Path, shared_device: Device, drops: bool
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=5)
    config = on(
        shared_device,
        batching_dim=0,
        timeout_ns=2_000_000,
        flush_on_waiting_outputs=drops,
    )
    right: list[bool] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(15):
            sent = [
                rng.normal(size=(rng.integers(1, 13), 4)).astype(np.float32)
                for _ in range(4)
            ]
            results = [runner.execute_async({"input": data}) for data in sent]
            for data, result in zip(sent, results, strict=True):
                if rng.random() < 0.2:
                    assert result.request is not None
                    result.request.cancel()
                elif result.wait(30):
                    right.append(np.array_equal(result["output"], data * 2 + 1))
                else:
                    right.append(False)

    with ModelRunner(path, config) as runner:
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(work, n) for n in range(8)]:
                done.result()
        assert len(right) > 200
        assert all(right)
        assert runner.drain(30)


def test_iterations_and_rows_together(tmp_path: Path, shared_device: Device) -> None:
    path = models.regular(tmp_path / "m.popef", (3, 4), iterations=2)
    config = on(shared_device, batching_dim=0, timeout_ns=300_000)
    with ModelRunner(path, config) as runner:
        for rows in (1, 3, 5, 6, 7, 20):
            check(runner.execute({"input": numbers(rows, 4)}), numbers(rows, 4))


def test_requests_that_are_given_up_leave_no_gap(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    for drops in (False, True):
        config = on(
            shared_device, batching_dim=0, timeout_ns=0, flush_on_waiting_outputs=drops
        )
        with ModelRunner(path, config) as runner:
            kept = runner.execute_async({"input": numbers(2, 4)})
            given_up = runner.execute_async({"input": numbers(1, 4)})
            assert not kept.wait(0.05)
            assert given_up.request is not None
            given_up.request.cancel()
            third = runner.execute_async({"input": numbers(1, 4, start=9)})
            if drops:  # its row has gone, so one is still missing
                assert not kept.wait(0.05)
                fourth = runner.execute_async({"input": numbers(1, 4, start=5)})
                check(fourth, numbers(1, 4, start=5))
            check(kept, numbers(2, 4))
            check(third, numbers(1, 4, start=9))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batching_dim": 2}, r"batching_dim 2 must be a dimension .*'input': 0"),
        ({"max_look_ahead": "-1"}, "max_look_ahead"),
        ({"timeout_ns": -1}, "timeout_ns"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, shared_device: Device, options: dict[str, Any], words: str
) -> None:
    path = models.affine(tmp_path / "m.popef", batch_size=4)
    with pytest.raises(InvalidConfig, match=words):
        ModelRunner(path, on(shared_device, **options))
