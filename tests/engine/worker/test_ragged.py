"""Rows of different length in one batch: gathered by length, padded, cut back.

Covers: engine/worker/ragged.py,
    engine/model/ragged.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import (
    DeadlineExceeded,
    Device,
    ExecutionFailed,
    InvalidModel,
    ModelRunner,
    ModelRunnerConfig,
    Tensor,
)
from engine.devices.request import Request
from engine.model.ragged import OPTION_RAGGED, OPTION_RAGGED_REASON, ShownLengths
from engine.runner import replica_channel
from engine.worker.ragged import WINDOW
from popef_io import Option
from tests.engine import models
from tests.engine.onnx_models import FLOAT, INT64, floats, node, onnx_model
from tests.engine.onnx_models import value as tensor
from tests.support import occupied, until

Array = np.ndarray[Any, Any]
PADS = {"ids": 0, "mask": 0}
VOCABULARY = 50


def network(*, masked: bool = True) -> Any:
    """`mean` is the mean of the tokens' vectors, `tokens` the vectors themselves, of
    those that the mask counts; not `masked`, of all."""
    count = ["mask"] if masked else ["ids", "ids"]
    return onnx_model(
        [
            node("Gather", ["table", "ids"], ["all"]),
            node("Identity" if masked else "Equal", count, ["counts"]),
            node("Cast", ["counts"], ["weights"], to=FLOAT),
            node("Unsqueeze", ["weights", "two"], ["column"]),
            node("Mul", ["all", "column"], ["tokens"]),
            node("ReduceSum", ["tokens", "one"], ["sum"], keepdims=0),
            node("ReduceSum", ["column", "one"], ["count"], keepdims=0),
            node("Max", ["count", "least"], ["divisor"]),
            node("Div", ["sum", "divisor"], ["mean"]),
        ],
        [tensor(name, INT64, ["rows", "length"]) for name in PADS],
        [
            tensor("mean", FLOAT, ["rows", 4]),
            tensor("tokens", FLOAT, ["rows", "length", 4]),
        ],
        {
            "table": floats(VOCABULARY, 4),
            "two": np.array([2]),
            "one": np.array([1]),
            "least": np.float32(1),
        },
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ragged")
    lengths = ShownLengths(PADS, {"mean": (), "tokens": (1,)})
    ragged = [
        Option(OPTION_RAGGED, lengths.to_text()),
        Option(OPTION_RAGGED_REASON, "the same if padded"),
    ]
    reason = Option(OPTION_RAGGED_REASON, "'mean' changes when it is padded")
    return {
        "masked": models.write_graph(folder / "m.popef", network(), "rows", ragged),
        "unmasked": models.write_graph(
            folder / "u.popef", network(masked=False), "rows", [reason]
        ),
        "plain": models.write_graph(folder / "p.popef", network(), "rows"),
        "slow": models.slow(folder / "slow.popef"),
    }


@pytest.fixture
def slow(files: dict[str, Path], shared_device: Device) -> Iterator[ModelRunner]:
    with ModelRunner(files["slow"], on(shared_device)) as runner:
        yield runner


def on(device: Device, **options: Any) -> ModelRunnerConfig:
    return ModelRunnerConfig(
        replica_to_device={0: device}, batching_dim=None, **options
    )


def row(length: int, seed: int = 0, rows: int = 1) -> dict[str, Array]:
    random = np.random.default_rng(1000 * length + seed)
    ids = random.integers(1, VOCABULARY, (rows, length))
    return {"ids": ids, "mask": np.ones_like(ids)}


def tensors(arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {name: Tensor.from_numpy(array) for name, array in arrays.items()}


def expected(given: dict[str, Array]) -> dict[str, Array]:
    found = floats(VOCABULARY, 4)[given["ids"]]
    return {"tokens": found, "mean": found.mean(1)}


def finished(requests: Sequence[Request]) -> None:
    for request in requests:
        assert request.wait(30)


def check(request: Request, given: dict[str, Array]) -> None:
    assert request.error is None
    for name, array in expected(given).items():
        got = request.outputs[name].numpy()
        assert got.shape == array.shape
        np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-6)


def run_at_once(
    runner: ModelRunner, slow: ModelRunner, given: Sequence[dict[str, Array]]
) -> list[Request]:
    """Submit all while the device is busy, so that all wait when it takes a batch."""
    with occupied(slow):
        requests = [runner.submit(tensors(each)) for each in given]
    finished(requests)
    return requests


@pytest.mark.skipif(
    not replica_channel.__file__.endswith(".py"), reason="the engine is compiled"
)
def test_a_completion_that_is_handled_twice_takes_nothing_from_others(
    files: dict[str, Path],
    shared_device: Device,
    slow: ModelRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after an interrupt, or if memory ran out, in the middle of handling it."""
    finish = replica_channel.ReplicaChannel.finish

    def twice(self: replica_channel.ReplicaChannel, *completion: Any) -> None:
        finish(self, *completion)
        finish(self, *completion)

    given = [row(4, seed) for seed in range(5)]  # one batch
    with ModelRunner(files["masked"], on(shared_device)) as runner:
        monkeypatch.setattr(replica_channel.ReplicaChannel, "finish", twice)
        requests = run_at_once(runner, slow, given)
    for request, each in zip(requests, given, strict=True):
        check(request, each)


