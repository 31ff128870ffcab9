"""One ONNX Runtime session.

Only this module and `engine.programs.string_runs` depend on ONNX Runtime's
peculiarities.

This module handles what each call would otherwise need:

- Options: the configured number of threads, no spinning on shared cores, and no worker
  threads if there is one thread. Logging is off, because every message also arrives as
  an exception, and a client's bad input must not fill the log.
- Calls go to the session object below `InferenceSession.run`. That method spends 1.2 µs
  on checks that the engine has already made, prints, and falls back to other providers
  on its own.
- Element types: BF16 travels as uint16 bits, which only I/O binding accepts. Strings
  need more (`engine.programs.string_runs`).
- Memory: sessions share one arena, so hundreds of small models take half the memory. If
  they run in turns they find the arena in the cache (3.6 µs a run instead of 11.6). The
  arena keeps the memory of the largest run until `give_back_memory`.
- Errors: every error of ONNX Runtime becomes an `EngineError` with its message, without
  its source paths.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from engine.errors import (
    Cancelled,
    EngineError,
    ExecutionFailed,
    InvalidConfig,
    InvalidModel,
    OutOfMemory,
)
from engine.programs.session import BoundShapeMismatch, Port, RawRun, RunOptions
from engine.programs.string_runs import CPU, run_strings
from engine.tensor import Array
from popef_io import DataType

_log = logging.getLogger(__name__)

SILENT = 4
"""ONNX Runtime's severity FATAL."""

make_run_options: Callable[[], RunOptions] = ort_state.RunOptions
"""Fresh options for one run (0.2 µs)."""

#: Each data type that ONNX and we share: its number in TensorProto.DataType, and ONNX
#: Runtime's name of it.
_ONNX_TYPES = {
    DataType.F32: (1, "float"),
    DataType.U8: (2, "uint8"),
    DataType.S8: (3, "int8"),
    DataType.U16: (4, "uint16"),
    DataType.S16: (5, "int16"),
    DataType.S32: (6, "int32"),
    DataType.S64: (7, "int64"),
    DataType.STRING: (8, "string"),
    DataType.BOOL: (9, "bool"),
    DataType.F16: (10, "float16"),
    DataType.F64: (11, "double"),
    DataType.U32: (12, "uint32"),
    DataType.U64: (13, "uint64"),
    DataType.BF16: (16, "bfloat16"),
}
_ONNX_NUMBERS = {ours: number for ours, (number, _) in _ONNX_TYPES.items()}
_TYPES_BY_NAME = {f"tensor({name})": ours for ours, (_, name) in _ONNX_TYPES.items()}


def onnx_number(data_type: DataType) -> int | None:
    """Return the number of `data_type` in ONNX's TensorProto.DataType; None if it has
    no number there.
    """
    return _ONNX_NUMBERS.get(data_type)


