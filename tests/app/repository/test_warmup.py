"""What runs before a model takes requests, on real devices.

Covers: app/config/warmup_config.py.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.config.config_keys import read_section
from app.config.warmup_config import WarmupConfig
from app.repository.warmup import WarmupFailed, run_example, warm_up
from app.spec import ModelSpec, TensorSpec
from engine import Device, DeviceManager, ModelRunner, ModelRunnerConfig
from tests.engine import models
from tests.support import WAIT

# A process that keeps freed memory as the server does, and a runner that does nothing.
PROGRAM = """
from pathlib import Path
from types import SimpleNamespace

from app.repository.warmup import warm_up
from app.spec import ModelSpec, TensorSpec
from engine import keep_large_blocks


def used():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if "RssAnon" in line)


def submit(inputs, **options):
    sizes.append(inputs["x"].nbytes)
    assert used() > before + 30_000_000
    return SimpleNamespace(wait=lambda seconds: True, done=True, error=None)


assert keep_large_blocks(arenas=1, returns=False)
spec = ModelSpec("m", "1", (TensorSpec.make("x", "FP32", (8_000_000,)),), ())
sizes, before = [], used()
warm_up(spec, SimpleNamespace(devices=[None], submit=submit), None, None)
assert sizes == [32_000_000]
assert used() < before + 8_000_000
"""


@pytest.fixture(scope="module")
def devices() -> Iterator[list[Device]]:
    manager = DeviceManager("cpu:2")
    attached = [manager.get_device(1) for _ in range(2)]
    yield attached
    for device in attached:
        device.close()


def run(
    path: Path,
    devices: list[Device],
    config: Any = None,
    *,
    folder: Path | None = None,
    preferred: tuple[int, ...] = (),
    replicas: int = 1,
) -> tuple[int, list[int]]:
    """Whether it ran, and how many batches each device ran for it."""
    placed = {i: devices[i % 2] for i in range(replicas)}
    wanted = None if config is None else read_section(WarmupConfig, config)
    options = ModelRunnerConfig(replication_factor=replicas, replica_to_device=placed)
    with ModelRunner(path, options) as runner:
        spec = ModelSpec.from_runner("m", "1", runner)
        before = [device.ping().batches for device in devices]
        ran = warm_up(spec, runner, wanted, folder, preferred)
        after = [device.ping().batches for device in devices]
    return ran, [b - a for a, b in zip(before, after, strict=True)]


def test_every_replica_and_every_batch_size(
    tmp_path: Path, devices: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long they take.
    monkeypatch.setattr("app.repository.warmup.AUTOMATIC_SECONDS", WAIT)
    path = models.affine(tmp_path / "m.popef")
    assert run(path, devices) == (True, [2, 0])  # 1 and the largest
    assert run(path, devices, replicas=2) == (True, [2, 2])
    assert run(path, devices, replicas=4, preferred=(4, 64)) == (True, [6, 6])
    assert run(path, devices, {"batch_sizes": [3], "count": 4}) == (True, [4, 0])
    assert run(path, devices, {"enabled": False}) == (False, [0, 0])


def test_many_rows_of_a_slow_model_are_not_run_unasked(
    tmp_path: Path, devices: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run may take long for what it prepares: one row is run again."""
    path = models.affine(tmp_path / "m.popef")
    monkeypatch.setattr("app.repository.warmup.AUTOMATIC_SECONDS", 0.0)
    assert run(path, devices, preferred=(2, 8, 32)) == (True, [2, 0])
    assert run(path, devices, {"batch_sizes": [1, 8, 32]}) == (True, [3, 0])


def test_models_that_are_not_batched_and_texts(
    tmp_path: Path, devices: list[Device]
) -> None:
    assert run(models.slow(tmp_path / "s.popef"), devices) == (True, [1, 0])
    text = models.text(tmp_path / "t.popef")
    assert run(text, devices, {"data": "zeros"}) == (True, [2, 0])


def test_values_that_do_not_suit_fail(tmp_path: Path, devices: list[Device]) -> None:
    path = models.gather(tmp_path / "m.popef")
    np.save(tmp_path / "far.npy", np.array([3, 99]))
    (tmp_path / "warmup").mkdir()
    (tmp_path / "far.npy").rename(tmp_path / "warmup" / "far.npy")
    for data in ("ones", "zeros", "random"):
        assert run(path, devices, {"data": data})[0]
    sample = {"name": "far", "inputs": {"index": {"file": "far.npy"}}}
    with pytest.raises(WarmupFailed, match=r"warm-up with sample 'far' failed: .*99"):
        run(path, devices, {"samples": [sample]}, folder=tmp_path)


def test_an_example_that_suits(tmp_path: Path, devices: list[Device]) -> None:
    path = models.gather(tmp_path / "m.popef")
    options = ModelRunnerConfig(replica_to_device={0: devices[0]})
    with ModelRunner(path, options) as runner:
        spec = ModelSpec.from_runner("m", "1", runner)
        before = devices[0].ping().batches
        run_example(spec, spec, runner, {"index": [3, 4]})
        run_example(spec, spec, runner, {})  # ones
        assert devices[0].ping().batches == before + 2
        for example, message in (
            ({"index": [99]}, "warm-up with the example failed: .*99"),
            ({"index": ["x"]}, "example: "),
            ({"indices": [1]}, "example: the model has no input indices"),
        ):
            with pytest.raises(WarmupFailed, match=message):
                run_example(spec, spec, runner, example)


