"""The client's answer to a device whose run lacks rows: `flush_callback`.

The device says which input it waits for (`Outcome.NEEDS_ROWS`). What the callback gives
is sent as a request that fills up what waits; the device takes as many of its rows as
are missing, and drops it where nothing is missing any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np

from engine.config import FlushCallback
from engine.errors import EngineError
from engine.replica_channel import ReplicaChannel
from engine.request import Request
from engine.tensor import Array, Tensor

logger = logging.getLogger(__name__)


class Flusher:
    """Calls the user's callback and sends what it gives.

    `tensors` turns arrays into the tensors of a valid request, `units` counts them.
    """

    def __init__(
        self,
        callback: FlushCallback,
        tensors: Callable[[Mapping[str, Array]], Mapping[str, Tensor]],
        units: Callable[[Mapping[str, Tensor]], int],
    ) -> None:
        self._callback = callback
        self._tensors = tensors
        self._units = units

    def __call__(self, channel: ReplicaChannel, name: str) -> None:
        """A run of this channel's replica waits for the input `name`.

        In the thread that polls, without a lock. What goes wrong is logged: nobody
        waits for it, and the device will ask again.
        """
        inputs: dict[str, Array] = {}
        outputs: dict[str, Array] = {}
        try:
            self._callback(name, inputs, outputs)
            if inputs:
                tensors = self._tensors(inputs)
                units = self._units(tensors)
                channel.fill_up(units, tensors, lambda done: _deliver(done, outputs))
        except EngineError as error:
            logger.warning(
                "flush_callback for %r gave what cannot run: %s", name, error
            )
        except Exception:
            logger.exception("flush_callback for %r failed", name)

    def __repr__(self) -> str:
        return f"<Flusher {self._callback!r}>"


def _deliver(request: Request, outputs: Mapping[str, Array]) -> None:
    """Results of the rows that were taken, as far as they were asked for."""
    if request.error is not None:
        logger.warning("rows of flush_callback could not run: %s", request.error)
        return
    for name, target in outputs.items():
        tensor = request.outputs.get(name)
        if tensor is None:
            continue
        array = tensor.numpy()
        if array.ndim != target.ndim or array.dtype != target.dtype:
            logger.warning(
                "flush_callback: output %r is %s%s, its memory %s%s",
                name,
                array.dtype,
                list(array.shape),
                target.dtype,
                list(target.shape),
            )
            continue
        both = tuple(
            slice(0, min(a, b)) for a, b in zip(array.shape, target.shape, strict=True)
        )
        np.copyto(target[both], array[both])
