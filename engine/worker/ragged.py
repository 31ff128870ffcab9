"""A replica that runs rows of different length together, padded to the longest row.

Each batch begins with the oldest waiting request, in the order of the fair queue. The
requests of the nearest lengths join it, as long as the padded batch has little padding
and stays within the size at which a token is cheapest (engine/worker/token_budget.py).
So requests of a channel may run out of order.
Their slots are still released in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from engine.arrays import part_of
from engine.errors import EngineBug
from engine.model.batch_plan import BatchPlan
from engine.model.ragged import LENGTH_AXIS, RaggedPlan, padding_of
from engine.tensor import Array
from engine.transport.anchor_ring import lock_all
from engine.transport.channel import REQUEST, UNDELAYED, WANTS_ALL
from engine.worker.batch import AnchorTable, Batch, BatchEntry
from engine.worker.cancellation import cancelled_outcome
from engine.worker.client_channel import LONG_AGO, ClientChannel
from engine.worker.failure_isolation import isolate_failure
from engine.worker.replica import Dropped, Replica, ReplicaParts
from engine.worker.results import Results, Values, Waiter
from engine.worker.token_budget import GROWTH, TokenBudget

#: The most waiting requests of a channel that are considered for a batch.
WINDOW = 64
#: The length of a request whose inputs disagree. It runs alone, and fails alone.
NO_LENGTH = -1


class RaggedEntry(BatchEntry):
    """A request with the length of its rows.

    Requests with the same `shape` agree in everything except rows and length. `ended`
    is set if the request has run or was dropped, so its slots may be released.
    """

    __slots__ = ("ended", "length", "shape", "since", "slot", "wants_all")

    def __init__(
        self,
        client: ClientChannel,
        at: int,
        request: int,
        rows: int,
        submitted: int,
        slots: list[int],
    ) -> None:
        super().__init__(client, at, request, rows, submitted, slots)
        self.length = NO_LENGTH
        self.shape: tuple[object, ...] = ()
        self.slot = 0
        #: When its delay began. `LONG_AGO` if it must not be delayed.
        self.since = submitted
        self.ended = False
        #: Whether the request wants the optional outputs.
        self.wants_all = False


class Window:
    """Requests of one channel that were read and not yet released, oldest first.

    `waiting` has the requests that no run has taken yet.
    """

    def __init__(self) -> None:
        self.held: deque[RaggedEntry] = deque()
        self.waiting: list[RaggedEntry] = []

    def __repr__(self) -> str:
        return f"<Window of {len(self.held)} requests, {len(self.waiting)} waiting>"


class PaddedSize:
    """The size of a growing batch: its rows, the longest, and their tokens."""

    def __init__(self, max_rows: int, max_tokens: int, max_padding: float) -> None:
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._max_padding = max_padding
        self.rows = 0
        self.longest = 0
        self.tokens = 0

    def add(self, entry: RaggedEntry) -> bool:
        """Add a request if the batch stays within its limits. The first request always
        fits.
        """
        rows = self.rows + entry.rows
        longest = max(self.longest, entry.length)
        tokens = self.tokens + entry.rows * entry.length
        if self.rows:
            padded = rows * longest
            if rows > self._max_rows or padded > self._max_tokens:
                return False
            if padded - tokens > self._max_padding * padded:
                return False
        self.rows, self.longest, self.tokens = rows, longest, tokens
        return True

    @property
    def is_full(self) -> bool:
        """Return whether not even one row as long as the longest would fit."""
        most = min(self._max_rows, self._max_tokens // max(1, self.longest))
        return self.rows >= most

    def __repr__(self) -> str:
        return f"<PaddedSize {self.rows} rows of {self.longest}, {self.tokens} tokens>"


class RaggedBatch(Batch):
    """A `Batch` that pads rows to the longest."""

    def __init__(self, table: AnchorTable, plan: BatchPlan, ragged: RaggedPlan) -> None:
        super().__init__(table, plan)
        self._ragged = ragged
        self._padding = [
            None if pad is None else padding_of(anchor.tensor_info.data_type, pad)
            for anchor, pad in zip(table.inputs, ragged.pads, strict=True)
        ]
        #: Whether some row is shorter than another.
        self.is_padded = False
        #: Whether rows of outputs are cut to their own lengths.
        self.is_cut = False
        #: The outputs that no request of the batch wants.
        self._left_out: tuple[int, ...] = ragged.optional
        mine = [axes for i, axes in enumerate(ragged.cuts) if i not in self._left_out]
        self._always_cuts = any(mine)

    def begin(
        self, entries: Sequence[BatchEntry], skip: int = 0, runs: int = 0
    ) -> None:
        super().begin(entries, skip, runs)
        lengths = [e.length if isinstance(e, RaggedEntry) else 0 for e in entries]
        self.longest = max(0, *lengths)
        self.is_padded = min(lengths) < self.longest
        first = entries[0]  # the other requests want the same outputs
        wants_all = isinstance(first, RaggedEntry) and first.wants_all
        optional = self._ragged.optional
        self._left_out = () if wants_all else optional
        cuts = self._always_cuts or (wants_all and bool(optional))
        self.is_cut = self.is_padded and cuts

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        if self.is_cut or self._output_index.get(handle, -1) in self._left_out:
            return None  # the output is cut before it is written
        return super().output_memory(handle, shape, dtype)

    def write(self, handle: str, value: Array) -> None:
        index = self._output_index.get(handle, -1)
        if index in self._left_out and value.ndim > LENGTH_AXIS:
            value = part_of(value, LENGTH_AXIS, 0, 0)
        super().write(handle, value)

    def _gather(self, index: int) -> Array:
        padding = self._padding[index]
        if not self.is_padded or padding is None:
            return super()._gather(index)
        entries = self.entries
        first = self._one(index, entries[0])
        shape = (self.rows, self.longest, *first.shape[LENGTH_AXIS + 1 :])
        whole = np.full(shape, padding, self._dtypes[index])
        row = 0
        for entry in entries:
            part = self._one(index, entry)
            whole[row : row + entry.rows, : part.shape[LENGTH_AXIS]] = part
            row += entry.rows
        return whole


class RaggedResults(Results):
    """`Results` that cut the rows of a padded batch to their own lengths."""

    def __init__(
        self, table: AnchorTable, plan: BatchPlan, ragged: RaggedPlan, wait_room: Waiter
    ) -> None:
        super().__init__(table, plan, wait_room)
        self._cuts = ragged.cuts

    def publish(self, batch: Batch) -> bool:
        if isinstance(batch, RaggedBatch) and batch.is_cut:
            return False
        return super().publish(batch)

    def rows_of(self, entry: BatchEntry, values: Values, first: int) -> Values:
        mine = self.part(values, first, first + entry.rows)
        if isinstance(entry, RaggedEntry):
            for index, axes in enumerate(self._cuts):
                value = mine.get(index)
                if value is None:
                    continue
                for axis in axes:
                    if value.shape[axis] > entry.length:
                        value = part_of(value, axis, 0, entry.length)
                mine[index] = value
        return mine


class RaggedReplica(Replica):
    """A `Replica` for rows of different length."""

    def __init__(self, parts: ReplicaParts) -> None:
        super().__init__(parts)
        table, plan, policy = parts.table, parts.plan, parts.policy
        ragged = plan.ragged
        if ragged is None:
            raise EngineBug("a plan without lengths")
        self._ragged = ragged
        self._max_padding = ragged.max_padding
        most = ragged.max_tokens or GROWTH * policy.max_tokens
        self._budget = TokenBudget(policy.max_tokens, most)
        self._batch = RaggedBatch(table, plan, ragged)
        self.results = RaggedResults(table, plan, ragged, parts.wait_room)
        self._windows: dict[ClientChannel, Window] = {}

    def remove(self, client: ClientChannel) -> None:
        super().remove(client)
        self._windows.pop(client, None)

    def due_ns(self, now: int) -> int:
        if not self.may_wait or self._delay.is_vain:
            return now
        policy = self.policy
        size: PaddedSize | None = None
        oldest = now
        for client in self._queue.upcoming():
            for entry in self._window(client).waiting:
                if size is None:
                    size = self._size(self._budget.limit(entry.length))
                size.add(entry)
                oldest = min(oldest, entry.since)
        if size is not None and size.is_full:
            return now
        return oldest + policy.delay_ns

    def _size(self, max_tokens: int) -> PaddedSize:
        return PaddedSize(self.policy.max_rows, max_tokens, self._max_padding)

    # -- taking

    def step(self) -> list[ClientChannel]:
        """Take one batch of the waiting requests and run it. Return the clients to
        wake.
        """
        now = time.monotonic_ns()
        dropped: list[Dropped] = []
        entries = self._take(now, dropped)
        if self.may_wait and entries:
            self._delay.judge(entries, now, self._ended)
        touched: dict[ClientChannel, None] = {one.client: None for one in dropped}
        for entry in entries:
            touched[entry.client] = None
            if isinstance(entry, RaggedEntry):
                entry.client.channel.set_begun(entry.slot, 1)
        if entries:
            self._batch.begin(entries)
            longest, rows = self._batch.longest, self._batch.rows
            error = self._execute(now)
            if error is not None:
                again = partial(self._again, started=now)
                isolate_failure(entries, error, again, partial(self._fail, started=now))
            elif longest and rows:
                self._budget.record(longest, rows, self._took[-1])
            if self.shares.is_weighted:
                self._queue.charge(entries, time.monotonic_ns() - now)
        for one in dropped:
            one.client.completions.put(one.client.number, one.outcome, one.request)
        for client in touched:
            self._release(client)
        return list(touched)

    def _take(self, now: int, dropped: list[Dropped]) -> list[BatchEntry]:
        """Return the oldest request of the channel whose turn it is, and requests that
        fit with it.
        """
        order: Sequence[ClientChannel] = self._queue.channels
        if len(order) > 1:
            order = self._queue.next()
        size: PaddedSize | None = None
        taken: list[BatchEntry] = []
        leader: RaggedEntry | None = None
        for client in order:
            if not client.pending:
                continue
            window = self._window(client)
            self._drop(client, window, now, dropped)
            waiting = window.waiting
            if leader is None and waiting:
                leader = waiting[0]
            if leader is None or (leader.length == NO_LENGTH and taken):
                continue
            length = leader.length
            if size is None:
                size = self._size(self._budget.next_limit(length))
            # Sorting by distance puts the leader itself first.
            for entry in sorted(waiting, key=lambda e: abs(e.length - length)):
                if entry.shape == leader.shape and size.add(entry):
                    entry.ended = True
                    taken.append(entry)
                    if size.is_full or length == NO_LENGTH:
                        break
            window.waiting = [entry for entry in waiting if not entry.ended]
            client.pending -= len(waiting) - len(window.waiting)
            if size.is_full:
                break
        return taken

    def _window(self, client: ClientChannel) -> Window:
        """Return the considered requests of a channel, including new ones."""
        window = self._windows.get(client)
        if window is None:
            window = self._windows[client] = Window()
        while len(window.waiting) < min(WINDOW, client.pending):
            slot = client.channel.requests.try_read_lock()
            if slot < 0:
                client.pending = len(window.waiting)
                break
            at = client.channel.request_at(slot)
            request, rows, flags, _, submitted = REQUEST.unpack_from(
                client.channel.view, at
            )
            slots = lock_all(client.channel.inputs, request)
            entry = RaggedEntry(client, at, request, rows, submitted, slots)
            entry.slot = slot
            entry.wants_all = bool(flags & WANTS_ALL)
            if flags & UNDELAYED:
                entry.since = LONG_AGO
            self._measure(entry)
            window.held.append(entry)
            window.waiting.append(entry)
        return window

    def _measure(self, entry: RaggedEntry) -> None:
        """Determine the length of a request, and everything else in which it must agree
        with others.
        """
        length = 0
        shape: list[object] = [entry.wants_all]
        for ring, slot, pad in zip(
            entry.client.channel.inputs, entry.slots, self._ragged.pads, strict=True
        ):
            if slot < 0:
                shape.append(())
                continue
            dims = ring.dims(slot, ring.head(slot)[3])
            if pad is None:
                shape.append(dims[1:])
                continue
            mine = dims[LENGTH_AXIS] if len(dims) > LENGTH_AXIS else 0
            if not mine or length not in (0, mine):
                length = NO_LENGTH
            elif length == 0:
                length = mine
            shape.append(dims[LENGTH_AXIS + 1 :])
        # A request without a length has a unique shape, so it runs alone.
        entry.length = length or NO_LENGTH
        entry.shape = tuple(shape)
        if entry.length == NO_LENGTH:
            entry.shape = (entry.request, id(entry.client))

    def _drop(
        self, client: ClientChannel, window: Window, now: int, dropped: list[Dropped]
    ) -> None:
        """Drop requests that are cancelled or past their deadline."""
        before = len(dropped)
        for entry in window.waiting:
            outcome = cancelled_outcome(entry, now)
            if outcome is not None:
                entry.ended = True
                dropped.append(Dropped(client, entry.request, outcome))
        count = len(dropped) - before
        if count:
            window.waiting = [entry for entry in window.waiting if not entry.ended]
            client.pending -= count

    def _release(self, client: ClientChannel) -> None:
        """Release the slots of the oldest requests that have ended. Stop at the first
        that has not ended.
        """
        window = self._windows.get(client)
        if window is None:
            return  # the channel was closed meanwhile
        channel, held = client.channel, window.held
        requests, inputs = 0, [0] * len(channel.inputs)
        while held and held[0].ended:
            entry = held.popleft()
            requests += 1
            for index, slot in enumerate(entry.slots):
                inputs[index] += slot >= 0
        if requests:
            channel.requests.read_complete(requests)
            for ring, count in zip(channel.inputs, inputs, strict=True):
                if count:
                    ring.read_complete(count)
