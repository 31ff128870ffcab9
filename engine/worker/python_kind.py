"""`PythonKind`: what runs the models of a device process of Python models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from engine.errors import InvalidModel
from engine.programs.executor import Executor
from engine.transport.device_messages import Described, PythonTold
from engine.worker.batch import RunningBatch
from popef_io import Model

Running = Callable[[], RunningBatch | None]


class PythonKind(Protocol):
    """The module that `--python` names. For the thread that runs programs."""

    def describe(self, given: PythonTold, fds: Sequence[int]) -> Described:
        """Return the inputs and outputs of the model in a file. The file comes as a
        descriptor. Raises InvalidModel.
        """

    def executor(
        self,
        model: Model,
        given: PythonTold,
        threads: int,
        fds: Sequence[int],
        running: Running,
    ) -> Executor:
        """Return the executor of a model, as described in a load message.

        If the message names other models, its last descriptor is the socket for calls
        to them. `running` returns the run in progress.
        """

    def give_back_memory(self) -> object:
        """Return memory to the system."""


def python_kind(module: str) -> PythonKind | None:
    """Return the module of this name; None if the process runs no Python models."""
    if not module:
        return None
    found: Any = import_module(module)
    kind: PythonKind = found
    return kind


def refuse_unless(kind: PythonKind | None, *, python: bool) -> None:
    """Raise InvalidModel if a model is of the other kind, because a process accepts
    code only if it was started for that.
    """
    if python and kind is None:
        raise InvalidModel("this device runs no Python models")
    if kind is not None and not python:
        raise InvalidModel("this device runs Python models only")
