"""Service-time estimate of a replica. It predicts when a request would be done
(admission control).

It learns from completions, separately for batches of about the same size (within a
power of two). A service time runs from the end of the batch before, or from the
request's arrival if the replica was idle. So it includes the device's work for other
models and clients in between.

An estimate is the sum over the waiting batches and the running one, less the time since
the last batch ended. The prediction adds twice the standard deviation of the sum, and a
safety factor that learns from past predictions. Each miss raises the factor, and each
hit lowers it a little. The ratio of the two makes three predictions in a thousand miss.
A machine slows down for all waiting requests at once, so misses come in groups, and
still 99 in 100 must be met. Caution costs little, because a longer queue keeps the
device no busier. Only the running batch and the next one keep it busy. They have a
separate factor, so that deadlines of a few batches do not leave the device idle. Before
the first measurement an estimate is 0, so nothing is refused on a guess.
"""

from __future__ import annotations

import math
import time

from engine.errors import DeadlineUnreachable

#: Weight of the newest batch in a mean. After four batches a change is mostly learned.
NEWEST = 0.25
#: If nothing waits, one batch in so many is measured (`ReplicaChannel.finish`).
SELDOM = 8
#: The initial, smallest and largest safety factor.
SAFETY, LEAST_SAFETY, MOST_SAFETY = 3.0, 1.25, 5.0
#: The largest safety factor of the running batch and the next one.
NEXT_SAFETY = 1.5
#: Multipliers of the factor after a missed and after a met prediction.
MISSED, MET = 1.08, 1.08 ** (-3 / 997)
#: The factor grows up to this many times `MOST_SAFETY`, so that many misses take longer
#: to forget.
REMEMBERED = 4.0
#: The time until a full queue has room: the value before a service time is known, and
#: the least value.
UNKNOWN_ROOM_NS = 1_000_000_000
MIN_ROOM_NS = 1_000_000


