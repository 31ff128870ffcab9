"""Models in Python: whether they may run, how their processes start, and the function
of a plugin that reads their files.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from app.config.model_config import ModelConfig, python_keys_set
from app.plugins import PYTHON_FILES, first_plugin
from app.repository.source import PYTHON_MODEL, VersionSource
from app.spec import ModelSpec
from engine import PYTHON_STEP, Device, InvalidConfig, PythonModel, PythonOptions

NOT_ALLOWED = (
    f"{PYTHON_MODEL} is Python code; start the server with --allow-python to run it"
)

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


def check_kind(source: VersionSource, config: ModelConfig, *, allowed: bool) -> None:
    """Raise ValueError for code that may not run, and for options of another kind of
    model.
    """
    if not source.is_python:
        wrong = python_keys_set(config)
        if source.declared.document.get("backend") == "python":
            raise ValueError(
                f"{source.declared.label}: backend python requires a {PYTHON_MODEL}"
            )
        if wrong:
            msg = f"{wrong[0]} is for Python models, and there is no {PYTHON_MODEL}"
            raise ValueError(msg)
        return
    if not allowed:
        raise ValueError(NOT_ALLOWED)
    if source.declared.reshapes:
        raise ValueError(f"{source.declared.label}: reshape requires an .onnx file")
    if config.devices:
        raise ValueError(
            "devices: a Python model runs in processes of its own; remove the key"
        )
    if config.ragged is not None:
        raise ValueError(
            "[ragged]: a Python model pads its own rows; remove the section"
        )


def is_generator(spec: ModelSpec, source: VersionSource, config: ModelConfig) -> bool:
    """Return whether the model gives several responses.

    Raises ValueError for options that do not fit such a model.
    """
    found = source.is_python and PYTHON_STEP in spec.inputs_by_name
    if found and (config.sequence is not None or config.responses is not None):
        raise ValueError("a generator can have neither [sequence] nor [responses]")
    return found


def process_options(
    label: str, source: VersionSource, config: ModelConfig
) -> PythonOptions:
    """Return the options for starting its processes; `label` is its name in the log."""
    home = source.files[0].parent
    return PythonOptions(
        label=label,
        interpreter=config.python,
        environment=config.environment,
        folder=str(home / config.working_folder),
        memory=config.memory_limit or 0,
        start_timeout=config.start_timeout,
    )


def read_model(
    label: str,
    source: VersionSource,
    config: ModelConfig,
    device: Device,
    timeout: float,
    on_calls: Callable[[socket.socket], None] | None = None,
) -> PythonModel:
    """Read the model's interface from `device`, its own process.

    Blocks; raises as `ReadPythonModel` does. `on_calls` handles its calls to other
    models.
    """
    return python_reader()(
        device,
        source.files[0],
        name=label,
        parameters=config.parameters,
        requirements=config.requirements,
        models=config.models,
        on_calls=on_calls,
        declared={**source.declared.document, "name": label.rpartition("/")[0]},
        timeout=timeout or None,
    )
