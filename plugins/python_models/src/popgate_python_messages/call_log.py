"""Log of the calls that a device process made through its own channels. It is a ring of
records, which the owner reads and counts.

A record is written before the calling model goes on. So every received result is
counted, even if the process is killed immediately afterwards, because the owner then
reads the ring once more.

The map of the bytes
--------------------
    0        control block of the ring          (see ring_buffer.py)
    128      records of 96 bytes: number of the route, nanoseconds of all, of waiting,
             of running, rows of the call and of its batch (64 bits each), and the name
             of the error, if it failed (48 bytes, zeros behind it)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from engine.transport.ring_buffer import CONTROL_SIZE, RingCounters
from engine.transport.shared_memory import SharedMemory

_RECORD: Final = Struct("<6Q48s")
CAPACITY: Final = 4096
SIZE: Final = CONTROL_SIZE + CAPACITY * _RECORD.size
#: The writer notifies the owner after this many records.
_OFTEN: Final = CAPACITY // 8


class CallRecord(NamedTuple):
    """One call. `error` is the name of the error's class, padded with zeros. It is all
    zeros for a success.
    """

    route: int
    total_ns: int
    queue_ns: int = 0
    compute_ns: int = 0
    rows: int = 1
    batch_rows: int = 0
    error: bytes = b""


class CallLog:
    """The ring of the log. Any thread of one process writes, and one thread of the
    owner reads.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self._ring = RingCounters(memory.view[:CONTROL_SIZE], CAPACITY)
        self._lock = threading.Lock()
        self._reserved = 0

    @classmethod
    def create(cls) -> CallLog:
        return cls(SharedMemory.create("calls", SIZE))

    @classmethod
    def attach(cls, fd: int) -> CallLog:
        """Take over `fd`."""
        memory = SharedMemory.attach(fd, SIZE)
        memory.detach_fd()
        return cls(memory)

    def reserve(self) -> bool:
        """Reserve room for one record. Return whether there was room."""
        with self._lock:
            if self._ring.write_available <= self._reserved:
                return False
            self._reserved += 1
            return True

    def write(self, record: CallRecord) -> bool:
        """Write into the reserved room. Return whether the owner should read now."""
        with self._lock:
            self._reserved -= 1
            at = CONTROL_SIZE + self._ring.try_write_lock() * _RECORD.size
            _RECORD.pack_into(self.memory.view, at, *record)
            self._ring.write_complete()
            return self._ring.written % _OFTEN == 0

    def give_back(self) -> None:
        """Return the reserved room unused."""
        with self._lock:
            self._reserved -= 1

    def read(self) -> Iterator[CallRecord]:
        """Yield the records written since the last call, each once."""
        while (slot := self._ring.try_read_lock()) >= 0:
            at = CONTROL_SIZE + slot * _RECORD.size
            record = CallRecord._make(_RECORD.unpack_from(self.memory.view, at))
            self._ring.read_complete()
            yield record

    def close(self) -> None:
        self._ring.release()
        self.memory.close()

    def __repr__(self) -> str:
        return f"<CallLog {self._ring!r}>"
