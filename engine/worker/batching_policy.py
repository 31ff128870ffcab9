"""The rules by which requests become a batch, and the delay that they may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.worker.batch import BatchEntry
from engine.worker.client_channel import LONG_AGO, ClientChannel

#: If this many delays in a row bring no second request, and no request comes during the
#: run of another, there is only one client. A delay then gathers nothing.
VAIN_DELAYS = 16


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """Rules for putting requests together.

    `max_rows` 0 means one request at a time. `delay_ns` is how long a free device waits
    for more rows. `same_shapes` requires that requests agree in all dimensions except
    the batch dimension. It is set if the model leaves other dimensions free.
    `conditional` means that the request decides what a run reads and writes.
    `preferred` are batch sizes in ascending order. A batch has the largest of these
    sizes that the waiting requests, in order, fill exactly, and starts without delay. A
    batch also starts if the next request would exceed the largest size. Otherwise,
    after the delay, all waiting requests run together.

    The following fields are for runs with a fixed number of rows
    (engine/worker/regrouping.py). An incomplete compiled batch waits `fill_batch_ns`
    for more rows. An incomplete run of complete batches waits `fill_run_ns`. Then the
    device asks the client for rows if `asks` is set, else zeros complete the run. With
    `drops_cancelled`, rows of cancelled requests leave an incomplete run. `look_ahead`
    is the number of further runs that are prepared with the next run (-1: all
    possible).

    If rows of different length run together (engine/worker/ragged.py), rows times the
    longest length are at most `max_tokens`.
    """

    max_rows: int = 0
    delay_ns: int = 0
    same_shapes: bool = False
    conditional: bool = False
    preferred: tuple[int, ...] = ()
    fill_batch_ns: int = 0
    fill_run_ns: int = 0
    asks: bool = False
    drops_cancelled: bool = False
    look_ahead: int = -1
    max_tokens: int = 0


class BatchDelay:
    """The delay of a free device that waits for more rows, and the batch sizes that end
    it. `dim` is the batch dimension.
    """

    def __init__(self, policy: BatchingPolicy, dim: int) -> None:
        self._policy = policy
        self._dim = dim
        self._vain = 0

    @property
    def is_vain(self) -> bool:
        """Return whether a delay would gather nothing."""
        return self._vain >= VAIN_DELAYS

    def due_ns(self, order: Sequence[ClientChannel], now: int) -> int:
        """Return when the next batch should start: see `Replica.due_ns`."""
        policy = self._policy
        rows, oldest, preferred = self._waiting(order, now)
        enough = policy.preferred[-1] if policy.preferred else policy.max_rows
        return now if preferred or rows >= enough else oldest + policy.delay_ns

    def _waiting(
        self, order: Sequence[ClientChannel], now: int
    ) -> tuple[int, int, int]:
        """Return the number of waiting rows, when the oldest was submitted, and how
        many rows the preferred sizes let run at once (0: all of them).

        A request whose shapes differ cannot join earlier requests, so it ends their
        batch. Their delay is then over, because waiting would not fill the batch.
        """
        sizes, alike = self._policy.preferred, self._policy.same_shapes
        rows, oldest, best = 0, now, 0
        first: tuple[object, ...] | None = None
        for client in order:
            for submitted, more, slots in client.peek(alike):
                if alike:
                    shape = client.shape_of(slots, self._dim)
                    if first is not None and shape != first:
                        return rows, oldest if best else LONG_AGO, best
                    first = shape
                if sizes and rows and not best and rows + more > sizes[-1]:
                    best = rows
                rows += more
                oldest = min(oldest, submitted)
                if rows in sizes:
                    best = rows
        return rows, oldest, best

    def room(self, order: Sequence[ClientChannel], now: int) -> int:
        """Return the most rows of the next batch, respecting preferred sizes."""
        policy = self._policy
        _, oldest, best = self._waiting(order, now)
        if best and not 0 < policy.delay_ns <= now - oldest:
            return best
        return policy.max_rows

    def judge(self, entries: Sequence[BatchEntry], now: int, ended: int) -> None:
        """Count the delays in a row that gathered nothing. The run before this batch
        ended at `ended`.

        A second request in the batch, or a request that came while another ran, shows
        that requests overlap. Then the next delay pays.
        """
        submitted = entries[0].submitted
        if len(entries) > 1 or submitted < ended:
            self._vain = 0
        elif now - submitted >= self._policy.delay_ns:
            self._vain += 1

    def __repr__(self) -> str:
        return f"<BatchDelay of {self._policy.delay_ns} ns, {self._vain} in vain>"
