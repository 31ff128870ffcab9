"""The memory that the instances of one machine share, and their way to wait.

The map of the bytes, for n instances (numbered on this machine)
-----------------------------------------------------------------
    64 * i             u32  bell     counts what instance i has said        instance i
    64 * i + 4         u32  left     1: instance i has gone                 i, launcher
    64 * (n + i)       u32[n]        arrivals of i at exchanges with each   instance i
    notes + 256 * i    256 bytes     what instance i is about to exchange   instance i
    REGION * (i + 1)   REGION bytes  values of instance i                   instance i

The memory is a memfd: it has no name and disappears with its last process. A region
takes only the written pages.

Waiting
-------
Two instances meet as often as one of them counts: the n-th exchange of i with j is the
n-th of j with i. An instance that arrives counts, rings its bell and sleeps on the
bells of those that it waits for. Each word has one writer, except that the launcher
speaks for an instance that has ended.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from popir.errors import RunError
from popir.instances.futex import check_machine, fence, wait, wake

#: Bytes of addresses for each instance; pages are taken when they are written.
REGION = 1 << 36
NOTE = 256
_LINE = 64
#: The most instances on one machine.
MOST = 256


def create(count: int) -> int:
    """Return the descriptor of new shared memory for `count` instances."""
    if not 0 < count <= MOST:
        raise RunError(f"{count} instances on one machine; expected from 1 to {MOST}")
    descriptor = os.memfd_create("popdist", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, REGION * (count + 1))
    return descriptor


class InstanceMemory:
    """The shared memory as instance `index` of `count` on this machine sees it.

    path: opens the memory. launcher: the process that ends all; 0: none.
    """

    def __init__(self, path: str, index: int, count: int, launcher: int = 0) -> None:
        check_machine()
        self.index = index
        self.count = count
        self._launcher = launcher
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise RunError(
                f"the memory of the other instances cannot be opened: {error}; "
                "start all instances with one poprun, which must still run"
            ) from error
        row = -(-4 * count // _LINE) * _LINE
        self._notes = _LINE * count + row * count
        size = -(-(self._notes + NOTE * count) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._control = mmap.mmap(self._descriptor, size)
        self._words = memoryview(self._control).cast("I")
        self._bytes = memoryview(self._control)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._control))
        self._row = row // 4
        self._counts = _LINE * count // 4

    def close(self) -> None:
        """Close the memory; views stay. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._words.release()
            self._bytes.release()
            self._control.close()

    # The values

    def view(self, index: int, offset: int, size: int) -> np.ndarray[Any, Any]:
        """Return bytes of the region of instance `index`."""
        if offset + size > REGION:
            raise RunError(f"instances cannot exchange {size} bytes at once")
        start = REGION * (index + 1) + offset
        page = start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._descriptor, size + page, offset=start - page)
        return np.frombuffer(mapped, np.uint8, size, page)

    def write_note(self, note: bytes) -> None:
        """Write a description of the next exchange of this instance."""
        start = self._notes + NOTE * self.index
        self._bytes[start : start + len(note)] = note

    def note(self, index: int) -> bytes:
        """Return the message of instance `index`."""
        start = self._notes + NOTE * index
        return bytes(self._bytes[start : start + NOTE])

    # Waiting

    def meet(self, others: Sequence[int]) -> None:
        """Wait until each of `others` has met this instance as often.

        Raises RunError if one of them has ended.
        """
        words, own = self._words, self._counts + self._row * self.index
        fence()
        for other in others:
            words[own + other] = (words[own + other] + 1) & 0xFFFFFFFF
        self._ring(self.index)
        for other in others:
            wanted = words[own + other]
            place = self._counts + self._row * other + self.index
            bell = other * _LINE // 4
            while True:
                heard = words[bell]
                fence()
                if (words[place] - wanted) & 0xFFFFFFFF < 0x80000000:
                    break
                if words[bell + 1]:
                    raise RunError(f"instance {other} has ended")
                if not wait(self._address + _LINE * other, heard):
                    self._check_launcher()
        fence()

    def leave(self, indexes: Iterable[int]) -> None:
        """Mark instances as ended, and wake those that wait for them."""
        for index in indexes:
            self._words[index * _LINE // 4 + 1] = 1
            self._ring(index)

    def _ring(self, index: int) -> None:
        bell = index * _LINE // 4
        self._words[bell] = (self._words[bell] + 1) & 0xFFFFFFFF
        wake(self._address + _LINE * index)

    def _check_launcher(self) -> None:
        if not self._launcher:
            return
        try:
            os.kill(self._launcher, 0)
        except ProcessLookupError:
            raise RunError("poprun, which started this instance, has ended") from None
