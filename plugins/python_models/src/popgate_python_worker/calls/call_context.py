"""The context of a Python model's call: the requests for which the model calls another
model, and the options that it gives.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from engine.config import weighted
from engine.errors import DeadlineExceeded
from engine.transport.channel import REQUEST
from engine.worker.batch import RunningBatch

#: A timeout of more seconds is no limit: the requests end earlier.
_NO_LIMIT: Final = 1e9


class CallOptions(NamedTuple):
    """The options of a call, as authors give them to `ServerModel.call`."""

    timeout: float | None = None
    outputs: Sequence[str] | None = None
    parameters: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CallOptions:
        """Return the options, with numbers of NumPy as numbers of Python. Raises
        TypeError for others.
        """
        unknown = next((name for name in given if name not in cls._fields), None)
        if unknown is not None:
            known = ", ".join(cls._fields)
            raise TypeError(f"a call has no option {unknown!r}; it has {known}")
        found = cls(**given)
        if isinstance(found.outputs, str):
            raise TypeError("outputs of a call must be a list of names, got str")
        if not isinstance(found.parameters or {}, Mapping):
            kind = type(found.parameters).__name__
            raise TypeError(f"parameters of a call must be a mapping, got {kind}")
        plain = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in (found.parameters or {}).items()
        }
        return found._replace(parameters=plain)


class CallContext(NamedTuple):
    """The requests that the present run answers: their numbers, deadline and line. The
    deadline is the latest of theirs, or 0 if one of them has none. The line is a
    priority as in `ModelRunner.submit`.
    """

    requests: list[int]
    deadline_ns: int
    priority: int

    @classmethod
    def of(cls, batch: RunningBatch | None) -> CallContext:
        """Make the context of the run in progress; None if nothing runs."""
        found, lines = [], []
        with contextlib.suppress(ValueError):  # the run and its client have ended
            for entry in batch.entries if batch is not None else ():
                client = entry.client
                lines.append((client.priority, (client.weight, client.lane)))
                found.append(REQUEST.unpack_from(client.channel.view, entry.at))
        deadlines = [descriptor[3] for descriptor in found]
        last = max(deadlines) if deadlines and all(deadlines) else 0
        level = min((level for level, _ in lines), default=0)
        weight, lane = max((share for _, share in lines), default=(0, 0))
        line = weighted(level, weight, lane) if weight else level
        return cls([descriptor[0] for descriptor in found], last, line)

    def within(self, timeout: float | None) -> CallContext:
        """Return the context with at most this many seconds left; None for no other
        limit.

        Raises DeadlineExceeded if no time is left.
        """
        now, deadline = time.monotonic_ns(), self.deadline_ns
        if timeout is not None:
            end = now + int(min(float(timeout), _NO_LIMIT) * 1e9)
            deadline = min(deadline, end) if deadline else end
        if 0 < deadline < now:
            raise DeadlineExceeded()
        return self._replace(deadline_ns=deadline)