def test_files_are_npy_or_raw(tmp_path: Path, devices: list[Device]) -> None:
    path = models.affine(tmp_path / "m.popef")
    folder = tmp_path / "warmup"
    folder.mkdir()
    np.save(folder / "x.npy", np.ones((3, 4), np.float32))
    (folder / "x").write_bytes(np.ones((2, 4), np.float32).tobytes())
    samples = [
        {"inputs": {"input": {"file": "x.npy"}}, "count": 2},
        {"inputs": {"input": {"file": "x", "shape": [4]}}, "batch_size": 2},
    ]
    assert run(path, devices, {"samples": samples}, folder=tmp_path) == (True, [3, 0])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"other": {}}, "the model has no input other"),
        ({"input": {"shape": [5]}}, "expects shape"),
        ({"input": {"file": "none"}}, "No such file"),
        ({"input": {"file": "short"}}, "has 3 bytes, but input 'input' of shape"),
        ({"input": {"file": "link"}}, "is outside the model's folder"),
        ({"input": {"file": "pickled.npy"}}, "Python objects"),
        ({"input": {"shape": [1 << 31, 1 << 31]}}, "elements"),
    ],
)
def test_samples_that_cannot_be_made(
    tmp_path: Path, devices: list[Device], inputs: Any, message: str
) -> None:
    root = tmp_path / "m"
    folder = root / "warmup"
    folder.mkdir(parents=True)
    (folder / "short").write_bytes(b"abc")
    (tmp_path / "secret").write_bytes(b"x" * 16)
    (folder / "link").symlink_to(tmp_path / "secret")
    np.save(folder / "pickled.npy", np.array([{}], object), allow_pickle=True)
    path = models.affine(tmp_path / "m.popef")
    with pytest.raises(WarmupFailed, match=message):
        run(path, devices, {"samples": [{"inputs": inputs}]}, folder=root)


def test_values_of_a_wrong_shape_take_no_memory() -> None:
    spec = ModelSpec("m", "1", (TensorSpec.make("x", "BYTES", (16,)),), ())
    sample = {"inputs": {"x": {"shape": [1 << 20]}}}
    config = read_section(WarmupConfig, {"samples": [sample]})
    runner: Any = SimpleNamespace(failure=None)
    tracemalloc.start()
    try:
        with pytest.raises(WarmupFailed, match=r"expects shape \[16\], got"):
            warm_up(spec, runner, config, None)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_single_file_has_no_other_files(
    tmp_path: Path, devices: list[Device]
) -> None:
    path = models.affine(tmp_path / "m.popef")
    sample = {"inputs": {"input": {"file": "x.npy"}}}
    with pytest.raises(WarmupFailed, match="a model without a folder"):
        run(path, devices, {"samples": [sample]})


def test_a_file_has_a_name_and_no_path() -> None:
    with pytest.raises(ValueError, match="must be the name of a file"):
        read_section(
            WarmupConfig, {"samples": [{"inputs": {"x": {"file": "../../etc/x"}}}]}
        )


def test_a_file_may_hold_one_row_for_all(tmp_path: Path, devices: list[Device]) -> None:
    folder = tmp_path / "warmup"
    folder.mkdir()
    (folder / "row").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (folder / "word").write_bytes(b"\3\0\0\0abc")
    for make, wanted in (
        (models.affine, {"shape": [4], "file": "row"}),
        (models.text, {"file": "word"}),
    ):
        path = make(tmp_path / "m.popef")
        sample = {"batch_size": 8, "inputs": {"input": wanted}}
        assert run(path, devices, {"samples": [sample]}, folder=tmp_path)[0]
    wanted = {"shape": [3], "file": "row"}
    sample = {"batch_size": 8, "inputs": {"input": wanted}}
    path = models.affine(tmp_path / "m.popef")
    message = r"has 16 bytes, but .* needs 96 \(one row: 12\)"
    with pytest.raises(WarmupFailed, match=message):
        run(path, devices, {"samples": [sample]}, folder=tmp_path)


def _batch_of_four(path: Path) -> Path:
    return models.gather(path, batch_size=4)


@pytest.mark.parametrize("make", [models.affine, _batch_of_four])
def test_it_waits_for_no_company(
    tmp_path: Path, devices: list[Device], monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """With a delay of a minute, and a quarter of that for a run."""
    monkeypatch.setattr("app.repository.warmup.RUN_TIMEOUT", 15.0)
    path = make(tmp_path / "m.popef")
    options = ModelRunnerConfig(
        replica_to_device={0: devices[0]},
        batching=True,
        max_queue_delay=60.0,
        timeout_ns=60 * 10**9,
    )
    with ModelRunner(path, options) as runner:
        spec = ModelSpec.from_runner("m", "1", runner)
        config = read_section(WarmupConfig, {"batch_sizes": [1]})
        assert warm_up(spec, runner, config, None)


def test_the_memory_of_its_values_goes_back_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, timeout=WAIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