class OnnxSession:
    """A loaded graph. Running it is thread-safe. To close it, drop all references to
    it.

    `weights` are the graph's initializers that are not in the model. It maps a name to
    a data type and an array over memory that must not change. ONNX Runtime keeps its
    own copy of them, in the layout that its kernels prefer. `providers`, the best one
    first, may name one of several units: CUDAExecutionProvider:1. Raises InvalidModel,
    naming the node, if ONNX Runtime cannot load the graph. Raises InvalidConfig if the
    first provider cannot be used, because falling back to the next one would not be
    what the caller requested.
    """

    __slots__ = (
        "_session",
        "_weights",
        "inputs",
        "is_onnx",
        "outputs",
        "raw_run",
        "run_strings",
    )

    def __init__(
        self,
        model: bytes,
        weights: Mapping[str, tuple[Array, DataType]] | None = None,
        *,
        threads: int = 1,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        options = session_options(threads)
        try:
            self._weights = _add_weights(options, weights or {})
            chosen = [_provider(text) for text in providers]
            public = ort.InferenceSession(model, options, providers=chosen)
        except Exception as error:  # pybind's classes share no public base
            raise load_error(error) from None
        wanted = providers[0].partition(":")[0]
        if wanted not in public.get_providers():
            raise InvalidConfig(
                f"ONNX Runtime cannot use {wanted}: check that the device exists, and "
                "that its driver and libraries have the versions that it needs"
            )
        self.is_onnx = True
        self._session = public._sess
        self.raw_run: RawRun = self._session.run
        """`raw_run(output_names, feed, run_options)`: ONNX Runtime's own exceptions,
        no BF16, strings as `str`."""
        self.run_strings: RawRun = partial(run_strings, self._session)
        self.inputs: Mapping[str, Port] = _ports(public.get_inputs())
        self.outputs: Mapping[str, Port] = _ports(public.get_outputs())

    def error_of(self, error: BaseException, options: RunOptions) -> EngineError:
        """Return the error to raise if a run with `options` failed with `error`."""
        return run_error(error, options)

    def binding(self) -> Binding:
        """Return a new binding of this session, for one thread."""
        return Binding(self._session)


def _provider(text: str) -> str | tuple[str, dict[str, str]]:
    name, _, number = text.partition(":")
    return (name, {"device_id": number}) if number else name


class Binding:
    """Inputs and outputs of one run, bound to memory. Not thread-safe; reusable.

    Supports all numeric types, but no strings. `run` leaves nothing bound.
    """

    __slots__ = ("_binding", "_session")

    def __init__(self, session: Any) -> None:
        self._session = session
        self._binding = ort_state.SessionIOBinding(session)

    def run(
        self,
        inputs: Sequence[tuple[str, DataType, Array]],
        outputs: Sequence[tuple[str, DataType, Array | None]],
        run_options: RunOptions = None,
    ) -> list[Array]:
        """Run the graph. Write each output that comes with an array into that array.

        The arrays must be C-contiguous. Returns the outputs in order. If an output has
        a given array, that array is returned. Raises ONNX Runtime's own exceptions, and
        BoundShapeMismatch if an output has another shape than its given array.
        """
        binding = self._binding
        try:
            for name, data_type, array in inputs:
                if data_type is DataType.BF16:
                    number, address = _ONNX_NUMBERS[data_type], array.ctypes.data
                    binding.bind_input(name, CPU, number, array.shape, address)
                else:
                    binding.bind_input(name, array)
            for name, data_type, memory in outputs:
                if memory is None:
                    binding.bind_output(name, CPU)
                else:
                    number, address = _ONNX_NUMBERS[data_type], memory.ctypes.data
                    binding.bind_output(name, CPU, number, memory.shape, address)
            self._session.run_with_iobinding(binding, run_options)
            # Indexed, because an iterator over this vector costs 40 µs.
            values = binding.get_outputs()
            return [
                _take(values[i], data_type, memory)
                for i, (_, data_type, memory) in enumerate(outputs)
            ]
        except Exception as error:
            if _BOUND_MISMATCH in str(error):
                raise BoundShapeMismatch from None
            raise
        finally:
            # Bindings point into memory that does not belong to us after this call.
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()


_BOUND_MISMATCH = "but the computed output shape for this run is"


def _take(value: Any, data_type: DataType, memory: Array | None) -> Array:
    """Return the array of an output. If ONNX Runtime passes an input through as an
    output, it does not copy it.
    """
    if memory is None:
        if data_type is not DataType.BF16:
            array: Array = value.numpy()
            return array
        memory = np.empty(value.shape(), data_type.numpy_dtype)
    elif value.data_ptr() == memory.ctypes.data:
        return memory
    elif tuple(value.shape()) != memory.shape:
        raise BoundShapeMismatch
    if memory.nbytes:
        ctypes.memmove(memory.ctypes.data, value.data_ptr(), memory.nbytes)
    return memory


def session_options(threads: int) -> Any:
    """Return the options of every session, before weights are added."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.add_session_config_entry("session.use_env_allocators", "1")
    _share_arena()
    return options


@cache
def _share_arena() -> None:
    """Register the arena that all sessions of this process share, once."""
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    try:
        ort.create_and_register_allocator(memory, None)
    except Exception as error:  # other code has registered one, which does as well
        _log.debug("no arena registered: %s", error)


#: x: float[1] -> Identity -> y
_TINY = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08'
    b"\x08\x01\x12\x04\n\x02\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01"
    b"B\x04\n\x00\x10\r"
)


@cache
def _tiny_session() -> OnnxSession:
    return OnnxSession(_TINY)


def give_back_memory() -> None:
    """Return the unused memory of the shared arena to the system.

    ONNX Runtime does this at the end of a run, so this function makes a tiny run.
    Thread-safe. It takes milliseconds if there is nothing to return, and a third of a
    second for a gigabyte.
    """
    gc.collect()  # errors and their frames may hold large arrays
    options = make_run_options()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    _tiny_session().raw_run(["y"], {"x": np.zeros(1, np.float32)}, options)


def _add_weights(
    options: Any, weights: Mapping[str, tuple[Array, DataType]]
) -> list[Any]:
    values = []
    for array, data_type in weights.values():
        plain = array if array.flags.c_contiguous else array.copy()
        if data_type is DataType.BF16:
            make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
            values.append(make(plain, _ONNX_NUMBERS[data_type]))
        else:
            values.append(ort.OrtValue.ortvalue_from_numpy(plain))
    if values:
        options.add_external_initializers(list(weights), values)
    return values


def _ports(arguments: Sequence[Any]) -> dict[str, Port]:
    return {
        a.name: Port(a.name, a.type, _TYPES_BY_NAME.get(a.type), tuple(a.shape))
        for a in arguments
    }


_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_SOURCE = re.compile(
    r"/onnxruntime_src/\S+?:\d+ .*?\) (?=[\w\[!]+)|"
    r"/onnxruntime_src/\S+(:\d+)? |\b\w+\.(cc|h):\d+ \w+ "
)
_RUNNING = re.compile(
    r"^Non-zero status code returned while running (.*?)\.? Status Message: "
)
#: The error if a slim container image lacks the locale that text models
#: (StringNormalizer) need.
_NO_LOCALE = "Failed to construct locale"
_MAKE_LOCALE = "localedef -i en_US -f UTF-8 en_US.UTF-8"
#: The error if the device cannot compute with the types of a node, often BF16.
_NO_KERNEL = "Could not find an implementation"
#: Classes of run errors that no input causes, such as a failed provider or device, or a
#: missing kernel. Some versions of ONNX Runtime do not have all of them.
_NOT_BY_INPUT = tuple(
    getattr(ort_state, name)
    for name in ("EPFail", "EngineError", "NotImplemented", "DeviceReset")
    if hasattr(ort_state, name)
)
#: Messages of ONNX Runtime's allocators: its arena, C++ and CUDA. It has no error class
#: for a lack of memory. The memory that a graph takes between its nodes cannot be known
#: before.
_NO_MEMORY = ("Failed to allocate memory", "bad_alloc", "out of memory")


def _words(error: BaseException) -> str:
    """Return ONNX Runtime's message without its codes and source paths."""
    text = _PREFIX.sub("", str(error) or type(error).__name__)
    text = text.removeprefix("Error in execution: ")
    return _RUNNING.sub(r"\1: ", " ".join(_SOURCE.sub("", text).split()))


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return any(words in text for words in _NO_MEMORY)


def load_error(error: BaseException) -> EngineError:
    """Return the error to raise if a session could not be made."""
    if isinstance(error, EngineError):
        return error
    words = _words(error)
    if _NO_LOCALE in words:
        words += "; on Debian, run apt-get install locales, then " + _MAKE_LOCALE
    if _NO_KERNEL in words:
        words += "; the device cannot compute it in these types: export others, as FP32"
    if _is_out_of_memory(error):
        return OutOfMemory(f"not enough memory to load the model: {words}")
    return InvalidModel(f"cannot load the model: {words}")


def run_error(error: BaseException, options: RunOptions) -> EngineError:
    """Return the error to raise if a run with `options` failed with `error`.

    The place of the failure decides, not ONNX Runtime's message, which changes with
    every release. The graph and its kernels were accepted at load, so a graph that
    fails while it runs fails on its input. The data of load and save programs come from
    the file, so those do not pass `callers_fault` on (engine/transport/control.py).
    Only a lack of memory is recognised by its message. A test provokes these messages.
    """
    if isinstance(error, EngineError):
        return error
    if options is not None and options.terminate:
        return Cancelled("the run was terminated")
    if _is_out_of_memory(error):
        return OutOfMemory(f"not enough memory for the request: {_words(error)}")
    by_input = not isinstance(error, _NOT_BY_INPUT)
    return ExecutionFailed(_words(error), callers_fault=by_input)
