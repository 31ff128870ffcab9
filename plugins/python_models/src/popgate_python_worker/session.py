"""A Python model in its device process: its module, its calls, and how they fail.

The load message contains the model's file as bytes. So a restarted process runs the
same code even if the file has changed. Other modules are read from the file's folder.
The thread that runs programs does all of this.
"""

from __future__ import annotations

import ast
import linecache
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from engine.errors import (
    Cancelled,
    EngineBug,
    EngineError,
    ExecutionFailed,
    InvalidModel,
    OutOfMemory,
    counted,
)
from engine.programs.python_tensors import ANSWER, MORE, ROUTE, STEP
from engine.programs.session import GraphBinding, Port, RawRun, RunOptions
from engine.tensor import Array
from popef_io import DataType
from popgate_python_interface import (
    Context,
    PythonInterface,
    PythonTensor,
    RouteApp,
    failed_answer,
    find_model,
    find_routes,
)
from popgate_python_worker.authors_loop import (
    NOTHING,
    AuthorsLoop,
    Responses,
    traceback_of,
)
from popgate_python_worker.forked_child import leave_if_forked

_log = logging.getLogger("engine.programs.python_session")

#: The most places that are remembered, so that the traceback of the same place is not
#: logged again.
MAX_PLACES = 100
#: The most characters of an author's message that a client receives.
MAX_WORDS = 1000
#: Packages with common names that this process has imported.
_OWN_PACKAGES = frozenset(("app", "engine", "popef_io"))


class _GivenSource(SourceFileLoader):
    """Loads a module from bytes, under the name of their file."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        if path != self.path:
            raise OSError(f"{path} is not read")
        return self._source

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("there is no file: nothing is kept compiled")


def import_model(file: Path, source: bytes) -> ModuleType:
    """Return the module of a model, which is called ``model``. It can import the other
    modules in its folder.

    Raises InvalidModel, which names the failed lines of the author's files.
    """
    folder, pid = str(file.parent), os.getpid()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        text = decode_source(source)
        _check_imports(ast.parse(text, str(file)), file.parent)
        # Tracebacks then show these lines, even if the file has changed.
        lines = text.splitlines(keepends=True)
        linecache.cache[str(file)] = (len(source), None, lines, str(file))
        loader = _GivenSource("model", str(file), source)
        spec = ModuleSpec("model", loader, origin=str(file))
        spec.has_location = True
        module = module_from_spec(spec)
        sys.modules["model"] = module
        loader.exec_module(module)
        leave_if_forked(pid)
    except BaseException as error:
        leave_if_forked(pid, error)
        sys.modules.pop("model", None)
        raise load_error(error, file) from None
    return module


def _check_imports(tree: ast.Module, folder: Path) -> None:
    """Raise InvalidModel if the model imports a module in its folder by the name of a
    package of this process. It would get that package.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        for name in _OWN_PACKAGES.intersection(n.partition(".")[0] for n in names):
            mine = PathFinder.find_spec(name, [str(folder)])
            if name in sys.modules and mine is not None and mine.has_location:
                raise InvalidModel(
                    f"model.py, line {node.lineno}: {name!r} is a package of PopGate, "
                    "so the module of this name beside model.py cannot be imported; "
                    "rename that module"
                )