def test_a_request_without_rows_leaves_the_device_alone(
    files: dict[str, Path], own_device: Device
) -> None:
    with ModelRunner(files["masked"], on(own_device)) as runner:
        for _ in range(3):
            (request,) = [runner.submit(tensors(row(3, rows=0)))]
            finished([request])
            check(request, row(3, rows=0))
        given = row(4)
        request = runner.submit(tensors(given))
        finished([request])
        check(request, given)
    assert own_device.restarts == 0


def test_rows_of_many_lengths_give_the_same_as_alone(
    files: dict[str, Path], shared_device: Device, slow: ModelRunner
) -> None:
    lengths = np.random.default_rng(0).permutation(np.arange(1, 61)).tolist()
    given = [row(length) for length in lengths]
    with ModelRunner(files["masked"], on(shared_device)) as runner:
        assert runner.ragged
        assert "padded" in runner.interface.ragged_reason
        requests = run_at_once(runner, slow, given)
    for request, each in zip(requests, given, strict=True):
        check(request, each)
    # No two have the same length, so these are batches of several lengths.
    assert sum(request.batch_rows > 1 for request in requests) > 30
    for request, length in zip(requests, lengths, strict=True):
        assert request.batch_rows == 1 or request.batch_rows * length <= 256


def test_optional_outputs_are_sent_to_those_that_ask(
    files: dict[str, Path], shared_device: Device, slow: ModelRunner
) -> None:
    config = on(shared_device, optional_outputs=("tokens", "mean", "nix"))
    given = [row(length) for length in (20, 21, 20, 19, 21, 20)]
    with ModelRunner(files["masked"], config) as runner:
        with occupied(slow):
            requests = [
                runner.submit(tensors(each), optional=number % 2 == 0)
                for number, each in enumerate(given)
            ]
        finished(requests)
    for number, (request, each) in enumerate(zip(requests, given, strict=True)):
        # Those that ask run together, and so do the others.
        assert (request.batch_rows, request.batch_length) == (3, 21)
        if number % 2 == 0:
            check(request, each)
            continue
        assert request.outputs["tokens"].shape == (1, 0, 4)
        # It has no length, so it is never left out.
        mean = request.outputs["mean"].numpy()
        np.testing.assert_allclose(mean, expected(each)["mean"], rtol=1e-5)


def test_requests_of_several_rows_stay_whole(
    files: dict[str, Path], shared_device: Device, slow: ModelRunner
) -> None:
    given = [row(length, rows=3) for length in (20, 21, 19, 20, 7, 22)]
    with ModelRunner(files["masked"], on(shared_device)) as runner:
        requests = run_at_once(runner, slow, given)
    for request, each in zip(requests, given, strict=True):
        check(request, each)
    # 12 rows of 21 are within 256 tokens, the one of 22 is not.
    assert [request.batch_rows for request in requests] == [12, 12, 12, 12, 3, 3]


@pytest.mark.parametrize(
    ("options", "lengths", "together"),
    [
        ({}, (2, 100), [1, 1]),
        ({"max_padding": 0.5}, (2, 100), [2, 2]),
        ({"max_padding": 0.0}, (10, 11, 10), [2, 1, 2]),
        ({"max_batch_tokens": 20}, (10, 10, 10), [2, 2, 1]),
        ({"max_batch_tokens": 8}, (10, 10), [1, 1]),
        ({"max_batch_size": 2}, (10, 10, 10), [2, 2, 1]),
        # The second is passed over, and leads the batch after the first.
        ({}, (20, 60, 20, 19, 60, 2), [3, 2, 3, 3, 2, 1]),
        ({"ragged": False}, (10, 11), [1, 1]),
    ],
)
def test_batches_keep_to_their_limits(
    files: dict[str, Path],
    shared_device: Device,
    slow: ModelRunner,
    options: dict[str, Any],
    lengths: Sequence[int],
    together: Sequence[int],
) -> None:
    given = [row(length, seed) for seed, length in enumerate(lengths)]
    with ModelRunner(files["masked"], on(shared_device, **options)) as runner:
        requests = run_at_once(runner, slow, given)
    for request, each in zip(requests, given, strict=True):
        check(request, each)
    assert [request.batch_rows for request in requests] == together


def test_the_oldest_leads_however_many_shorter_ones_come(
    files: dict[str, Path], shared_device: Device, slow: ModelRunner
) -> None:
    """More than are looked at, and than the rings have slots for."""
    given = [row(200), *(row(4, n) for n in range(5 * WINDOW)), row(199)]
    ended: list[int] = []
    with ModelRunner(files["masked"], on(shared_device)) as runner:
        with occupied(slow):
            requests = [
                runner.submit(tensors(each), on_done=lambda r: ended.append(r.number))
                for each in given
            ]
        finished(requests)
        for request, each in zip(requests, given, strict=True):
            check(request, each)
        assert ended[0] == requests[0].number
        assert ended[-1] == requests[-1].number


