"""`ModelRunner` for Python programs: any model file, any array, blocking or awaited."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import engine
from engine import Array, DataDesc, DeviceManager, InvalidInput, ModelRunnerConfig
from popef_io import DataType
from popgate_client.values import (
    UnevenRecords,
    as_floats,
    as_integers,
    columns_of,
    inputs_of_table,
    whole_numbers,
    with_gaps,
    with_rank,
)


class ModelRunner:
    """A model on a device of its own process, ready to run. A context manager.

        with ModelRunner("model.onnx") as runner:
            runner.execute({"age": [[33.0], [44.0]]})["label"]
            runner.execute(images)  # if the model has one input
            runner.execute_async(images).wait()
            await runner.execute_async(images)  # in a coroutine

    `model` is a PopEF file, several files of one model, or an ONNX file, which is
    compiled first. It may also be a Python file (`model.py`), whose code runs in its
    own process: trust it like your program. `config` and `manager` are the engine's:
    replicas, batching, the pool of devices. Inputs are arrays, or lists of numbers or
    strings. Numbers are converted to the model's type if only precision is lost.
    Leading dimensions of 1 may be missing, and each element of a list for a column
    ``[-1, 1]`` is a row. Tables (DataFrames, Arrow tables, lists of records) are values
    by name. Thread-safe. Raises `EngineError`: InvalidModel for a file that cannot be
    run, NoDeviceAvailable.
    """

    def __init__(
        self,
        model: str | Path | list[str] | list[Path],
        config: ModelRunnerConfig | None = None,
        *,
        manager: DeviceManager | None = None,
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="popgate-") as folder:
            files = model if isinstance(model, list) else [model]
            if len(files) == 1 and Path(files[0]).suffix == ".py":
                self.engine = _python_runner(Path(files[0]), config, manager)
                return
            paths = [_popef_of(Path(file), Path(folder)) for file in files]
            # Open files stay readable after the folder is removed.
            self.engine = engine.ModelRunner(paths, config, manager=manager)

    @property
    def inputs(self) -> dict[str, DataDesc]:
        """Return the inputs of a request: data type and shape by name, -1 for free
        dimensions.
        """
        return {desc.name: desc for desc in self.engine.request_inputs}

    @property
    def outputs(self) -> dict[str, DataDesc]:
        """Return the outputs."""
        return {desc.name: desc for desc in self.engine.request_outputs}

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return the names of classes, by output, if the file has them."""
        return self.engine.interface.labels

    def execute(
        self, inputs: Mapping[str, Any] | Any, *, timeout: float | None = None
    ) -> dict[str, Array]:
        """Return the outputs of one request as new arrays, by name.

        `inputs` are values by name, or the value of the only input; `timeout` is
        seconds. Raises `EngineError`: InvalidInput and UnknownAnchor for inputs that do
        not fit, ExecutionFailed, DeadlineExceeded, DeviceLost.
        """
        return self.execute_async(inputs, timeout=timeout).arrays()

    def execute_async(
        self, inputs: Mapping[str, Any] | Any, *, timeout: float | None = None
    ) -> Result:
        """Queue one request.

        Its result is a mapping that waits on first access, and can be awaited. Arrays
        of `inputs` must stay unchanged until then.
        """
        descs = self.inputs
        given = self._named(inputs, descs)
        arrays = {
            name: _array(descs[name], value) if name in descs else np.asarray(value)
            for name, value in given.items()
        }
        return Result(self.engine.execute_async(arrays, timeout=timeout))

    def close(self) -> None:
        """Fail the requests in flight and release the device.

        A second call does nothing.
        """
        self.engine.close()

    def _named(self, inputs: Any, descs: Mapping[str, DataDesc]) -> Mapping[str, Any]:
        """Return values by name, from names, a table, or a single value for the only
        input.
        """
        if isinstance(inputs, Mapping):
            return inputs
        if not isinstance(inputs, np.ndarray):
            try:
                columns = columns_of(inputs)
            except UnevenRecords as e:
                raise InvalidInput(str(e)) from None
            if columns is not None:
                texts = [
                    name
                    for name, desc in descs.items()
                    if desc.data_type is DataType.STRING
                ]
                return inputs_of_table(columns, descs, texts)
        return {self._only(): inputs}

    def _only(self) -> str:
        names = list(self.inputs)
        if len(names) != 1:
            raise InvalidInput(
                f"the model has {len(names)} inputs; give values by name: {names}"
            )
        return names[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.engine)


