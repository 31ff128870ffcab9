"""A program on a device of the pool: like `LocalSession`, in another process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from popir.errors import RunError
from popir.export import package

if TYPE_CHECKING:
    from engine import Device
    from popgate_sessions import Session
    from popir.dtypes import Array
    from popir.lowering.compile import Program


class DeviceRunner:
    """Runs the programs of a compiled Ir on `device`, which the caller attached.

    Raises InvalidModel if a graph cannot be loaded. Not thread-safe.
    """

    def __init__(self, compiled: Program, device: Device) -> None:
        from popef_io import TensorType
        from popgate_sessions import Session

        self._device = device
        self._folder = TemporaryDirectory(prefix="popxl-")
        try:
            path = Path(self._folder.name) / "program.popef"
            package(compiled, path)
            self._session = Session(path)
            self._session.bind_to_device(device)
        except BaseException:
            self._folder.cleanup()
            raise
        # No part of the session refers to this object, so dropping it releases
        # everything.
        self._streams = streams = _Streams()
        self._finish = weakref.finalize(self, _finish, self._session, self._folder)
        for anchor in compiled.metadata.anchors:
            is_input = anchor.type is TensorType.INPUT
            call = streams.reader if is_input else streams.writer
            self._session.set_callback_for_anchor(anchor.handle, call(anchor.handle))

    @property
    def pid(self) -> int | None:
        """Return the process id of the device process; None if there is none."""
        return self._device.pid

    def run(
        self,
        programs: Iterable[int],
        inputs: Mapping[str, Array] | None = None,
        outputs: Mapping[str, Array | Callable[[Array], object]] | None = None,
    ) -> None:
        """Run programs, as `LocalSession.run` does. Raises RunError if the device was
        lost, or an interrupt ended the session; only `close` is useful then.
        """
        from engine import Gone, SessionClosed

        self._streams.begin(inputs or {}, outputs or {})
        try:
            self._session.run_programs(list(programs))
        except (Gone, SessionClosed) as error:
            raise RunError(str(error)) from error
        finally:
            self._streams.begin({}, {})

    def close(self) -> None:
        """Leave the device. Idempotent."""
        self._finish()


def _finish(session: Session, folder: TemporaryDirectory[str]) -> None:
    session.close()
    folder.cleanup()


class _Streams:
    """The data of one run, by the handles of streams."""

    def __init__(self) -> None:
        self.begin({}, {})

    def begin(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Set the arrays of the next run."""
        self._inputs = inputs
        self._outputs = outputs
        self._counts: dict[str, int] = {}

    def reader(self, handle: str) -> Callable[[Array], None]:
        """Fill memory with the next data of an input stream."""

        def fill(memory: Array) -> None:
            array = self._inputs[handle]
            memory[...] = array[self._next(handle) % len(array)]

        return fill

    def writer(self, handle: str) -> Callable[[Array], None]:
        """Take the next data of an output stream."""

        def take(value: Array) -> None:
            target = self._outputs[handle]
            if callable(target):
                target(value)
            else:
                target[self._next(handle) % len(target)] = value

        return take

    def _next(self, handle: str) -> int:
        at = self._counts.get(handle, 0)
        self._counts[handle] = at + 1
        return at
