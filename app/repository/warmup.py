"""Run a model before it accepts requests, so that the first requests are not slow.

Every replica runs every batch size once (or as ``[warmup]`` says). ONNX Runtime
allocates memory and chooses kernels in the first run of a shape. Also, a model that
cannot run fails before requests depend on it. For threads; blocks.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.codec.model import ModelCodec
from app.codec.shapes import fits
from app.config.model_files import count_strings, file_inside, read_array, read_bytes
from app.config.warmup_config import WarmupConfig, WarmupInput, WarmupSample
from app.errors import RequestError
from app.limits import DEFAULT_LIMITS
from app.repository.load_errors import LoadError
from app.repository.source import WARMUP_FOLDER
from app.sizes import counted
from app.spec import ModelSpec, TensorSpec
from engine import (
    PYTHON_STEP,
    Array,
    DeviceLost,
    EngineError,
    ModelRunner,
    Tensor,
    TimedOut,
)
from popef_io import DataType

# Synthetic rows stay small and short. If a run takes seconds, the preparations of the
# first run hardly matter. Many rows of a large model would take memory that no request
# may ever need.
AUTOMATIC_BYTES = 64 << 20
AUTOMATIC_SECONDS = 2.0
# Values for free dimensions, tried in turn until the model runs. Some models take any
# size, some a multiple of 8 or 32, some only the size of an image or a frame of sound.
FILLS = (1, 8, 32, 64, 224, 512, 640)
RUN_TIMEOUT = 300.0  # seconds that one run may take
SEED = 0


class WarmupFailed(LoadError):
    """A run before the model was ready failed; the message says which and why.

    If `is_late` is true, the run exceeded its time.
    """

    def __init__(self, message: str, *, is_late: bool = False) -> None:
        super().__init__(message)
        self.is_late = is_late


@dataclass(frozen=True, slots=True)
class _Run:
    """One request, and the number of its runs; `rows` is 0 if rows do not matter."""

    label: str
    inputs: Mapping[str, Tensor]
    count: int = 1
    rows: int = 0


def warm_up(
    spec: ModelSpec,
    runner: ModelRunner,
    config: WarmupConfig | None,
    folder: Path | None,
    preferred: Sequence[int] = (),
    until: float = math.inf,
) -> int:
    """Run the warm-up of `config` on every replica; None uses synthetic values.

    Files come from `folder`. The warm-up must end by `until`, a `time.monotonic()`.
    Returns the size of free dimensions in the runs, or 0 without a run. Raises
    `WarmupFailed`, and `engine.DeviceLost`, which is not the model's fault.
    """
    if config is not None and not config.enabled:
        return 0
    fills = FILLS if config is None and _has_free_sizes(spec) else FILLS[:1]
    first: WarmupFailed | None = None
    for fill in fills:
        try:
            ran = _run_all(spec, runner, config, folder, preferred, until, fill)
        except WarmupFailed as e:
            if e.is_late or runner.failure is not None:
                raise
            first = first or e
        else:
            if ran or first is None:
                return fill if ran else 0
    assert first is not None
    raise first


def run_example(
    spec: ModelSpec,
    visible: ModelSpec,
    runner: ModelRunner,
    example: Mapping[str, Any],
    until: float = math.inf,
) -> None:
    """Run the values that are shown as an example, as a request with them would.

    `example` are values by input of `visible`, the model as requests see it. Other
    inputs of `spec` get ones, with free dimensions of 1. The run must end by `until`, a
    `time.monotonic()`. Raises `WarmupFailed`, and `engine.DeviceLost`.
    """
    unknown = sorted(example.keys() - visible.inputs_by_name.keys())
    if unknown:
        raise WarmupFailed(f"example: the model has no input {', '.join(unknown)}")
    given = tuple(t for t in visible.inputs if t.name in example)
    try:
        codec = ModelCodec(replace(visible, inputs=given))
        request = codec.read({"inputs": dict(example)})
        (ones, *_) = _runs(spec, WarmupConfig(), None, (), 1)
    except (RequestError, ValueError) as e:
        raise WarmupFailed(f"example: {e}") from e
    inputs = {**ones.inputs, **request.inputs}
    _run_everywhere(runner, _Run("the example", inputs), until)


def _has_free_sizes(spec: ModelSpec) -> bool:
    inner = 1 if spec.is_batched else 0
    return any(t.shape is None or -1 in t.shape[inner:] for t in spec.inputs)


def _run_all(
    spec: ModelSpec,
    runner: ModelRunner,
    config: WarmupConfig | None,
    folder: Path | None,
    preferred: Sequence[int],
    until: float,
    fill: int,
) -> bool:
    """Return whether anything was run. Raises `WarmupFailed` as soon as a run
    fails."""
    budget = _Budget(until)
    ran = False
    try:
        for run in _runs(spec, config or WarmupConfig(), folder, preferred, fill):
            if config is None and not budget.allows(runner, run):
                continue
            budget.spend(runner, run)
            ran = True
    except (ValueError, OSError) as e:
        raise WarmupFailed(f"warm-up: {e}") from e
    return ran


class _Budget:
    """Budget of synthetic rows.

    It assumes that a row takes as long as in the run before, so a slow model runs few
    rows.
    """

    def __init__(self, until: float) -> None:
        self._until = until
        self._left = AUTOMATIC_SECONDS
        self._last: _Run | None = None
        self._per_row = 0.0

    def allows(self, runner: ModelRunner, run: _Run) -> bool:
        if sum(tensor.nbytes for tensor in run.inputs.values()) > AUTOMATIC_BYTES:
            return False
        if self._per_row * run.rows > self._left and self._last is not None:
            # The preparations of the first run may have taken longer than the run
            # itself.
            self.spend(runner, self._last)
        return self._per_row * run.rows <= self._left

    def spend(self, runner: ModelRunner, run: _Run) -> None:
        """Run it, and subtract its time from the budget."""
        started = time.monotonic()
        _run_everywhere(runner, run, self._until)
        seconds = time.monotonic() - started
        self._left -= seconds
        self._per_row = seconds / max(1, run.rows)
        self._last = None if run is self._last else run


def _run_everywhere(runner: ModelRunner, run: _Run, until: float) -> None:
    """Run on all replicas at the same time, `count` times. Raises `WarmupFailed`."""
    for _ in range(run.count):
        deadline = min(time.monotonic() + RUN_TIMEOUT, until)
        try:
            requests = [
                runner.submit(
                    run.inputs,
                    deadline=deadline,
                    replica_id=replica,
                    validate=True,
                    # No other requests exist yet, so a delay would be useless.
                    delayed=False,
                )
                for replica in range(len(runner.devices))
            ]
        except DeviceLost:
            raise
        except EngineError as e:
            msg = f"warm-up with {run.label} failed: {e}"
            raise WarmupFailed(msg, is_late=isinstance(e, TimedOut)) from e
        for request in requests:
            request.wait(max(0.0, deadline - time.monotonic()))
            if isinstance(request.error, DeviceLost):
                raise request.error.again()
            if request.error is not None or not request.done:
                late = not request.done or isinstance(request.error, TimedOut)
                why = "it takes too long" if late else request.error
                msg = f"warm-up with {run.label} failed: {why}"
                for each in requests:
                    each.cancel()
                raise WarmupFailed(msg, is_late=late)


def _runs(
    spec: ModelSpec,
    config: WarmupConfig,
    folder: Path | None,
    preferred: Sequence[int],
    fill: int,
) -> Iterator[_Run]:
    if config.samples:
        for sample in config.samples:
            yield _sample_run(spec, sample, folder)
        return
    default = WarmupInput(data=config.data)
    sizes: Sequence[int] = (0,)
    if spec.is_batched:
        sizes = config.batch_sizes or sorted({1, *preferred, spec.max_batch_size})
    for rows in sizes:
        label = f"{config.data}, batch size {rows}" if rows else config.data
        inputs = {t.name: _synthetic(t, rows, default, fill) for t in spec.inputs}
        yield _Run(label, inputs, config.count, rows)


def _sample_run(spec: ModelSpec, sample: WarmupSample, folder: Path | None) -> _Run:
    unknown = sorted(set(sample.inputs) - set(spec.inputs_by_name))
    if unknown:
        raise ValueError(f"the model has no input {', '.join(unknown)}")
    rows = (sample.batch_size or 1) if spec.is_batched else 0
    inputs = {}
    for tensor in spec.inputs:
        wanted = sample.inputs.get(tensor.name)
        if wanted is None and tensor.name in spec.defaults:
            inputs[tensor.name] = spec.default(tensor.name, rows)
            continue
        wanted = wanted or WarmupInput()
        if wanted.file:
            made = _from_file(tensor, rows, wanted, folder)
        else:
            made = _synthetic(tensor, rows, wanted)
        inputs[tensor.name] = _checked(tensor, made)
    counts = {name: tensor.shape[0] for name, tensor in inputs.items() if tensor.shape}
    if spec.is_batched and len(set(counts.values())) > 1:
        raise ValueError(f"the inputs have different numbers of rows: {counts}")
    label = f"sample {sample.name!r}" if sample.name else "a sample"
    return _Run(label, inputs, sample.count)


def _checked(tensor: TensorSpec, made: Tensor) -> Tensor:
    """Return the value made for an input if the input accepts it. Raises ValueError."""
    if made.data_type is not tensor.data_type:
        msg = f"input '{tensor.name}' is {tensor.datatype}, got {made.data_type.name}"
        raise ValueError(msg)
    _check_shape(tensor, made.shape)
    return made


def _check_shape(tensor: TensorSpec, shape: tuple[int, ...]) -> None:
    if not fits(tensor.shape, shape):
        msg = (
            f"input '{tensor.name}' expects shape {list(tensor.shape or ())}, "
            f"got {list(shape)}"
        )
        raise ValueError(msg)


def _shape(
    tensor: TensorSpec, rows: int, wanted: WarmupInput, fill: int = 1
) -> tuple[int, ...]:
    """Return the shape with its free dimensions filled in. Raises ValueError."""
    declared = tensor.shape if tensor.shape is not None else (-1, *wanted.shape)
    inner = declared[1:] if rows else declared
    given = wanted.shape or tuple(dim if dim >= 0 else fill for dim in inner)
    if tensor.multiple > 1 and not wanted.shape:
        given = (tensor.multiple, *given[1:])
    shape = (rows, *given) if rows else given
    count = math.prod(dim or 1 for dim in shape)  # numpy too counts without zeros
    if count > DEFAULT_LIMITS.max_elements:
        msg = f"input '{tensor.name}' would have {count} elements"
        raise ValueError(msg)
    return shape


def _synthetic(
    tensor: TensorSpec, rows: int, wanted: WarmupInput, fill: int = 1
) -> Tensor:
    if tensor.name == PYTHON_STEP:
        # For a generator, only the first response is tried.
        return Tensor.from_numpy(np.zeros((3,), np.int64), tensor.data_type)
    shape = _shape(tensor, rows, wanted, fill)
    if wanted.shape:
        _check_shape(tensor, shape)  # before values take memory
    if tensor.data_type is DataType.STRING:
        word = b"" if wanted.data == "zeros" else b"1"
        return Tensor.from_numpy(np.full(shape, word, object), DataType.STRING)
    return Tensor.from_numpy(_values(tensor, shape, wanted.data), tensor.data_type)


def _values(tensor: TensorSpec, shape: tuple[int, ...], data: str) -> Array:
    dtype = tensor.type.dtype
    # A mapping of its own, because malloc would keep the memory (`prepare_process`).
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size or 1, flags=mmap.MAP_PRIVATE)
    values: Array = np.ndarray(shape, dtype, memory)
    if data == "zeros":
        return values
    random = np.random.default_rng(SEED) if data == "random" else None
    if tensor.type.kind != "f":
        values[...] = random.integers(0, 2, shape) if random else 1
        return values
    floats: Array = np.ones((), np.float32)
    if random:
        floats = random.random(shape, np.float32)
    if tensor.data_type is DataType.BF16:  # BF16 is the upper half of FP32
        floats = floats.view(np.uint32) >> 16
    values[...] = floats
    return values


def _from_file(
    tensor: TensorSpec, rows: int, wanted: WarmupInput, folder: Path | None
) -> Tensor:
    """Return the value in a file: a .npy file unchanged, raw bytes in the input's
    shape.
    """
    if folder is None:
        msg = f"file {wanted.file}: a model without a folder cannot have files"
        raise ValueError(msg)
    try:
        path = file_inside(folder, f"{WARMUP_FOLDER}/{wanted.file}")
        if path.suffix == ".npy":
            array = read_array(path)
        else:
            data = read_bytes(path, DEFAULT_LIMITS.max_body_bytes)
    except ValueError as e:
        raise ValueError(f"file {wanted.file} {e}") from None
    if path.suffix == ".npy":
        data_type = tensor.data_type if array.dtype == tensor.type.dtype else None
        return Tensor.from_numpy(np.ascontiguousarray(array), data_type)
    return _from_bytes(tensor, _shape(tensor, rows, wanted), data, rows, wanted.file)


def _from_bytes(
    tensor: TensorSpec, shape: tuple[int, ...], data: bytes, rows: int, name: str
) -> Tensor:
    """Return bytes of all rows, or of one row that is repeated. Raises ValueError."""
    count, size = math.prod(shape), tensor.type.item_size
    if size:
        found, rest = divmod(len(data), size)
        found = -1 if rest else found
    else:
        found = count_strings(data)
    repeats = 1
    if found != count and rows and found * rows == count:
        repeats = rows
    elif found != count:
        what = counted(len(data), "byte") if size else counted(max(0, found), "string")
        per_row = count * (size or 1) // max(1, rows)
        one = f" (one row: {per_row})" if rows > 1 else ""
        msg = (
            f"file {name} has {what}, but input '{tensor.name}' of shape "
            f"{list(shape)} needs {count * (size or 1)}{one}"
        )
        raise ValueError(msg)
    parts = (data,) * repeats if data else ()
    return Tensor(tensor.data_type, shape, parts, len(data) * repeats)
