"""`PythonModel`: a Python model for `ModelRunner`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from engine.devices.device import Device
from engine.transport.device_messages import PythonTold
from popef_io import Model


class ModelCode(Protocol):
    """The code of a Python model, and its settings."""

    def to_message(self, device: Device) -> PythonTold:
        """Return the message for the device process that loads the model. Raises
        InvalidConfig if the device runs no Python models.
        """

    def calling(self) -> AbstractContextManager[list[int]]:
        """Hold the descriptors to send with the load message: the model's end of the
        socket for its calls, if it may call other models.
        """


@dataclass(frozen=True, slots=True)
class PythonModel:
    """A Python model for `ModelRunner`. `read_python_model` makes it.

    `interface` describes the tensors as for any model, and has the content of the file.
    """

    code: ModelCode
    interface: Model