class ServiceTime:
    """The service times of one replica. The lock of its device guards them.

    `most` is the most rows that run together. `longest_ns` is more than any batch is
    expected to take. If that many nanoseconds are left for each waiting row, no
    prediction need be computed. `since` is when the last batch ended, or when the first
    waiting request was submitted (CLOCK_MONOTONIC nanoseconds). `seen` is the running
    time of the last measured batch, which distinguishes its completions from those of
    the next batch. `safety` is the factor for the waiting work beyond the next batch.
    The part of it above `MOST_SAFETY` only delays its decrease. `is_new` is set until
    something is measured. Without `measured`, nothing is ever measured and nothing is
    refused.
    """

    __slots__ = (
        "_fill",
        "_longest",
        "_measured",
        "_most",
        "_times",
        "is_new",
        "longest_ns",
        "safety",
        "seen",
        "since",
    )

    def __init__(self, most: int, *, measured: bool = True) -> None:
        self._measured = self.is_new = measured
        self._most = max(1, most)
        self._fill = float(self._most)
        self._times: dict[int, tuple[float, float]] = {}
        self.longest_ns = 0.0
        self._longest = 0
        self.safety = SAFETY
        self.since = 0
        self.seen = -1

    def observe(self, rows: int, queue_ns: int, compute_ns: int, waiting: int) -> None:
        """Record a batch that has run.

        `queue_ns` is the waiting time of one of its members, `waiting` the number of
        rows in flight, including its own.
        """
        self.seen = compute_ns
        if not self._measured:
            return
        rows = max(1, rows)
        self.is_new = False
        now = time.monotonic_ns()
        pause = now - compute_ns - self.since
        took = compute_ns + max(0, min(pause, queue_ns))
        self.since = now
        if waiting >= rows + self._most:
            # This batch is as full as batches get, because requests are not split to
            # fill one.
            self._fill += NEWEST * (rows - self._fill)
        size = rows.bit_length()
        before = self._times.get(size)
        if before is None:
            mean, variance = float(took), 0.0
        else:
            mean, variance = before
            off = took - mean
            mean += NEWEST * off
            variance = (1 - NEWEST) * (variance + NEWEST * off * off)
        self._times[size] = mean, variance
        longest = MOST_SAFETY * mean + 4 * math.sqrt(variance)
        if longest >= self.longest_ns:
            self.longest_ns, self._longest = longest, size
        elif size == self._longest:
            self._find_longest()

    def is_slower(self, rows: int, compute_ns: int) -> bool:
        """Return whether a cancelled batch had run for longer than its estimate."""
        return compute_ns > self._time_of(max(1, rows))[0] > 0

    def _find_longest(self) -> None:
        self.longest_ns = 0.0
        for size, (mean, variance) in self._times.items():
            longest = MOST_SAFETY * mean + 4 * math.sqrt(variance)
            if longest > self.longest_ns:
                self.longest_ns, self._longest = longest, size

    def learn(self, *, met: bool) -> None:
        """Adjust `safety` after a prediction was met or missed."""
        if met:
            self.safety = max(LEAST_SAFETY, self.safety * MET)
        else:
            self.safety = min(MOST_SAFETY * REMEMBERED, self.safety * MISSED)

    def completion_ns(self, rows: int, now: int) -> int:
        """Return when the last of `rows` waiting or running rows is predicted to be
        done, if nothing overtakes it (CLOCK_MONOTONIC nanoseconds).
        """
        work, spread = self._work(rows, now)
        first = min(work, self._next())
        safety = min(MOST_SAFETY, self.safety)
        sure = min(NEXT_SAFETY, safety) * first + safety * (work - first) + spread
        return now + int(sure)

    def admit(self, name: str, rows: int, now: int, left: int) -> int:
        """Return `completion_ns` for `rows` rows in the queue of the model `name`.

        Raises DeadlineUnreachable if that is more than `left` nanoseconds after `now`.
        """
        predicted = self.completion_ns(rows, now)
        late = predicted - now - left
        if late > 0:
            raise DeadlineUnreachable(
                f"the predicted completion is {late / 1e9:.3f} s after the deadline: "
                f"the queue of {name!r} needs more than the remaining "
                f"{max(0, left) / 1e9:.3f} s",
                (self.admission_ns(rows, left, now) - now) / 1e9,
            )
        return predicted

    def admission_ns(self, rows: int, left: int, now: int) -> int:
        """Return when such a request would be admitted if no other request came. It is
        admitted when `completion_ns` is at most `left` nanoseconds away.
        """
        work, spread = self._work(rows, now)
        first = self._next()
        safety = min(MOST_SAFETY, self.safety)
        factor = min(NEXT_SAFETY, safety)
        room = max(0.0, left - spread)
        allowed = min(first, room / factor)
        allowed += max(0.0, room - factor * first) / safety
        return now + int(max(0.0, work - allowed))

    def _work(self, rows: int, now: int) -> tuple[float, float]:
        """Return the time until this many rows are done, and twice its standard
        deviation, in nanoseconds.
        """
        full, rest = divmod(rows, max(1, round(self._fill)))
        first = total = spread = 0.0
        if rest:
            first, spread = self._time_of(rest)
            total = first
        if full:
            first, variance = self._time_of(round(self._fill))
            total += full * first
            spread += full * variance
        return max(0.0, total - self._ran(now, first)), 2 * math.sqrt(spread)

    def _next(self) -> float:
        """Return the service time of two full batches."""
        return 2 * self._time_of(round(self._fill))[0]

    def batch_end_ns(self, now: int) -> int:
        """Return when the next batch ends (CLOCK_MONOTONIC nanoseconds)."""
        mean, _ = self._time_of(round(self._fill))
        return now + int(mean - self._ran(now, mean))

    def room_ns(self, higher: int) -> int:
        """Return the time until a full queue has room, if `higher` rows of higher
        levels run first.
        """
        now = time.monotonic_ns()
        room = self.batch_end_ns(now) if self.seen >= 0 else now + UNKNOWN_ROOM_NS
        if higher > 0:
            room = max(room, self.completion_ns(higher, now))
        return max(MIN_ROOM_NS, room - now)

    def _ran(self, now: int, mean: float) -> float:
        """Return how long the present batch has run, at most the mean of a batch."""
        return min(float(now - self.since), mean)

    def _time_of(self, rows: int) -> tuple[float, float]:
        """Return mean and variance for a batch of `rows` rows, or of the nearest known
        size. Prefer a smaller size, because it takes no longer.
        """
        times, size = self._times, rows.bit_length()
        if size in times:
            return times[size]
        if not times:
            return 0.0, 0.0
        smaller = [known for known in times if known < size]
        return times[max(smaller) if smaller else min(times)]

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{1 << size - 1}+ rows {mean / 1e6:.2f} ms"
            for size, (mean, _) in sorted(self._times.items())
        )
        return f"<ServiceTime {shown or 'unknown'}>"