class Result(Mapping[str, Array]):
    """The outputs of a request, by name: waits on first access, or is awaited.

    result = runner.execute_async({"x": rows})
    result["y"]            # waits
    outputs = await result  # a new dictionary; other tasks run meanwhile
    """

    def __init__(self, result: engine.ExecuteResult) -> None:
        self._result = result

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return whether the result is there.

        Raises the request's error.
        """
        return self._result.wait(timeout)

    def arrays(self) -> dict[str, Array]:
        """Return all outputs in a new dictionary. Waits; raises the request's error."""
        return self._result.arrays()

    def __await__(self) -> Generator[Any, None, dict[str, Array]]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self._result.arrays).__await__()

    def __getitem__(self, name: str) -> Array:
        return self._result[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._result)

    def __len__(self) -> int:
        return len(self._result)

    def __repr__(self) -> str:
        return repr(self._result)


def _python_runner(
    file: Path, config: ModelRunnerConfig | None, manager: DeviceManager | None
) -> engine.ModelRunner:
    """Return the runner of a Python file, on a device that it closes."""
    if config is not None and config.replica_to_device:
        raise InvalidInput(f"{file} runs on a device of its own: set no replicas")
    from app.repository.python_models import python_reader

    options = engine.PythonOptions(label=file.stem)
    device = (manager or DeviceManager()).create_python_device(options)
    try:
        model = python_reader()(device, file)
        return engine.ModelRunner(
            model,
            replace(
                config or ModelRunnerConfig(auto_reset=True),
                replica_to_device={0: device},
            ),
        )
    except BaseException:
        device.close()
        raise


def _popef_of(path: Path, folder: Path) -> Path:
    if path.suffix != ".onnx":
        return path
    from app.repository.compilers import compiler

    target = folder / f"{path.stem}.popef"
    compiler().compile(path, target)
    return target


def _array(desc: DataDesc, value: Any) -> npt.NDArray[Any]:
    """Return the value in the engine's form. Raises InvalidInput."""
    wanted = desc.data_type.numpy_dtype
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        msg = f"input {desc.name!r} has masked values; give array.filled(…)"
        raise InvalidInput(msg)
    if isinstance(value, np.ndarray) and value.dtype == wanted:
        return with_rank(np.asarray(value), desc.shape)
    is_text = desc.data_type is DataType.STRING
    try:
        array = np.asarray(value, dtype=object if is_text else None)
    except ValueError:
        raise InvalidInput(
            f"input {desc.name!r}: its lists are nested unevenly"
        ) from None
    if wanted.kind in "iu" and not isinstance(value, np.ndarray):
        array = whole_numbers(value, array)
    array = with_rank(array, desc.shape)
    if is_text or desc.data_type is DataType.BF16:
        return array
    try:
        return _numbers(array, wanted)
    except OverflowError as e:
        what = f"{e} for {desc.data_type.name}"
    except TypeError as e:
        what = f"must be {desc.data_type.name}, got {e}"
    raise InvalidInput(f"input {desc.name!r}: {what}")


def _numbers(array: npt.NDArray[Any], wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers in another type, others as they are, which the engine reports.

    Raises OverflowError for a number that the type cannot hold, and TypeError for
    an element that is no number.
    """
    if wanted.kind == "f":
        array = with_gaps(array)
    if array.dtype == object:
        for item in array.reshape(-1).tolist():
            if wanted.kind not in "iu" or not isinstance(item, int | np.integer):
                raise TypeError(type(item).__name__)
    if not array.size:
        return array.astype(wanted)
    if wanted.kind in "iu" and array.dtype.kind in "biuO":
        return as_integers(array, wanted)
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        return array
    return as_floats(array, wanted) if wanted.kind == "f" else array.astype(wanted)