class PythonSession:
    """A loaded Python model, which programs run as a graph (`GraphSession`).

    `adapted` is the same as in `find_model`. Raises InvalidModel if its module defines
    no model, or its `load` fails.
    """

    def __init__(
        self,
        module: ModuleType,
        file: Path,
        context: Context,
        adapted: type[Any] | None = None,
    ) -> None:
        self.is_onnx = False
        self._pid = os.getpid()
        self._file, self._run_now = file, context.run
        target, interface = find_model(module, adapted)
        self.interface: PythonInterface = interface
        self.inputs: Mapping[str, Port] = {t.name: _port(t) for t in interface.inputs}
        self.outputs: Mapping[str, Port] = {t.name: _port(t) for t in interface.outputs}
        own = (t for t in interface.outputs if t.name not in (MORE, ANSWER))
        self._tensors = {t.name: t for t in own}
        self._told: set[tuple[object, ...]] = set()
        self._model: Any = None
        self._routes: RouteApp | None = None
        self._loop = AuthorsLoop()
        try:
            if isinstance(target, type):
                self._model = target()
                load = getattr(self._model, "load", None)
                if load is not None:
                    self._loop.finish(load(context))
                self._routes = find_routes(target, self._model)
            leave_if_forked(self._pid)
            self._call = target if self._model is None else self._model
        except BaseException as error:
            leave_if_forked(self._pid, error)
            self._loop.close()
            raise load_error(error, file) from None
        self._responses: Responses | None = None
        if interface.streams:
            self._responses = Responses(self._call, self._loop)
        self.raw_run: RawRun = self._run
        self.run_strings: RawRun = self._run

    def _run(
        self, names: Sequence[str], feed: Mapping[str, Array], options: RunOptions
    ) -> list[Array]:
        for array in feed.values():
            # Rows may run again alone, so the model must not change them.
            array.flags.writeable = False
        self._run_now.begin(options)
        try:
            if ROUTE in feed and self._routes is not None:
                return [self._answer(self._routes, feed[ROUTE], options)]
            if self._responses is not None:
                return self._respond(self._responses, names, feed, options)
            result = self._loop.finish(self._call(**feed), options)
            leave_if_forked(self._pid)
            arrays = self._outputs(names, result)
            if self.interface.batching:
                _check_rows(names, arrays, len(next(iter(feed.values()), ())))
            return arrays
        except BaseException as error:
            leave_if_forked(self._pid, error)
            raise self.error_of(error, options) from None
        finally:
            self._run_now.end()

    def _answer(self, routes: RouteApp, requests: Array, options: RunOptions) -> Array:
        """Return the answers to requests to routes. A failed request has an answer too.
        If this raised an error instead, the other requests would run again.
        """
        answers = np.empty((len(requests), 2), dtype=object)
        for row, (head, body) in enumerate(requests.tolist()):
            try:
                pair = self._loop.finish(routes.answer(head, body), options)
                leave_if_forked(self._pid)
            except BaseException as error:
                leave_if_forked(self._pid, error)
                failure = self.error_of(error, options)
                if isinstance(failure, Cancelled):
                    raise failure from None
                pair = failed_answer(str(failure))
            answers[row, 0], answers[row, 1] = pair
        return answers

    def _respond(
        self,
        responses: Responses,
        names: Sequence[str],
        feed: Mapping[str, Array],
        options: RunOptions,
    ) -> list[Array]:
        """Return one response, or the end of the responses. `MORE` distinguishes the
        two.
        """
        own = {name: array for name, array in feed.items() if name != STEP}
        result = responses.step(feed[STEP], own, options)
        leave_if_forked(self._pid)
        wanted = [name for name in names if name != MORE]
        if result is NOTHING:
            arrays = [_nothing(self._tensors[name]) for name in wanted]
        else:
            arrays = self._outputs(wanted, result)
        found = dict(zip(wanted, arrays, strict=True))
        found[MORE] = np.array([result is not NOTHING])
        return [found[name] for name in names]

    def _outputs(self, names: Sequence[str], result: Any) -> list[Array]:
        if not isinstance(result, Mapping):
            if len(self._tensors) > 1 or result is None:
                raise ExecutionFailed(
                    f"the model returned {type(result).__name__}, expected a mapping "
                    f"with its outputs {', '.join(self._tensors)}"
                )
            result = dict.fromkeys(self._tensors, result)
        for name in result:
            if name not in self._tensors:
                raise ExecutionFailed(
                    f"the model returned {name!r}, which is not one of its outputs "
                    f"{', '.join(self._tensors)}"
                )
        missing = [name for name in names if name not in result]
        if missing:
            raise ExecutionFailed(f"the model returned no output {missing[0]!r}")
        return [_array(self._tensors[name], result[name]) for name in names]

    def error_of(self, error: BaseException, options: RunOptions) -> EngineError:
        """Return the error to raise if a call failed with `error`. Log the traceback
        once for each place.
        """
        if options is not None and options.terminate:
            return Cancelled("the run was terminated")
        if isinstance(error, EngineError):
            return error
        if isinstance(error, MemoryError):
            return OutOfMemory(f"not enough memory for the model: {_words(error)}")
        frames = _frames(error, self._file)
        place = (type(error), *(f.lineno for f in frames))
        if place not in self._told and len(self._told) < MAX_PLACES:
            self._told.add(place)
            _log.error("%s", traceback_of(error))
        where = _where(frames[-1:], self._file, code=False)
        return ExecutionFailed(f"{_words(error)}{where}")

    def binding(self) -> GraphBinding:
        raise EngineBug("outputs of a Python model were to be bound")

    def close(self) -> None:
        """Tell the model that it is unloaded. Exceptions are logged."""
        model, self._model = self._model, None
        close = getattr(model, "close", None)
        self._call = _closed
        if self._responses is not None:
            self._responses.close()
        try:
            if close is not None:
                self._loop.finish(close())
            leave_if_forked(self._pid)
        except BaseException as error:
            leave_if_forked(self._pid, error)
            _log.error("%s", traceback_of(error))
        finally:
            self._loop.close()

    def __repr__(self) -> str:
        return f"<PythonSession {self._file}>"


def _closed(**feed: Array) -> Any:
    raise ExecutionFailed("the model was unloaded")


