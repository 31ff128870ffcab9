"""`python_reader`: the function of a plugin that reads the model in a Python file."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from app.plugins import PYTHON_FILES, first_plugin
from engine import Device, InvalidConfig, PythonModel

NO_PLUGIN = "no plugin that reads Python models is installed"


class ReadPythonModel(Protocol):
    """A function that returns the model in a file (entry point group
    `popgate.python_files`).
    """

    def __call__(
        self,
        device: Device,
        file: Path,
        *,
        name: str = "",
        parameters: Mapping[str, Any] | None = None,
        requirements: tuple[str, ...] = (),
        models: tuple[str, ...] | None = None,
        on_calls: Callable[[socket.socket], None] | None = None,
        declared: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> PythonModel:
        """Import `file` on `device`, a Python device, and return its model.

        Blocks for up to `timeout` seconds (None: no limit). Raises
        `engine.InvalidModel` for a file that is no model, and `engine.DeviceLost`.
        """


def python_reader() -> ReadPythonModel:
    """Return the function. Raises InvalidConfig without its plugin."""
    found = first_plugin(PYTHON_FILES)
    if found is None:
        raise InvalidConfig(NO_PLUGIN)
    read: ReadPythonModel = found
    return read
