"""Measurement of `popgate bench callbacks`, and parts that `queues` shares."""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine import Array, Device, DeviceManager, EngineError, InvalidInput
from popef_io import Model
from popgate_sessions import CallbackHandle, CallbackInfo, Session
from popgate_tools.latency import Measured
from popgate_tools.local import Interrupt
from popgate_tools.synthetic import synthetic_array

_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class CallbackCase:
    """`threads` sessions that run `rows` rows each (0: the model has no rows)."""

    rows: int
    threads: int


def rows_of(model: Model) -> int:
    """Return rows of the compiled batch; 0 if they are free."""
    sizes = {a.tensor_info.shape[0] for a in model.inputs if a.tensor_info.shape}
    return max(0, sizes.pop()) if len(sizes) == 1 else 0


def batch_name(model: Model) -> str:
    """Return a description of the rows that a run takes."""
    sizes = {a.tensor_info.shape[0] for a in model.inputs if a.tensor_info.shape}
    return "mixed" if len(sizes) > 1 else str(rows_of(model) or "free")


def synthetic_rows(model: Model, rows: int, seed: int) -> dict[str, Array]:
    """Return data for every input of the model, by stream handle."""
    random = np.random.default_rng(seed)
    data = {}
    for anchor in model.inputs:
        shape = anchor.tensor_info.shape
        if shape is None or any(size < 0 for size in shape[1:]):
            raise InvalidInput(
                f"input {anchor.name!r} is {anchor.tensor_info}: only the first "
                "dimension may be free"
            )
        if shape and (shape[0] < 0 or rows):
            shape = (rows or 1, *shape[1:])
        data[anchor.handle] = synthetic_array(
            random, anchor.tensor_info.data_type, shape
        )
    return data


# -- callbacks


def measure_callbacks(
    model: Model, case: CallbackCase, seconds: float, seed: int, interrupt: Interrupt
) -> Measured:
    """Run the main programs with callbacks for `seconds`."""
    own = rows_of(model)
    data = synthetic_rows(model, own or case.rows, seed)
    manager = DeviceManager(overcommit=True)
    latencies = [array("d") for _ in range(case.threads)]
    sessions: list[Session] = []
    calls = Counter()
    devices: list[Device] = []
    try:
        devices += manager.get_devices(case.threads, max(1, model.metadata.num_ipus))
        for device in devices:
            sessions.append(Session(model))
            connect(sessions[-1], data, calls.add)
            sessions[-1].bind_to_device(device)
            for _ in range(_WARM_UP):
                sessions[-1].run_main_programs()
        calls.take()
        began = time.perf_counter()
        end = began + seconds
        threads = [
            CheckedThread(partial(_run_until, end, session, taken, interrupt))
            for session, taken in zip(sessions, latencies, strict=True)
        ]
        join(threads)
        took = time.perf_counter() - began
    finally:
        for session in sessions:
            session.close()
        for device in devices:
            device.close()
    together = array("d")
    for taken in latencies:
        together.extend(taken)
    rows = (own or case.rows) * max(1, model.metadata.device_iterations)
    return Measured(took, together, rows, calls.take())


def connect(
    session: Session, data: Mapping[str, Array], note: Callable[[str], None]
) -> None:
    """Serve the inputs from `data` and drop the outputs; `note(handle)` at each."""

    def source(info: CallbackInfo) -> CallbackHandle | None:
        handle = info.anchor.handle
        array = data.get(handle)
        if array is None:
            return None
        in_place = info.anchor.tensor_info.is_static and array.dtype != object

        def read(memory: Array) -> Array:
            note(handle)
            if in_place:
                np.copyto(memory, array)
            # The result matters only if the data are not copied in place, because only
            # the host knows their size.
            return array

        return read

    def sink(info: CallbackInfo) -> CallbackHandle:
        handle = info.anchor.handle
        return lambda memory: note(handle)

    session.set_user_input_handler(source)
    session.set_user_output_handler(sink)


class Counter:
    """Counts for several threads."""

    def __init__(self) -> None:
        self._count = itertools.count()  # one C call, so no thread is overlooked
        self._before = 0

    def add(self, handle: str = "") -> None:
        next(self._count)

    def take(self) -> int:
        """Return the count since the last call."""
        now = next(self._count)
        count, self._before = now - self._before, now + 1
        return count


def _run_until(
    end: float, session: Session, latencies: array[float], interrupt: Interrupt
) -> None:
    clock = time.perf_counter
    while ((began := clock()) < end or not latencies) and not interrupt.asked:
        session.run_main_programs()
        latencies.append(clock() - began)


class CheckedThread:
    """A thread that keeps its exception."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.error: Exception | None = None
        self._work = work
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.error = error


def join(threads: list[CheckedThread]) -> None:
    """Wait for all, then raise the exception of the first failed one."""
    for thread in threads:
        thread.join()
    for thread in threads:
        if isinstance(thread.error, EngineError):
            raise thread.error
        if thread.error is not None:
            raise RuntimeError("a thread of the benchmark failed") from thread.error
