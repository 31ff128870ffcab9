"""A replica in a device process: one loaded model and its waiting requests.

Batching happens here, because all waiting requests are visible here. Requests of all
clients are taken fairly (engine/worker/fair_queue.py), as whole requests, up to
`max_rows` rows. One thread at a time calls the methods, as a rule the one that
schedules (engine/worker/large_runs.py).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from engine.config import NEVER_NS
from engine.errors import Cancelled, ExecutionFailed
from engine.model.batch_plan import BatchPlan
from engine.programs.executor import Executor
from engine.transport.anchor_ring import lock_all, unlock_all
from engine.transport.channel import CANCELLED, REQUEST, REQUEST_SLOT
from engine.transport.outcome import DeviceOutcome, outcome_of
from engine.worker.batch import AnchorTable, Batch, BatchEntry, RunningBatch
from engine.worker.batching_policy import BatchDelay, BatchingPolicy
from engine.worker.cancellation import cancelled_outcome
from engine.worker.client_channel import ClientChannel
from engine.worker.failure_isolation import isolate_failure
from engine.worker.fair_queue import DeviceShares, FairQueue
from engine.worker.results import Results, Waiter, answer

logger = logging.getLogger(__name__)

#: A timeout below this is too short for waiting.
WORTH_SAYING_NS = 1_000_000
#: The quickest of this many last batches is taken as the least time of the next one.
JUDGED_BY = 3


@dataclass(frozen=True, slots=True)
class Dropped:
    """A request that was taken out of the queue without running."""

    client: ClientChannel
    request: int
    outcome: DeviceOutcome


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """The parts of a replica. `main` are the indices of its main programs."""

    number: int
    name: str
    executor: Executor
    main: tuple[int, ...]
    table: AnchorTable
    plan: BatchPlan
    policy: BatchingPolicy
    wait_room: Waiter


class Replica:
    """A model on this device: its executor, its channels and its batches."""

    def __init__(self, parts: ReplicaParts) -> None:
        self.number, self.name = parts.number, parts.name
        self.executor = parts.executor
        table, plan, policy = parts.table, parts.plan, parts.policy
        self.policy = policy
        #: Whether a batch may have to wait. `due_ns` returns how long.
        self.may_wait = bool(policy.delay_ns and policy.max_rows)
        self.batches = 0
        #: The run in progress. Another thread reads it (engine/worker/cancellation.py).
        self.running: RunningBatch | None = None
        self._main = parts.main
        self._plan = plan
        wait_note = _wait_note(policy.fill_run_ns)
        self._batch = Batch(table, plan, wait_note, conditional=policy.conditional)
        self.results = Results(table, plan, parts.wait_room)
        self._queue = FairQueue()
        self.shares = self._queue.shares
        self._shape: tuple[object, ...] | None = None
        #: The times of the last batches in nanoseconds.
        self._took = deque([0] * JUDGED_BY, JUDGED_BY)
        self._members = 0  # requests in the last batch
        self._delay = BatchDelay(policy, plan.dim)
        self._ended = 0

    # -- channels

    @property
    def channels(self) -> list[ClientChannel]:
        return self._queue.channels

    def add(self, client: ClientChannel) -> None:
        self._queue.add(client)

    def remove(self, client: ClientChannel) -> None:
        self._queue.remove(client)

    def use(self, shares: DeviceShares) -> None:
        """Use the shares of a device. Call it before any channel exists."""
        self.shares = self._queue.shares = shares

    @property
    def used(self) -> float:
        """Return the used share of the replica's next request."""
        return self._queue.used

    @property
    def pending(self) -> bool:
        for client in self._queue.channels:  # noqa: SIM110 - runs after every batch
            if client.pending:
                return True
        return False

    def due_ns(self, now: int) -> int:
        """Return when the next batch should start; immediately if not after `now`."""
        if not self.may_wait or self._delay.is_vain:
            return now
        return self._delay.due_ns(self._queue.upcoming(), now)

    # -- running

    def step(self) -> list[ClientChannel]:
        """Run one batch of the waiting requests. Return the clients to wake."""
        now = time.monotonic_ns()
        dropped: list[Dropped] = []
        entries = self._take(now, dropped)
        if self.may_wait and entries:
            self._delay.judge(entries, now, self._ended)
        taken: dict[ClientChannel, int] = {}
        for one in dropped:
            taken[one.client] = taken.get(one.client, 0) + 1
        for entry in entries:
            taken[entry.client] = taken.get(entry.client, 0) + 1
        for client in taken:
            client.channel.requests.mark_in_use()
        # Slots are released last, because the client may then reuse their memory, and
        # the batch has views of it until it has ended.
        if entries:
            self._batch.begin(entries)
            error = self._execute(now)
            if error is not None:
                again = partial(self._again, started=now)
                isolate_failure(entries, error, again, partial(self._fail, started=now))
            if self.shares.is_weighted:
                self._queue.charge(entries, time.monotonic_ns() - now)
        for one in dropped:
            # After the batch, because results are taken in the order of requests.
            one.client.completions.put(one.client.number, one.outcome, one.request)
        for client, count in taken.items():
            client.channel.requests.read_complete(count)
            for ring in client.channel.inputs:
                ring.complete_held()
        return list(taken)

    def _take(self, now: int, dropped: list[Dropped]) -> list[BatchEntry]:
        """Take whole requests of all channels in turn, up to `max_rows` rows."""
        entries: list[BatchEntry] = []
        order: Sequence[ClientChannel] = self._queue.channels
        if len(order) > 1:
            order = self._queue.next()
        policy = self.policy
        room = self._delay.room(order, now) if policy.preferred else policy.max_rows
        self._shape = None
        for client in order:
            reachable = now
            if client.pending > 1:
                reachable = self._reachable_from(client, now)
            while client.pending:
                slot = client.channel.requests.try_read_lock()
                if slot < 0:
                    client.pending = 0
                    break
                at = client.channel.requests_at + slot * REQUEST_SLOT
                request, rows, flags, deadline, submitted = REQUEST.unpack_from(
                    client.channel.view, at
                )
                late = 0 < deadline < (reachable if client.pending > 1 else now)
                if late or flags & CANCELLED:
                    lock_all(client.channel.inputs, request)
                    outcome = DeviceOutcome.EXPIRED if late else DeviceOutcome.CANCELLED
                    dropped.append(Dropped(client, request, outcome))
                    client.pending -= 1
                    continue
                if entries and (not policy.max_rows or rows > room):
                    client.channel.requests.unlock_last()
                    return entries
                slots = lock_all(client.channel.inputs, request)
                if policy.same_shapes and not self._fits(client, slots, bool(entries)):
                    client.channel.requests.unlock_last()
                    unlock_all(client.channel.inputs, slots)
                    return entries
                entries.append(BatchEntry(client, at, request, rows, submitted, slots))
                client.pending -= 1
                room -= rows
                if room <= 0:
                    return entries
        return entries

    def _reachable_from(self, client: ClientChannel, now: int) -> int:
        """Return the time before which deadlines are unreachable, estimated from the
        last few batches.

        Requests with such deadlines are dropped if others wait behind them. Otherwise,
        when a machine gets slower, each request in the queue could run slightly too
        late, and no client would be served.
        """
        policy = self.policy
        if client.pending < max(2, self._members):
            return now
        if policy.same_shapes or policy.conditional:
            return now  # different runs may take different times
        return now + min(self._took)

    def _fits(self, client: ClientChannel, slots: list[int], others: bool) -> bool:
        """Return whether the shapes of a request equal those of the `others` in its
        batch.
        """
        key = client.shape_of(slots, self._plan.dim)
        if others and key != self._shape:
            return False
        self._shape = key
        return True

    def _execute(self, started: int) -> Exception | None:
        """Run the batch that was begun, and publish it. Return its error, if any."""
        batch = self._batch
        entries = batch.entries
        # Options are fresh, and `running` is set before the run and cleared after it.
        # So the thread that cancels runs can never end the next run by mistake.
        options = self.executor.new_options()
        running = self.running = RunningBatch(options, entries)
        try:
            for number in range(batch.runs):
                if number:
                    batch.next_run()
                self.executor.run(self._main, batch, options)
            compute = time.monotonic_ns() - started
            self._ended = started + compute
            # Ending the run is useless from here on, because results are published as a
            # whole.
            self.running = None
            self._publish(batch, started, compute)
        except Exception as error:
            self.running = None
            rows = batch.rows
            batch.clear()
            if not isinstance(error, Cancelled):
                return error
            if running.failure:  # the whole run failed, so no half of it runs again
                for entry in entries:
                    self._fail(entry, ExecutionFailed(running.failure), started)
            else:
                self._cancel(entries, started, rows)
            return None
        batch.clear()
        self._took.append(compute)
        self._members = len(entries)
        self.batches += 1
        return None

    def _cancel(self, entries: Sequence[BatchEntry], started: int, rows: int) -> None:
        """End the members of a batch that was terminated because all were cancelled."""
        now = time.monotonic_ns()
        # The complete run would have taken longer than this.
        took = now - started
        self._took.append(max(took, self._took[-1]))
        self._members = len(entries)
        for entry in entries:
            outcome = cancelled_outcome(entry, now) or DeviceOutcome.CANCELLED
            answer(entry, outcome, started, took, rows or len(entries))

    def _publish(self, batch: Batch, started: int, compute: int) -> None:
        """Hand over results, and tell the clients."""
        rows = batch.rows or len(batch.entries)
        if not self.results.publish(batch):
            self._publish_each(batch, started, compute, rows)
            return
        for entry in batch.entries:
            client = entry.client
            waited = max(0, started - entry.submitted)
            client.completions.put(
                client.number,
                DeviceOutcome.DONE,
                entry.request,
                waited,
                compute,
                rows,
                batch.longest,
            )

    def _publish_each(
        self, batch: Batch, started: int, compute: int, rows: int
    ) -> None:
        told = 0
        try:
            for entry in self.results.publish_each(batch):
                answer(entry, DeviceOutcome.DONE, started, compute, rows, batch.longest)
                told += 1
        except Exception as error:
            if not told:
                raise
            # Requests that have ended cannot run again. The others have run too, and
            # are not to blame if a client does not take its results.
            for entry in batch.entries[told:]:
                self._fail(entry, error, started)

    def _again(self, entries: Sequence[BatchEntry], started: int) -> Exception | None:
        """Run again the members of a failed batch that clients still want.

        The others end after them, because results are taken in the order of requests.
        """
        now = time.monotonic_ns()
        outcomes = [cancelled_outcome(entry, now) for entry in entries]
        pairs = list(zip(entries, outcomes, strict=True))
        wanted = [entry for entry, outcome in pairs if outcome is None]
        error = None
        if wanted:
            self._batch.begin(wanted)
            error = self._execute(started)
        if error is None:
            for entry, outcome in pairs:
                if outcome is not None:
                    answer(entry, outcome, started)
        return error

    def _fail(self, entry: BatchEntry, error: Exception, started: int) -> None:
        outcome, text = outcome_of(error)
        logger.debug("%r: request %d failed: %s", self, entry.request, text)
        answer(entry, outcome, started, text=text)

    def close(self) -> None:
        self.executor.close()

    def replace_executor(self, executor: Executor) -> None:
        """Run on another executor from now on."""
        self.executor = executor

    def __repr__(self) -> str:
        waiting = sum(client.pending for client in self.channels)
        return (
            f"<Replica {self.number} {self.name!r}, {len(self.channels)} channels, "
            f"{waiting} waiting, {self.batches} batches>"
        )


def _wait_note(wait_ns: int) -> str:
    """Return the note in an error about an input that never comes (the guide's
    timeout).
    """
    if wait_ns < WORTH_SAYING_NS:
        return ""
    if wait_ns >= NEVER_NS:
        return "; no other request can supply it, so the run would wait for ever"
    return (
        "; no other request can supply it, so the run would wait for its timeout of "
        f"{wait_ns / 1e9:g} s"
    )
