"""`Admission`: the rows in flight on one line of a replica, and what they mean for the
next request.
"""

from __future__ import annotations

from time import monotonic_ns

from engine.devices.request import Request
from engine.errors import EngineError, QueueFull
from engine.runner.service_time import SELDOM, ServiceTime
from engine.runner.tracepoints import Tracepoints
from engine.transport.outcome import DONE, DeviceOutcome, error_of


class Admission:
    """Admission control of one line. The lock of the device guards it.

    At most `limit` requests are in flight on the line. `lines` are all lines of the
    replica once there are several. They share the list, and `service_time`.
    `priority` and `weight` are those of the line. `rows` are the rows in flight on it,
    without those of abandoned requests. A request without rows counts as one row.
    """

    __slots__ = (
        "_points",
        "limit",
        "lines",
        "name",
        "priority",
        "rows",
        "service_time",
        "weight",
    )

    def __init__(
        self,
        name: str,
        limit: int,
        service_time: ServiceTime,
        lines: list[Admission],
        priority: int,
        weight: int,
        points: Tracepoints | None,
    ) -> None:
        self.name = name
        self.limit = limit
        self.service_time = service_time
        self.lines = lines
        self.priority = priority
        self.weight = weight
        self._points = points
        self.rows = 0

    def rows_ahead(self) -> int:
        """Return the rows that run before a new request of this line. These are the
        rows of higher levels and of this line. Lines of the same level add as many rows
        as their weights allow meanwhile.
        """
        higher = beside = 0
        mine = weights = self.weight or 1
        for line in self.lines:
            if line.priority < self.priority:
                higher += line.rows
            elif line.priority == self.priority and line is not self and line.rows:
                beside += line.rows
                weights += line.weight or 1
        if beside:
            beside = min(beside, max(1, self.rows) * (weights - mine) // mine or 1)
        return higher + self.rows + beside

    def rows_in_flight(self) -> int:
        """Return the rows in flight on the replica."""
        if not self.lines:
            return self.rows
        return sum(line.rows for line in self.lines)

    def predict(self, rows: int, deadline_ns: int) -> int:
        """Return when the last of `rows` rows in flight is predicted to be done; 0 if
        there is ample time until the deadline. Raises DeadlineUnreachable.
        """
        now = monotonic_ns()
        left = deadline_ns - now
        if rows * self.service_time.longest_ns <= left:
            return 0
        return self.service_time.admit(self.name, rows, now, left)

    def full(self) -> QueueFull:
        """Return the error for a request beyond the limit."""
        higher = self.rows_ahead() - self.rows if self.priority > 1 else 0
        return QueueFull(
            f"the queue of {self.name!r} is full: {self.limit} waiting",
            self.service_time.room_ns(higher) / 1e9,
        )

    def learn(
        self, request: Request, outcome: int, text: str, failed: EngineError | None
    ) -> EngineError | None:
        """Learn from a completed request. Return its error: `failed`, or the error of
        its outcome.
        """
        service = self.service_time
        compute_ns, rows = request.compute_ns, request.batch_rows
        if outcome == DONE and compute_ns != service.seen:
            waiting = self.rows_in_flight() if self.lines else self.rows
            # If nothing waits, no estimate is needed, and only one batch in `SELDOM` is
            # measured. The batch's running time in nanoseconds serves as a random
            # number.
            if waiting > rows or service.is_new or compute_ns % SELDOM == 0:
                service.observe(rows, request.queue_ns, compute_ns, waiting)
            else:
                service.seen = compute_ns
        if request.predicted_ns:
            expired = outcome == DeviceOutcome.EXPIRED
            in_time = not expired and monotonic_ns() <= request.predicted_ns
            service.learn(met=in_time)
        if outcome != DONE:
            return error_of(outcome, text)
        if failed is None and request.began_ns and self._points is not None:
            self._points.record(request)
        return failed

    def learn_abandoned(
        self, outcome: int, queue_ns: int, compute_ns: int, rows: int
    ) -> None:
        """Learn from a completion whose request was abandoned.

        Its service time counts too, because abandoned requests show that a machine gets
        slower. A run that its deadline ended would have taken longer. A run that ended
        because its client has gone shows nothing.
        """
        service = self.service_time
        if compute_ns and compute_ns != service.seen:
            expired = outcome == DeviceOutcome.EXPIRED
            slower = expired and service.is_slower(rows, compute_ns)
            if slower or outcome == DONE:
                # These rows no longer count as in flight.
                in_flight = rows + self.rows_in_flight()
                service.observe(rows, queue_ns, compute_ns, in_flight)
        service.since = monotonic_ns()

    def __repr__(self) -> str:
        return f"<Admission of {self.name!r}, {self.rows} rows in flight>"
