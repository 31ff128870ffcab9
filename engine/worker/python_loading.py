"""Python models in a device process: describing and loading one.

For the thread that runs programs, which is the model's only one: libraries that mind
in which thread they are used see one from beginning to end.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.programs.executable import Executable
from engine.programs.executor import Executor
from engine.programs.python_interface import find_model
from engine.programs.python_model import GRAPH, Context
from engine.programs.python_requirements import check_installed
from engine.programs.python_session import PythonSession, import_model
from engine.programs.session import PlainOptions
from popef_io import Model

#: The module that was described, by file and digest: it is not imported twice.
_described: dict[tuple[str, bytes], ModuleType] = {}


def describe(message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
    """What the model in a file takes and gives; the file comes as a descriptor.

    Raises InvalidModel, with file, line and code where the author's code failed.
    """
    check_installed(map(str, message.get("requirements", ())))
    source = _read(fds[0])
    module = _module(Path(message["file"]), source)
    return find_model(module)[1].to_message()


def python_executor(model: Model, message: Mapping[str, Any]) -> Executor:
    """The executor of a Python model, as a load message says."""
    executable = Executable.decode(model.executable.raw())
    given = message["python"]
    check_installed(map(str, given.get("requirements", ())))
    file = Path(given["file"])
    threads = int(message["threads"])
    context = Context(file.parent, given["config"], str(given["device"]), threads)
    module = _module(file, executable.graphs[GRAPH].model)
    session = PythonSession(module, file, context)
    try:
        return Executor(
            executable,
            model.metadata,
            sessions={GRAPH: session},
            new_options=PlainOptions,
            on_close=session.close,
        )
    except BaseException:
        session.close()
        raise


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
