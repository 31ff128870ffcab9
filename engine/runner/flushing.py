"""The client's answer to a device whose run lacks rows: `flush_callback`.

The device names the input that it waits for (`DeviceOutcome.NEEDS_ROWS`). The client
calls the callback and sends its rows as a request. The device takes as many rows as are
missing, or drops the request if no rows are missing any more. A callback that fails or
returns unusable rows would do so again at each call. So the requests that wait for its
rows fail too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.config import FlushCallback
from engine.devices.request import Request
from engine.errors import (
    CallbackFailed,
    Closed,
    EngineError,
    Gone,
    InvalidInput,
    QueueFull,
)
from engine.tensor import Array, DataDesc, Tensor
from popef_io import DataType

if TYPE_CHECKING:
    from engine.runner.replica_channel import ReplicaChannel

logger = logging.getLogger(__name__)


class Flusher:
    """Calls the user's callback and sends the rows that it returns.

    `tensors` turns arrays into the tensors of a valid request. `units` counts the
    request's units. `outputs` are the outputs that a request delivers.
    """

    def __init__(
        self,
        callback: FlushCallback,
        tensors: Callable[[Mapping[str, Array]], Mapping[str, Tensor]],
        units: Callable[[Mapping[str, Tensor]], int],
        outputs: Sequence[DataDesc],
    ) -> None:
        self._callback = callback
        self._tensors = tensors
        self._units = units
        self._outputs = {desc.name: desc for desc in outputs}

    def __call__(
        self, channel: ReplicaChannel, name: str, waiting: list[Request]
    ) -> None:
        """Ask the callback for rows of the input `name`, because a run of this
        channel's replica waits for them. End the requests `waiting` if it fails.

        For the thread that polls, without a lock. KeyboardInterrupt passes through, and
        the device then asks again. SystemExit passes through and also ends the waiting
        requests.
        """
        try:
            failure = self._ask(channel, name)
        except SystemExit as error:  # the callback may not be called again
            what = f"flush_callback (called for rows of {name!r}) raised SystemExit"
            channel.flight.give_up(waiting, CallbackFailed(f"{what}: {error}"))
            raise
        if failure is not None:
            channel.flight.give_up(waiting, failure)

    def _ask(self, channel: ReplicaChannel, name: str) -> CallbackFailed | None:
        """Call the callback and send its rows. Return an error if the waiting requests
        must fail.
        """
        inputs: dict[str, Array] = {}
        outputs: dict[str, Array] = {}
        which = f"flush_callback (called for rows of {name!r})"
        try:
            returned: Any = self._callback(name, inputs, outputs)
        except Exception as error:
            # Log the traceback here, because a stored error must not keep its frames.
            logger.exception("%s failed", which)
            failure = CallbackFailed(f"{which} raised {type(error).__name__}: {error}")
            failure.__cause__ = error.with_traceback(None)
            return failure
        try:
            if returned is not None:
                raise InvalidInput(
                    f"expected None, got {type(returned).__name__}; it must fill the "
                    "two mappings that it receives"
                )
            self._check_outputs(outputs)
            if inputs:
                _check_arrays("input", inputs)
                tensors = self._tensors(inputs)
                units = self._units(tensors)
                channel.fill_up(units, tensors, lambda done: _deliver(done, outputs))
        except (QueueFull, Closed, Gone) as error:
            logger.warning("cannot send the rows of flush_callback: %s", error)
        except EngineError as error:
            return CallbackFailed(f"{which} returned rows that cannot run: {error}")
        except Exception as error:
            logger.exception("%s returned rows that cannot be sent", which)
            what = f"{type(error).__name__}: {error}"
            return CallbackFailed(f"{which} returned rows that cannot be sent: {what}")
        return None

    def _check_outputs(self, outputs: Mapping[str, Array]) -> None:
        _check_arrays("output", outputs)
        for name, target in outputs.items():
            desc = self._outputs.get(name)
            if desc is None:
                raise InvalidInput(
                    f"the model has no output {name!r}; it has {list(self._outputs)}"
                )
            dtype, shape = desc.data_type.numpy_dtype, desc.shape
            fits = shape is None or target.ndim == len(shape)
            if desc.data_type is not DataType.STRING:
                fits = fits and target.dtype == dtype
            if not fits or not target.flags.writeable:
                how = "" if target.flags.writeable else "read-only "
                raise InvalidInput(
                    f"the memory for output {name!r} must be writable "
                    f"{dtype}{list(shape or ())}, got "
                    f"{how}{target.dtype}{list(target.shape)}"
                )

    def __repr__(self) -> str:
        return f"<Flusher {self._callback!r}>"


def _check_arrays(kind: str, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if not isinstance(value, np.ndarray):
            found = type(value).__name__
            raise InvalidInput(f"{kind} {name!r} must be a numpy array, got {found}")


def _deliver(request: Request, outputs: Mapping[str, Array]) -> None:
    """Deliver the results of the callback's rows that a run took, if the caller wants
    them and they fit.
    """
    if request.error is not None:
        logger.warning("cannot run the rows of flush_callback: %s", request.error)
        return
    for name, target in outputs.items():
        tensor = request.outputs.get(name)
        if tensor is None:
            continue
        array = tensor.numpy()
        if array.ndim == target.ndim:
            sizes = map(min, array.shape, target.shape)
            both = tuple(slice(0, size) for size in sizes)
            np.copyto(target[both], array[both])
