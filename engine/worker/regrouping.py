"""A replica whose runs take a fixed number of units, independent of the sizes of
requests.

The requests form a queue of units. Each run takes the next units, from as many requests
as it needs. A larger request continues in the next run. Units that do not fill a run
wait for others, at most as long as the policy allows. Then zeros complete the run, or
rows of the client (`flush_callback`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

import numpy as np

from engine.tensor import Array
from engine.transport.anchor_ring import lock_all, unlock_all
from engine.transport.channel import FILLS_UP, LEAVES, REQUEST, UNDELAYED
from engine.transport.outcome import DeviceOutcome
from engine.worker.batch import Batch, BatchEntry
from engine.worker.cancellation import cancelled_outcome
from engine.worker.client_channel import ClientChannel
from engine.worker.failure_isolation import isolate_failure
from engine.worker.replica import Replica, ReplicaParts
from engine.worker.results import answer

logger = logging.getLogger(__name__)

#: The scheduler checks again after this many nanoseconds if nothing is due earlier.
LONGEST_SLEEP_NS = 60 * 10**9


class OpenEntry(BatchEntry):
    """A request whose first `ran` units have run. `parts` are the results of those
    units.

    A dropped request has an `outcome`. It is reported to the client when all earlier
    requests have ended, because results are taken in the order of requests.
    """

    __slots__ = ("ended", "outcome", "parts", "ran", "waits")

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
        self.ran = 0
        self.ended = False
        self.waits = True
        self.parts: dict[int, list[Array]] = {}
        self.outcome: DeviceOutcome | None = None

    def mark_answered(self) -> None:
        self.ended = True
        self.parts = {}


class RegroupingReplica(Replica):
    """A `Replica` for runs of more than one unit."""

    def __init__(self, parts: ReplicaParts) -> None:
        super().__init__(parts)
        self.may_wait = True
        self._names = [anchor.name for anchor in parts.table.inputs]
        self._each = parts.plan.run_units
        ahead = parts.policy.look_ahead
        self._most_runs = ahead + 1 if ahead >= 0 else 1 << 30
        self._open: deque[OpenEntry] = deque()
        #: The requests by channel, in the order in which their slots must be released.
        self._held: dict[ClientChannel, deque[OpenEntry]] = {}
        self._asked_at = 0

    def remove(self, client: ClientChannel) -> None:
        super().remove(client)
        self._held.pop(client, None)
        self._open = deque(e for e in self._open if e.client is not client)

    @property
    def pending(self) -> bool:
        return bool(self._open) or super().pending

    @property
    def _units(self) -> int:
        """Return the number of units that wait to run."""
        return sum(entry.rows - entry.ran for entry in self._open)

    def due_ns(self, now: int) -> int:
        if super().pending or not self._open:
            return now
        units = self._units
        if units >= self._each:
            return now
        return min(self._deadline(units), now + LONGEST_SLEEP_NS)

    def _deadline(self, units: int) -> int:
        """Return when the units that do not fill a run have waited long enough."""
        rest = units % self._each
        if not rest:
            return 1 << 63
        policy, left = self.policy, units - rest
        for entry in self._open:
            left -= entry.rows - entry.ran
            if left < 0:
                break
        if not entry.waits:
            return 0
        fills_batches = rest % self._plan.batch_units == 0
        wait = policy.fill_run_ns if fills_batches else policy.fill_batch_ns
        return max(entry.submitted, self._asked_at) + wait

    # -- running

    def step(self) -> list[ClientChannel]:
        """Take new requests and run what can run. Return the clients to wake."""
        now = time.monotonic_ns()
        self._drop_cancelled(now)
        alone = self._take_in(now)
        units = self._units
        full, rest = divmod(units, self._each)
        touched: list[ClientChannel] = []
        if rest and (alone or self._deadline(units) <= now):
            if self.policy.asks and not alone and self._ask(units, now):
                touched.append(self._open[-1].client)
            else:
                full += 1
                missing = self._each - rest
                logger.debug("%r pads a run with %d rows of zeros", self, missing)
        if full:
            self._run_open(min(full, self._most_runs), now)
        touched += self._release_ended(now)
        return list(dict.fromkeys(touched))

    def _take_in(self, now: int) -> bool:
        """Open requests until there are enough units for a step.

        Return True if the next request cannot run together with the open ones, so that
        the open ones need not wait.
        """
        limit = max(self.policy.max_rows, self._each)
        units = self._units
        for client in self._queue.next():
            while client.pending and units < limit:
                slot = client.channel.requests.try_read_lock()
                if slot < 0:
                    client.pending = 0
                    break
                at = client.channel.request_at(slot)
                request, rows, flags, _, submitted = REQUEST.unpack_from(
                    client.channel.view, at
                )
                slots = lock_all(client.channel.inputs, request)
                entry = OpenEntry(client, at, request, rows, submitted, slots)
                entry.waits = not flags & UNDELAYED
                outcome = cancelled_outcome(entry, now)
                if outcome is None and not self._fits(client, slots, bool(self._open)):
                    client.channel.requests.unlock_last()
                    unlock_all(client.channel.inputs, slots)
                    return True
                client.pending -= 1
                self._held.setdefault(client, deque()).append(entry)
                if outcome is not None:
                    _drop(entry, outcome)
                    continue
                if flags & FILLS_UP:
                    entry.rows = min(rows, -units % self._each)
                if entry.rows:
                    self._open.append(entry)
                    units += entry.rows
                else:
                    _drop(entry, DeviceOutcome.DONE)
        return False

    def _drop_cancelled(self, now: int) -> None:
        """Drop requests that are cancelled or past their deadline.

        If the policy says so, a cancelled request keeps its place. Its rows then help
        to fill a run, and its results are ignored. A request whose run will never be
        filled up is always dropped.
        """
        for entry in self._open:
            outcome = cancelled_outcome(entry, now)
            if outcome is None:
                continue
            kept = (
                outcome is DeviceOutcome.CANCELLED and not self.policy.drops_cancelled
            )
            if not kept or entry.client.link.gone or _leaves(entry):
                _drop(entry, outcome)
        self._forget_ended()

    def _ask(self, units: int, now: int) -> bool:
        """Ask the client for missing rows. Return whether that was possible."""
        last = self._open[-1]
        client = last.client
        self._asked_at = now
        completions = client.link.completions
        if completions.write_available < completions.capacity:
            return True  # the client has not read earlier messages, so do not ask twice
        slots = zip(self._names, last.slots, strict=True)
        name = next((name for name, slot in slots if slot >= 0), "")
        return client.completions.put(
            client.number,
            DeviceOutcome.NEEDS_ROWS,
            last.request,
            rows=-units % self._each,
            text=name,
        )

    def _run_open(self, runs: int, now: int) -> None:
        wanted = runs * self._each
        entries: list[OpenEntry] = []
        for entry in self._open:
            entries.append(entry)
            wanted -= entry.rows - entry.ran
            if wanted <= 0:
                break
        self._mark_in_use(len(entries))
        self._batch.begin(entries, entries[0].ran, runs)
        error = self._execute(now)
        if error is not None:
            self._isolate_failure(entries, error, now)
        if self.shares.is_weighted:
            self._queue.charge(entries, time.monotonic_ns() - now)
        self._forget_ended()

    def _mark_in_use(self, count: int) -> None:
        """Mark the first `count` open requests as running. The others still wait."""
        behind = dict.fromkeys(self._held, 0)
        for entry in islice(self._open, count, None):
            behind[entry.client] += 1
        for client, waiting in behind.items():
            client.channel.requests.mark_in_use(waiting)

    def _isolate_failure(
        self, entries: Sequence[OpenEntry], error: Exception, started: int
    ) -> None:
        """Isolate a failure as for any batch. Requests run again from their first unit,
        padded.
        """
        members: list[BatchEntry] = []
        for entry in entries:
            if not entry.ended:
                entry.ran, entry.parts = 0, {}
                members.append(entry)
        if members:
            isolate_failure(
                members,
                error,
                lambda group: self._again(group, started),
                lambda entry, why: self._fail(entry, why, started),
            )

    def _publish(self, batch: Batch, started: int, compute: int) -> None:
        entries = batch.entries
        if not batch.skip and batch.used == batch.rows:
            super()._publish(batch, started, compute)
            for entry in entries:
                entry.mark_answered()
            return
        values = batch.results()
        self.results.check(batch, values)
        first = 0
        for entry in entries:
            assert isinstance(entry, OpenEntry)
            units = min(entry.rows - entry.ran, batch.used - first)
            part = self.results.part(values, first, first + units)
            first += units
            entry.ran += units
            for index, value in part.items():
                # Copy the array, because the memory behind it may be released before it
                # is needed.
                entry.parts.setdefault(index, []).append(np.array(value))
            if entry.ran == entry.rows:
                whole = {i: self.results.join(i, p) for i, p in entry.parts.items()}
                self.results.publish_one(entry, whole)
                answer(entry, DeviceOutcome.DONE, started, compute, batch.used)

    # -- releasing

    def _forget_ended(self) -> None:
        if any(entry.ended for entry in self._open):
            self._open = deque(entry for entry in self._open if not entry.ended)

    def _release_ended(self, now: int) -> list[ClientChannel]:
        """Release the slots of the requests that have ended, in order. Return their
        channels.
        """
        touched = []
        for client, held in list(self._held.items()):
            requests, inputs = 0, [0] * len(self._names)
            while held and held[0].ended:
                entry = held.popleft()
                if entry.outcome is not None:
                    answer(entry, entry.outcome, now)
                requests += 1
                for index, slot in enumerate(entry.slots):
                    inputs[index] += slot >= 0
            if not held:
                del self._held[client]
            if requests:
                touched.append(client)
                client.channel.requests.read_complete(requests)
                for ring, count in zip(client.channel.inputs, inputs, strict=True):
                    if count:
                        ring.read_complete(count)
        return touched


def _leaves(entry: OpenEntry) -> bool:
    flags: int = REQUEST.unpack_from(entry.client.channel.view, entry.at)[2]
    return bool(flags & LEAVES)


def _drop(entry: OpenEntry, outcome: DeviceOutcome) -> None:
    entry.outcome = outcome
    entry.mark_answered()
