"""What `popgate bench` measures: sessions with callbacks, and sessions with queues."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from app.cli.latency import Measured
from app.cli.local import Interrupt
from app.cli.run_data import made_up_array
from engine import (
    AnchorCallbackPolicy,
    CallbackHandle,
    CallbackInfo,
    DeviceManager,
    EngineError,
    InvalidInput,
    LaunchPolicy,
    QueueClosed,
    QueueFull,
    QueueManager,
    Session,
    SessionConfig,
    used_by_main,
)
from popef_io import Anchor, DataType, Model

Array: TypeAlias = npt.NDArray[Any]

#: After so long without data a run flushes: nothing hangs because of a half batch.
_FLUSH_NS = 200_000_000
#: Seconds that the last requests may take, once no more are sent.
_LAST = 60.0
_POLL = 0.05
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class CallbackCase:
    """`threads` sessions that run `rows` rows each (0: the model knows no rows)."""

    rows: int
    threads: int


@dataclass(frozen=True, slots=True)
class QueueCase:
    """Requests of `rows` rows from `threads` threads; queues take `multiplier`
    compiled batches."""

    rows: int
    multiplier: int
    threads: int


def rows_of(model: Model) -> int:
    """Rows of the compiled batch; 0 where they are free."""
    sizes = {a.tensor_info.shape[0] for a in model.inputs if a.tensor_info.shape}
    return max(0, sizes.pop()) if len(sizes) == 1 else 0


def made_up(model: Model, rows: int, seed: int) -> dict[str, Array]:
    """Data for every input of the model, by stream handle."""
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
        data[anchor.handle] = made_up_array(random, anchor.tensor_info.data_type, shape)
    return data


# -- callbacks


def measure_callbacks(
    model: Model, case: CallbackCase, seconds: float, seed: int, interrupt: Interrupt
) -> Measured:
    """Run the main programs over callbacks for `seconds`."""
    own = rows_of(model)
    data = made_up(model, own or case.rows, seed)
    manager = DeviceManager()
    latencies = [array("d") for _ in range(case.threads)]
    sessions: list[Session] = []
    calls = Counter()
    devices = []
    try:
        for _ in range(case.threads):
            devices.append(manager.get_device(max(1, model.metadata.num_ipus)))
            sessions.append(_connected(model, data, calls))
            sessions[-1].bind_to_device(devices[-1])
            for _ in range(_WARM_UP):
                sessions[-1].run_main_programs()
        calls.take()
        began = time.perf_counter()
        end = began + seconds
        workers = [
            Worker(partial(_run_until, end, session, taken, interrupt))
            for session, taken in zip(sessions, latencies, strict=True)
        ]
        join(workers)
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


def _connected(model: Model, data: Mapping[str, Array], calls: Counter) -> Session:
    session = Session(model)

    def source(info: CallbackInfo) -> CallbackHandle | None:
        array = data.get(info.anchor.handle)
        if array is None:
            return None
        in_place = info.anchor.tensor_info.is_static and array.dtype != object

        def read(memory: Array) -> Array:
            calls.add()
            if in_place:
                np.copyto(memory, array)
            return array  # of a size that only the host knows, where not in place

        return read

    def sink(info: CallbackInfo) -> CallbackHandle:
        return lambda memory: calls.add()

    session.set_user_input_handler(source)
    session.set_user_output_handler(sink)
    return session


class Counter:
    """Counts for several threads."""

    def __init__(self) -> None:
        self._count = itertools.count()  # one C call, so no thread is overlooked
        self._before = 0

    def add(self) -> None:
        next(self._count)

    def take(self) -> int:
        """How many there were since the last time."""
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


# -- queues


def measure_queues(
    model: Model, case: QueueCase, seconds: float, seed: int, interrupt: Interrupt
) -> Measured:
    """Send requests through queues for `seconds`."""
    config = SessionConfig(policy=LaunchPolicy.IMMEDIATE)
    for anchor in model.outputs:
        _check_rows(anchor)
    data = made_up(model, case.rows, seed)
    with Session(model, config) as session:
        main = used_by_main(
            model.metadata.program_flow,
            AnchorCallbackPolicy.BIND_USER_CB,
            AnchorCallbackPolicy.BIND_EMPTY_CB,
        )
        traffic = Traffic(data, case)
        manager = session.create_queue_manager(
            lambda anchor: case.multiplier, traffic.timed_out, _FLUSH_NS, main, main
        )
        return traffic.measure(session, manager, seconds, interrupt)


def _check_rows(anchor: Anchor) -> None:
    info = anchor.tensor_info
    if info.data_type is DataType.STRING or info.shape is None or not info.shape:
        raise InvalidInput(f"output {anchor.name!r} is {info}: it has no rows to queue")


class Traffic:
    """Threads that enqueue, one that runs, and the latencies of the requests."""

    def __init__(self, data: Mapping[str, Array], case: QueueCase) -> None:
        self._data = data
        self._case = case
        self._mutex = threading.Lock()
        self._stopping = threading.Event()
        self._latencies = array("d")
        self._manager: QueueManager | None = None

    def timed_out(self, ring: object) -> None:
        """A run waits for data: complete the batch, if nobody is about to."""
        if self._manager is not None and self._mutex.acquire(blocking=False):
            try:
                # A full queue has what the run waits for, or nobody empties it.
                with contextlib.suppress(QueueFull):
                    self._manager.flush_all()
            finally:
                self._mutex.release()

    def measure(
        self,
        session: Session,
        manager: QueueManager,
        seconds: float,
        interrupt: Interrupt,
    ) -> Measured:
        """Until `seconds` have passed or Control-C was pressed."""
        self._manager = manager
        running = Worker(partial(self._run, session))
        users = [Worker(self._use) for _ in range(self._case.threads)]
        began = time.perf_counter()
        end, last = began + seconds, began + seconds + _LAST
        # At least one request, however slow the model is.
        while (now := time.perf_counter()) < end or not self._latencies:
            if interrupt.asked or now > last:
                break
            if running.error is not None or any(u.error is not None for u in users):
                break
            time.sleep(min(_POLL, seconds))
        taken = self._latencies[:]
        took = time.perf_counter() - began
        self._stopping.set()
        try:
            join(users)
        finally:
            manager.disconnect_all()
            join([running])
        return Measured(took, taken, self._case.rows)

    def _run(self, session: Session) -> None:
        try:
            while session.run_main_programs():
                pass
        finally:
            self._stopping.set()

    def _use(self) -> None:
        """Keep as many requests in flight as the queues have room for."""
        manager = self._manager
        assert manager is not None
        room = min(q.num_buffers for q in manager.inputs.values())
        window = -(-room // self._case.threads)
        free = threading.Semaphore(window)
        spare = [self._outputs(manager) for _ in range(window)]
        while not self._stopping.is_set():
            if free.acquire(timeout=_POLL):
                outputs = spare.pop()
                try:
                    self._enqueue(manager, outputs, spare, free)
                except QueueClosed:
                    return
        for _ in range(window):
            if not free.acquire(timeout=_LAST):
                raise InvalidInput("the last requests did not come back")

    def _outputs(self, manager: QueueManager) -> dict[str, Array]:
        rows = self._case.rows
        made = {}
        for name, queue in manager.outputs.items():
            info = queue.tensor_info
            shape = (rows, *(info.shape or ())[1:])
            made[name] = np.empty(shape, info.data_type.numpy_dtype)
        return made

    def _enqueue(
        self,
        manager: QueueManager,
        outputs: dict[str, Array],
        spare: list[dict[str, Array]],
        free: threading.Semaphore,
    ) -> None:
        missing = len(outputs)
        began = time.perf_counter()

        def written() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._latencies.append(time.perf_counter() - began)
                spare.append(outputs)
                free.release()

        with self._mutex:
            for name, memory in outputs.items():
                manager.outputs[name].enqueue(memory.reshape(-1).data, written)
            for queue in manager.inputs.values():
                rows = self._data[queue.anchor.handle]
                queue.enqueue(rows.reshape(-1).view(np.uint8).data)


class Worker:
    """A thread that keeps what it raised."""

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


def join(workers: list[Worker]) -> None:
    """Wait for all, then raise what the first of them raised."""
    for worker in workers:
        worker.join()
    for worker in workers:
        if isinstance(worker.error, EngineError):
            raise worker.error
        if worker.error is not None:
            raise RuntimeError("a thread of the benchmark failed") from worker.error