def load_error(error: BaseException, file: Path) -> EngineError:
    """Return the error to raise if an author's code failed to load. The error names
    file, line and code.
    """
    if isinstance(error, EngineError):
        return error
    if isinstance(error, SyntaxError) and error.filename == str(file):
        line = (error.text or "").strip()[:MAX_WORDS]
        where = f"; {file.name}, line {error.lineno}: {line}"
        return InvalidModel(f"{type(error).__name__}: {error.msg[:MAX_WORDS]}{where}")
    return InvalidModel(f"{_words(error)}{_where(_frames(error, file), file)}")


def _words(error: BaseException) -> str:
    """Return an author's exception in one line of bounded length."""
    try:
        text = str(error)
    except BaseException:  # the error class may be the author's
        text = ""
    name = type(error).__name__
    text = " ".join(text[: 4 * MAX_WORDS].split())
    return f"{name}: {text[:MAX_WORDS]}" if text else name


def _frames(error: BaseException, file: Path) -> list[traceback.FrameSummary]:
    """Return the calls in the author's folder that led to an error."""
    folder = str(file.parent) + "/"
    found = traceback.extract_tb(error.__traceback__)
    return [frame for frame in found if frame.filename.startswith(folder)]


def _where(
    frames: Sequence[traceback.FrameSummary], file: Path, *, code: bool = True
) -> str:
    parts = []
    for frame in frames[-3:]:
        name = frame.filename.removeprefix(str(file.parent) + "/")
        part = f"{name}, line {frame.lineno}, in {frame.name}"
        parts.append(f"{part}: {(frame.line or '')[:MAX_WORDS]}" if code else part)
    return "; " + "; ".join(parts) if parts else ""


def _check_rows(names: Sequence[str], arrays: Sequence[Array], rows: int) -> None:
    """Raise ExecutionFailed if an output has another number of rows than the call."""
    for name, array in zip(names, arrays, strict=True):
        if len(array) != rows:
            raise ExecutionFailed(
                f"output {name!r} must have {counted(rows, 'row')}, got {len(array)}"
            )


def _port(tensor: PythonTensor) -> Port:
    return Port(tensor.name, str(tensor), tensor.data_type, tensor.shape)


def _nothing(tensor: PythonTensor) -> Array:
    """Return the tensor that stands for a missing response."""
    shape = [0] * len(tensor.shape)
    if tensor.data_type is DataType.STRING:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, tensor.data_type.numpy_dtype)


def _array(tensor: PythonTensor, value: Any) -> Array:
    """Return an output in its declared form. Raises ExecutionFailed if it differs.

    Numbers of another type are converted if that keeps their kind: from FP64 to FP32,
    never from FP32 to INT64.
    """
    name = tensor.name
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        msg = f"output {name!r} has masked values; return array.filled(…)"
        raise ExecutionFailed(msg)
    try:
        if tensor.data_type is DataType.STRING:
            array = _strings(name, value)
        else:
            array = np.asarray(value)
            wanted = tensor.data_type.numpy_dtype
            if array.dtype != wanted:
                if not np.can_cast(array.dtype, wanted, "same_kind"):
                    raise ExecutionFailed(
                        f"output {name!r} is {array.dtype}, expected {tensor}"
                    )
                array = _converted(name, array, tensor)
    except (ValueError, TypeError) as error:
        raise ExecutionFailed(
            f"output {name!r} is not an array: {_words(error)}"
        ) from None
    shape = tensor.shape
    fits = len(array.shape) == len(shape) and all(
        want in (-1, got) for got, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        raise ExecutionFailed(
            f"output {name!r} has shape {list(array.shape)}, expected {tensor}"
        )
    return array


def _converted(name: str, array: Array, tensor: PythonTensor) -> Array:
    """Return the array in the declared type, which must hold its numbers."""
    with np.errstate(over="ignore"):
        converted: Array = array.astype(tensor.data_type.numpy_dtype)
    if converted.dtype.kind == "f":
        wrong = array[np.isinf(converted) & ~np.isinf(array)]
    else:
        wrong = array[converted != array]
    if wrong.size:
        raise ExecutionFailed(
            f"output {name!r} has the value {wrong[0]}, which {tensor} cannot hold"
        )
    return converted


def _strings(name: str, value: Any) -> Array:
    array: Array = value if isinstance(value, np.ndarray) else _objects(value)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    if array.dtype.kind != "O":
        raise ExecutionFailed(f"output {name!r} is {array.dtype}, expected strings")
    for element in array.ravel().tolist():
        if not isinstance(element, bytes | str):
            kind = type(element).__name__
            raise ExecutionFailed(
                f"output {name!r} has an element of type {kind}, expected bytes or str"
            )
        if isinstance(element, str) and not element.isascii():
            try:
                element.encode()
            except UnicodeEncodeError as error:
                raise ExecutionFailed(
                    f"output {name!r} has a string that is not valid Unicode: "
                    f"{error.reason}"
                ) from None
    return array


def _objects(value: Any) -> Array:
    """Return an array of objects, because NumPy's string types cut trailing zeros."""
    return np.array(value, dtype=object)