def test_a_request_that_fails_fails_alone(
    files: dict[str, Path], shared_device: Device, slow: ModelRunner
) -> None:
    given = [row(length) for length in (20, 21, 22, 20, 19)]
    given[2]["ids"][0, 3] = VOCABULARY + 5
    uneven = row(20)
    uneven["mask"] = uneven["mask"][:, :-1]
    with ModelRunner(files["masked"], on(shared_device)) as runner:
        requests = run_at_once(runner, slow, [*given, uneven, row(5)])
    for number, request in enumerate(requests):
        if number in (2, 5):
            assert isinstance(request.error, ExecutionFailed)
        elif number < 5:
            check(request, given[number])
    check(requests[6], row(5))


def test_cancelled_and_late_requests_are_dropped_wherever_they_wait(
    files: dict[str, Path], shared_device: Device, slow: ModelRunner
) -> None:
    given = [row(length) for length in (30, 3, 31, 4, 30, 29)]
    with ModelRunner(files["masked"], on(shared_device)) as runner:
        with occupied(slow):
            soon = time.monotonic() + 0.05
            requests = [
                runner.submit(tensors(each), deadline=soon if n == 3 else None)
                for n, each in enumerate(given)
            ]
            requests[0].cancel()
            requests[2].cancel()
            until(lambda: time.monotonic() > soon)
        finished(requests)
        again = run_at_once(runner, slow, given)
    assert isinstance(requests[3].error, DeadlineExceeded)
    for number in (1, 4, 5):
        check(requests[number], given[number])
    assert requests[4].batch_rows == 2
    for request, each in zip(again, given, strict=True):
        check(request, each)


def test_levels_go_first_and_share_batches(
    files: dict[str, Path], shared_device: Device, slow: ModelRunner
) -> None:
    given = [row(30), row(31), row(90), row(29), row(91)]
    levels = (2, 2, 1, 2, 1)
    ended: list[int] = []
    config = on(shared_device, priority_levels=2)
    with ModelRunner(files["masked"], config) as runner:
        with occupied(slow):
            requests = [
                runner.submit(
                    tensors(each), priority=level, on_done=lambda r: ended.append(id(r))
                )
                for each, level in zip(given, levels, strict=True)
            ]
        finished(requests)
    for request, each in zip(requests, given, strict=True):
        check(request, each)
    assert set(ended[:2]) == {id(requests[2]), id(requests[4])}


def test_a_delay_gathers_rows_until_the_batch_is_full(
    files: dict[str, Path], shared_device: Device
) -> None:
    config = on(shared_device, max_queue_delay=30.0)
    with ModelRunner(files["masked"], config) as runner:
        given = [row(length) for length in (64, 63, 62, 61)]
        requests = [runner.submit(tensors(each)) for each in given]
        finished(requests)
        assert [request.batch_rows for request in requests] == [4] * 4
        alone = runner.submit(tensors(given[0]), delayed=False)
        finished([alone])
        check(alone, given[0])


def test_a_lost_device_has_begun_what_its_runs_took_and_no_more(
    files: dict[str, Path], own_device: Device
) -> None:
    """Only requests that no run has taken go to another replica."""
    device, pid = own_device, own_device.pid
    assert pid is not None
    with ModelRunner(files["masked"], on(device)) as runner:
        (channel,) = runner._replicas.channels
        os.kill(pid, signal.SIGSTOP)
        try:
            requests = [runner.submit(tensors(row(n))) for n in (5, 50)]
            assert (channel.flight.awaiting, channel.flight.started) == (2, [])
            # The device says this of a request that it takes before an older one.
            channel._writer.channel.set_begun(requests[1].slot, 1)
            assert (channel.flight.awaiting, channel.flight.started) == (
                1,
                [requests[1]],
            )
        finally:
            os.kill(pid, signal.SIGCONT)
        finished(requests)


def test_a_model_that_padding_changes_runs_rows_of_one_length(
    files: dict[str, Path], shared_device: Device, slow: ModelRunner
) -> None:
    with ModelRunner(files["unmasked"], on(shared_device)) as runner:
        assert not runner.ragged
        assert "changes when it is padded" in runner.interface.ragged_reason
        given = [row(10), row(10, 1), row(11)]
        requests = run_at_once(runner, slow, given)
        assert [request.batch_rows for request in requests] == [2, 2, 1]
    with ModelRunner(files["plain"], on(shared_device)) as runner:
        assert not runner.ragged
        assert runner.interface.ragged_reason == ""


def test_a_file_whose_lengths_make_no_sense_is_refused() -> None:
    shown = ShownLengths({"ids": 0.0}, {"mean": (), "tokens": (1,)})
    assert ShownLengths.from_text(shown.to_text()) == shown
    for text in ("", "[]", "{}", '{"inputs": {"a": "x"}, "outputs": {}}'):
        with pytest.raises(InvalidModel):
            ShownLengths.from_text(text)
