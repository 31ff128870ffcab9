"""Describe and load Python models in a device process (`engine.worker.python_kind`).

For the thread that runs programs. The model runs only in this thread, so libraries that
depend on their thread see the same one from beginning to end.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.errors import EngineBug
from engine.programs.executable import Executable
from engine.programs.executor import Executor
from engine.transport.device_messages import Described, PythonTold
from engine.transport.held_socket import HeldSocket
from engine.worker.batch import RunningBatch
from engine.worker.python_kind import Running
from popef_io import Model
from popgate_python_interface import GRAPH, Context, OwnMetrics, PresentRun, find_model
from popgate_python_messages.call_messages import MetricsTold, MetricTold
from popgate_python_worker.calls.call_client import CallClient
from popgate_python_worker.calls.server_models import ServerModels
from popgate_python_worker.children import let_signals_end_children
from popgate_python_worker.forked_child import leave_if_forked
from popgate_python_worker.installed import check_installed
from popgate_python_worker.plain_options import PlainOptions
from popgate_python_worker.session import PythonSession, import_model, load_error

#: The described module, by file and digest, so that it is not imported twice.
_described: dict[tuple[str, bytes], ModuleType] = {}


def describe(given: PythonTold, fds: Sequence[int]) -> Described:
    """Return the inputs and outputs of the model in a file. The file comes as a
    descriptor.

    Raises InvalidModel, with the file, line and code of the author's failure.
    """
    let_signals_end_children()
    check_installed(given.requirements)
    source = _read(fds[0])
    face = _face(given)
    module = _module(Path(given.file), source)
    interface = find_model(module, _adapted(face, module, given))[1]
    return Described(**interface.to_message())


def executor(
    model: Model, given: PythonTold, threads: int, fds: Sequence[int], running: Running
) -> Executor:
    """Return the executor of a Python model, as described in a load message.

    If the message names other models, its last descriptor is the socket for calls to
    them. `running` returns the run in progress.
    """
    let_signals_end_children()
    executable = Executable.decode(model.executable.raw())
    check_installed(given.requirements)
    file = Path(given.file)
    run = PresentRun()
    about: dict[str, Any] = {"run": run, "rows_now": lambda: _rows(running())}
    with ExitStack() as ends:
        if given.calls:
            sock = HeldSocket(os.dup(fds[-1]))
            client = CallClient(sock, run, running)
            ends.callback(client.close)
            metrics = OwnMetrics(
                lambda rows: client.send(
                    MetricsTold(tuple(MetricTold(*row) for row in rows))
                )
            )
            ends.callback(metrics.close)
            about["models"] = ServerModels(client, given.models)
            about["client_requests_now"] = client.client_requests
            about["metrics"] = metrics
        context = Context(file.parent, given.config, given.device, threads, **about)
        source = executable.graphs[GRAPH].model
        face = _face(given)
        module = _module(file, source)
        adapted = _adapted(face, module, given)
        session = PythonSession(module, file, context, adapted)
        ends.callback(session.close)
        return Executor(
            executable,
            model.metadata,
            sessions={GRAPH: session},
            new_options=PlainOptions,
            on_close=ends.pop_all().close,
        )


def give_back_memory() -> None:
    """Return memory to the system. The process may have no ONNX Runtime."""
    gc.collect()


def _rows(running: RunningBatch | None) -> tuple[int, ...]:
    return () if running is None else tuple(entry.rows for entry in running.entries)


def _face(given: PythonTold) -> ModuleType | None:
    """Return the adapter of a file of another kind, if `given` names one
    (`popgate_python_files.adapters`). Make the adapter's package importable before the
    file imports it.
    """
    adapter = given.adapter.module
    if not adapter:
        return None
    name = adapter.partition(".")[0]
    spec = PathFinder.find_spec(name, [given.adapter.folder])
    if spec is None or spec.loader is None:
        raise EngineBug(f"{name} is not in {given.adapter.folder}")
    if name not in sys.modules:
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    return import_module(adapter)


def _adapted(
    face: ModuleType | None, module: ModuleType, given: PythonTold
) -> type[Any] | None:
    """Return the model class that the adapter `face` makes from a module.

    None if the module has no model of that kind.
    """
    if face is None:
        return None
    pid = os.getpid()
    try:
        found: type[Any] | None = face.adapt(module, given.declared)
        leave_if_forked(pid)
    except BaseException as error:  # this may run the author's code
        leave_if_forked(pid, error)
        if not isinstance(error, Exception):
            raise
        raise load_error(error, Path(given.file)) from None
    return found


def _module(file: Path, source: bytes) -> ModuleType:
    key = str(file), hashlib.sha256(source).digest()
    found = _described.pop(key, None)
    if found is None:
        found = import_model(file, source)
    _described.clear()
    _described[key] = found
    return found


def _read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
