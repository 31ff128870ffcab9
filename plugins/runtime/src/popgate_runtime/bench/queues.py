"""Measurement of `popgate bench queues`: requests through the queues of a session."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine import Array, InvalidInput, QueueClosed, QueueFull
from popef_io import Anchor, DataType, Model, TensorInfo
from popgate_runtime.bench.callbacks import CheckedThread, connect, join, synthetic_rows
from popgate_sessions import (
    AnchorCallbackPolicy,
    LaunchPolicy,
    QueueManager,
    Session,
    SessionConfig,
)
from popgate_tools.latency import Measured
from popgate_tools.local import Interrupt

#: Time without data after which a run flushes, so that a partial batch does not block.
_FLUSH_NS = 200_000_000
#: Timeout in seconds for the last requests, once no more are sent.
_LAST = 60.0
_POLL = 0.05


@dataclass(frozen=True, slots=True)
class QueueCase:
    """Requests of `rows` rows from `threads` threads; queues take `multiplier`
    compiled batches.

    If inputs and outputs differ in the rows of a run, `rows` is a number of runs.
    """

    rows: int
    multiplier: int
    threads: int


def measure_queues(
    model: Model, case: QueueCase, seconds: float, seed: int, interrupt: Interrupt
) -> Measured:
    """Send requests through queues for `seconds`."""
    config = SessionConfig(policy=LaunchPolicy.IMMEDIATE)
    one_run = synthetic_rows(model, 0, seed)
    with Session(model, config) as session:
        used = _used(session, one_run)
        infos = [
            _checked(anchor)
            for anchor in (*model.inputs, *model.outputs)
            if anchor.handle in used
        ]
        rows_of_a_run = {(info.shape or (0,))[0] for info in infos}
        whole_runs = len(rows_of_a_run) > 1 or 0 in rows_of_a_run

        def chosen(anchor: Anchor) -> AnchorCallbackPolicy:
            if anchor.handle in used:
                return AnchorCallbackPolicy.BIND_USER_CB
            return AnchorCallbackPolicy.BIND_EMPTY_CB

        if whole_runs:
            rows = {h: _repeated(array, case.rows) for h, array in one_run.items()}
        else:
            rows = synthetic_rows(model, case.rows, seed)
        traffic = Traffic(rows, case, whole_runs)
        manager = session.create_queue_manager(
            lambda anchor: case.multiplier, traffic.timed_out, _FLUSH_NS, chosen, chosen
        )
        return traffic.measure(session, manager, seconds, interrupt)


def _used(session: Session, data: Mapping[str, Array]) -> Collection[str]:
    """Return the handles that the main programs read and write on this data.

    If several models are fused into one, the data choose the model.
    """
    used: set[str] = set()
    connect(session, data, used.add)
    session.run_load_programs()
    used.clear()
    session.run_main_programs()
    return used


def _repeated(array: Array, times: int) -> Array:
    return np.concatenate([np.atleast_1d(array)] * times)


def _checked(anchor: Anchor) -> TensorInfo:
    info = anchor.tensor_info
    if info.data_type is DataType.STRING or info.shape is None:
        raise InvalidInput(
            f"{anchor.name!r} is {info}, which has no rows to queue; use popgate "
            "bench callbacks"
        )
    return info


class Traffic:
    """Threads that enqueue, one that runs programs, and the latencies of the
    requests.
    """

    def __init__(
        self, data: Mapping[str, Array], case: QueueCase, whole_runs: bool
    ) -> None:
        self._data = data
        self._case = case
        self._whole_runs = whole_runs
        self._mutex = threading.Lock()
        self._stopping = threading.Event()
        self._latencies = array("d")
        self._manager: QueueManager | None = None

    def timed_out(self, ring: object) -> None:
        """Complete the batch of a run that waits for data, unless another thread does
        so.
        """
        if self._whole_runs or self._manager is None:
            # No run is partial. Zeros could choose another of several fused models, and
            # those of this one would then stand before the next request.
            return
        if self._mutex.acquire(blocking=False):
            try:
                # A full queue has the data that the run waits for, or no run empties
                # it.
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
        """Measure until `seconds` have passed or Control-C is pressed."""
        self._manager = manager
        running = CheckedThread(partial(self._run, session))
        users = [CheckedThread(self._use) for _ in range(self._case.threads)]
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
            shape = info.shape or (1,)
            each = max(1, shape[0]) if self._whole_runs else 1
            shape = (rows * each, *shape[1:])
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
