"""Connection of the instances of a program."""

from __future__ import annotations

import atexit
import os

from popir.errors import RunError
from popir.instances.exchange import Instances, Span
from popir.instances.identity import LAUNCHER, Identity, identity
from popir.instances.shared_memory import InstanceMemory
from popir.instances.span import SharedSpan, arena_size

_connected: tuple[int, Instances] | None = None


def connect() -> Instances:
    """Return the instances of this program; the same object for the whole process.

    Raises RunError if they cannot be reached.
    """
    global _connected
    pid = os.getpid()
    if _connected is None:
        _connected = pid, _connection(identity())
        if LAUNCHER not in os.environ:
            # poprun marks its instances as ended, however they end.
            atexit.register(_connected[1].leave)
    if _connected[0] != pid:
        raise RunError(
            "a forked process cannot be an instance; start instances with poprun"
        )
    return _connected[1]


def is_connected() -> bool:
    """Return whether `connect` was called."""
    return _connected is not None


def _connection(this: Identity) -> Instances:
    if this.count > 1 and not this.memory:
        from popir.instances.machines import connection

        return connection(this)
    launcher = int(os.environ.get(LAUNCHER, "0") or 0)
    memory = InstanceMemory(this.memory, this.index, this.count, launcher)
    return Instances(
        this, Opener(memory, this).opened, lambda: memory.leave([this.index])
    )


class Opener:
    """Opens spans of instances of one machine, each with an arena of its own."""

    def __init__(self, memory: InstanceMemory, this: Identity) -> None:
        self._memory = memory
        self._replicas = this.local_replicas
        each = this.local_replicas
        self._slots = {r: (r // each, r % each) for r in range(this.replicas)}
        self._next = 0

    def opened(self, span: tuple[int, ...]) -> tuple[Span, int]:
        """Return a new span and the offset of this instance's arena in it."""
        offset = self._next
        self._next += arena_size(self._replicas)
        made = SharedSpan(self._memory, span, span, offset, self._slots, self._replicas)
        return made, offset
