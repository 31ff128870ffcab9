"""A Python model from a runner's view: its inputs and outputs, and its file.

A container from a client never contains code, because this module makes the containers
of Python models. A device process accepts code only if it was started for that, and
only from a message that marks it as code.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import asdict

from engine.devices.device import Device
from engine.errors import InvalidConfig, InvalidModel
from engine.model.anchors import BATCHING_ROWS, OPTION_BATCHING
from engine.programs.executable import (
    Executable,
    Execute,
    Graph,
    Node,
    Steps,
    StreamIn,
    StreamOut,
)
from engine.programs.python_tensors import OPTION_ROUTES
from engine.runner.python_model import PythonModel
from engine.transport.device_messages import Describe, Described, PythonTold
from popef_io import (
    Anchor,
    Metadata,
    Model,
    Option,
    ProgramFlow,
    TensorInfo,
    TensorType,
    Writer,
    load_model,
)
from popgate_python_files.adapters import NO_ADAPTER, PythonAdapter, adapter_for
from popgate_python_interface import GRAPH, PythonInterface, PythonTensor

MAIN = 0
#: The most bytes of a `model.py`.
MAX_SOURCE = 4 << 20


@dataclass(frozen=True, slots=True)
class PythonCode:
    """A file with a model, and its settings.

    The model receives `parameters` as `context.config`. The packages of `requirements`
    must be installed. `models` are the names of the models that it may call; None
    allows all. Each load of the model passes a socket to `on_calls`. The model calls
    other models over that socket. A file for another server needs an `adapter`, and
    `declared` is the model's configuration for it.
    """

    file: Path
    parameters: Mapping[str, Any] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    on_calls: Callable[[socket.socket], None] | None = None
    declared: Mapping[str, Any] = field(default_factory=dict)
    adapter: PythonAdapter = NO_ADAPTER

    def to_message(self, device: Device) -> PythonTold:
        """Return the message for the device process that loads the model. Raises
        InvalidConfig if the device runs no Python models.
        """
        if device.python is None:
            raise InvalidConfig(
                f"device {device.id} cannot run a Python model; use a device of "
                "DeviceManager.create_python_device"
            )
        return PythonTold(
            file=str(self.file),
            config=dict(self.parameters),
            requirements=self.requirements,
            device=device.id,
            models=self.models,
            calls=self.on_calls is not None,
            declared=dict(self.declared),
            adapter=self.adapter.to_message(),
        )

    @contextmanager
    def calling(self) -> Iterator[list[int]]:
        """Yield the descriptors to send with the load message: the model's end of the
        socket for its calls, if it may call other models.

        The other end is passed to `on_calls` whether loading succeeds or fails.
        """
        if self.on_calls is None:
            yield []
            return
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.on_calls(mine)
            yield [theirs.fileno()]


def read_python_model(
    device: Device,
    file: str | os.PathLike[str],
    *,
    name: str = "",
    parameters: Mapping[str, Any] | None = None,
    requirements: tuple[str, ...] = (),
    models: tuple[str, ...] | None = None,
    on_calls: Callable[[socket.socket], None] | None = None,
    declared: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> PythonModel:
    """Import a file on a Python device (`DeviceManager.create_python_device`). Return
    the model in the file, with its inputs and outputs.

    `models`, `on_calls` and `declared` are the same as in `PythonCode`. Blocks. Raises
    InvalidModel, with the author's file, line and code, if the file cannot be imported
    or is not a model. Also raises it if the import takes longer than `timeout` seconds
    (None: no limit). The device's process is then ended. Raises DeviceLost if that
    process dies.
    """
    path = Path(file).resolve()
    given = dict(parameters or {})
    told = dict(declared or {})
    code = PythonCode(path, given, requirements, models, on_calls, told)
    try:
        with path.open("rb") as stream:
            source = stream.read(MAX_SOURCE + 1)
            if len(source) > MAX_SOURCE:
                raise InvalidModel(f"{path.name} exceeds {MAX_SOURCE} bytes")
            code = replace(code, adapter=adapter_for(source))
            message = Describe(code.to_message(device))
            answer = device.call(message, Described, [stream.fileno()], timeout)
    except TimeoutError:
        device.process.kill_and_wait(
            f"the import of {path.name} exceeded {timeout:g} s"
        )
        text = f"the import of {path.name} exceeded {timeout:g} s"
        raise InvalidModel(text) from None
    except OSError as error:
        raise InvalidModel(f"cannot read {path}: {error.strerror or error}") from error
    interface = PythonInterface.from_message(asdict(answer))
    name = name or path.parent.name or "model"
    return PythonModel(code, _container(name, interface, source))


def _container(name: str, interface: PythonInterface, source: bytes) -> Model:
    """Return a container with the model's tensors and one program that runs it."""
    inputs = {t.name: f"input {t.name}" for t in interface.inputs}
    outputs = {t.name: f"output {t.name}" for t in interface.outputs}
    nodes: list[Node] = [StreamIn(f"h2d_{n}", v) for n, v in inputs.items()]
    nodes.append(Execute(GRAPH, inputs, outputs))
    nodes += [StreamOut(v, f"d2h_{n}") for n, v in outputs.items()]
    variables = {inputs[t.name]: _info(t) for t in interface.inputs}
    variables |= {outputs[t.name]: _info(t) for t in interface.outputs}
    executable = Executable(
        {GRAPH: Graph(GRAPH, source)}, variables, {MAIN: Steps(tuple(nodes))}
    )
    anchors = [
        *(_anchor(t, f"h2d_{t.name}", TensorType.INPUT) for t in interface.inputs),
        *(_anchor(t, f"d2h_{t.name}", TensorType.OUTPUT) for t in interface.outputs),
    ]
    batching = BATCHING_ROWS if interface.batching else "none"
    options = [Option(OPTION_BATCHING, batching)]
    if interface.routes:
        options.append(Option(OPTION_ROUTES, interface.routes))
    metadata = Metadata(
        executable=name,
        anchors=tuple(anchors),
        program_flow=ProgramFlow(main=(MAIN,)),
        programs_map={MAIN: "main"},
        engine_options=tuple(options),
    )
    with TemporaryDirectory(prefix="popgate-") as folder:
        path = Path(folder) / "model.popef"
        with Writer(path) as writer:
            writer.write(metadata)
            with writer.create_executable(name) as blob:
                blob.write(executable.encode())
        return load_model(path, detached=True)


def _info(tensor: PythonTensor) -> TensorInfo:
    return TensorInfo(tensor.shape, tensor.data_type)


def _anchor(tensor: PythonTensor, handle: str, kind: TensorType) -> Anchor:
    return Anchor(tensor.name, handle, _info(tensor), kind, (MAIN,))
