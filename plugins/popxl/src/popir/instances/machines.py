"""Instances on several machines: MPI between machines, shared memory within each.

One instance of each machine speaks MPI. It copies the values that its machine needs
from the others into the shared memory. There all instances sum their slices, as within
one machine. So sums have the same bits in any layout.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from popir.dtypes import AnyDtype, Array
from popir.errors import RunError
from popir.instances.exchange import Instances, Span
from popir.instances.identity import Identity
from popir.instances.shared_memory import NOTE, InstanceMemory, create
from popir.instances.span import Piece, SharedSpan, arena_size, slices

#: Attempts before a wait for another machine sleeps, and the longest sleep in seconds.
_TRIES, _LONGEST = 2000, 0.0005
_FAREWELL = 1
#: Seconds after a farewell in which all earlier messages must have arrived.
_LAST = 1.0
#: Bytes at the start of a region for messages of instances on other machines.
FAR_NOTES = 1 << 18


def connection(this: Identity) -> Instances:
    """Connect the instances that an MPI launcher started.

    Raises RunError if mpi4py is not installed.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RunError(
            f"{this.count} instances were started by MPI, which needs mpi4py: "
            f"pip install 'popgate[mpi]' ({error})"
        ) from error
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (this.index, this.count):
        raise RunError(
            f"the environment has instance {this.index} of {this.count}, but "
            f"MPI has {world.rank} of {world.size}; mpi4py must use the MPI of "
            "the launcher"
        )
    _end_all_on_errors(world)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    here: list[int] = node.allgather(this.index)
    descriptor = create(len(here)) if node.rank == 0 else -1
    path: str = node.bcast(f"/proc/{os.getpid()}/fd/{descriptor}")
    memory = InstanceMemory(path, node.rank, len(here))
    node.Barrier()
    if descriptor >= 0:
        os.close(descriptor)
    if node.rank == 0:
        _remove_names()
    machines: list[int] = world.allgather(here[0])
    far = [index for index in range(this.count) if machines[index] != here[0]]
    messages = _Messages(world, far)
    opener = _Opener(messages, memory, this, here, machines)

    def leave() -> None:
        memory.leave([node.rank])
        messages.say_farewell()

    # Do both before MPI is finalized, which waits for all instances as well.
    atexit.register(messages.await_farewells)
    atexit.register(leave)
    return Instances(this, opener.opened, leave)


def _remove_names() -> None:
    """Remove the names of MPICH's shared memory after all of this machine have mapped
    it.

    MPICH leaves them behind if an instance is killed or ends all.
    """
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps}
    for path in paths:
        if path.startswith("/dev/shm/mpich_shm_"):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _end_all_on_errors(world: Any) -> None:
    """End all instances if this one ends with an exception, because MPI would wait for
    it.
    """
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        before(kind, error, trace)
        _abort(world, kind.__name__, 130 if kind is KeyboardInterrupt else 1)

    sys.excepthook = hook


def _abort(world: Any, why: str, code: int) -> None:
    sys.stdout.flush()
    sys.stderr.write(
        f"popdist: instance {world.rank} ended with {why}; the other instances were "
        "ended\n"
    )
    sys.stderr.flush()
    _await_readers()
    world.Abort(code)


def _await_readers() -> None:
    """Wait until the launcher has read the output, because MPI drops unread output."""
    end = time.monotonic() + _LAST
    for descriptor in (1, 2):
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            continue
        while any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))):
            if time.monotonic() > end:
                return
            time.sleep(_LONGEST)


class _Messages:
    """Messages between instances of different machines; `far`: all of the others."""

    def __init__(self, world: Any, far: Sequence[int]) -> None:
        self._world = world
        self._far = far
        self._farewell = np.zeros(1, np.uint8)
        self._sent: list[Any] = []

    def say_farewell(self) -> None:
        """Announce to all instances of other machines that this one sends no more.

        Idempotent.
        """
        if not self._sent:
            self._sent = [
                self._world.Isend(self._farewell, one, _FAREWELL) for one in self._far
            ]

    def await_farewells(self) -> None:
        """Wait until all instances of other machines have announced the same."""
        from mpi4py import MPI

        received = np.zeros(1, np.uint8)
        waiting = [*self._sent]
        waiting += [self._world.Irecv(received, one, _FAREWELL) for one in self._far]
        while not MPI.Request.Testall(waiting):
            time.sleep(_LONGEST)

    def swap(
        self, sent: Iterable[tuple[int, Array]], received: Iterable[tuple[int, Array]]
    ) -> None:
        """Send bytes to instances and receive bytes from instances, all at once."""
        from mpi4py import MPI

        sent, received = list(sent), list(received)
        waiting = [
            self._world.Irecv([into, MPI.BYTE], one, 0) for one, into in received
        ]
        waiting += [self._world.Isend([data, MPI.BYTE], one) for one, data in sent]
        tries, last = 0, float("inf")
        while not MPI.Request.Testall(waiting):
            tries += 1
            if tries > _TRIES:
                # Another machine may take long, and a wait of MPI would keep a core
                # busy.
                time.sleep(min(1e-6 * (tries - _TRIES), _LONGEST))
                for one, _ in received:
                    if self._world.Iprobe(one, _FAREWELL):
                        # Its earlier messages may still be in flight.
                        last = min(last, time.monotonic() + _LAST)
                        if time.monotonic() > last:
                            raise RunError(f"instance {one} has ended")


class _Opener:
    """Opens spans. here: the instances of this machine. machines: of each instance the
    first instance of its machine."""

    def __init__(
        self,
        messages: _Messages,
        memory: InstanceMemory,
        this: Identity,
        here: list[int],
        machines: list[int],
    ) -> None:
        self._messages = messages
        self._memory = memory
        self._this = this
        self._here = here
        self._machines = machines
        self._next = FAR_NOTES

    def opened(self, span: tuple[int, ...]) -> tuple[Span, int]:
        """Return a new span and the offset of this instance's arena in it."""
        by_machine: dict[int, list[int]] = {}
        for index in span:
            by_machine.setdefault(self._machines[index], []).append(index)
        machines = list(by_machine.values())
        rank = list(by_machine).index(self._machines[self._this.index])
        names = machines[rank]
        local = [self._here.index(i) for i in names]
        each = self._this.local_replicas
        slots, free = {}, each
        for number, members in enumerate(machines):
            for index in members:
                for replica in range(index * each, (index + 1) * each):
                    if number == rank:
                        slots[replica] = self._here.index(index), replica % each
                    else:
                        slots[replica] = local[0], free
                        free += 1
        offset, capacity = self._next, len(slots)
        self._next += arena_size(capacity)
        made = (
            SharedSpan(self._memory, local, names, offset, slots, capacity)
            if len(machines) == 1
            else MachinesSpan(
                self._messages, machines, self._memory, local, names, offset, slots
            )
        )
        return made, offset


class MachinesSpan(SharedSpan):
    """Instances of several machines; `machines`: those of each.

    The first instance of each machine speaks to the first instances of the others. Its
    arena has the slots of the replicas on other machines.
    """

    def __init__(
        self,
        messages: _Messages,
        machines: Sequence[Sequence[int]],
        memory: InstanceMemory,
        local: Sequence[int],
        names: Sequence[int],
        offset: int,
        slots: Mapping[int, tuple[int, int]],
    ) -> None:
        super().__init__(memory, local, names, offset, slots, len(slots))
        self._messages = messages
        self._by_machine = machines
        self._rank = machines.index(names)
        self._each = len(slots) // sum(map(len, machines))
        self._speaker = local[0]
        self._speaks = memory.index == local[0]
        self._far_notes = memory.view(local[0], 0, FAR_NOTES)

    def barrier(self) -> None:
        """Wait until all instances of the span are here."""
        self.agree(b"")
        self._meet()

    def agree(self, note: bytes) -> dict[int, bytes]:
        """Return the message of each instance of the span, after all have
        sent theirs.
        """
        notes = super().agree(note)
        places: dict[int, slice] = {}
        for members in self._by_machine:
            for index in members:
                start = NOTE * len(places)
                places[index] = slice(start, start + NOTE)
        if self._speaks:
            own = [np.frombuffer(each, np.uint8) for each in notes.values()]
            far = self._far_notes
            self._swap(
                lambda _: own, lambda n: [far[places[i]] for i in self._by_machine[n]]
            )
        self._meet()
        for index, place in places.items():
            if index not in notes:
                notes[index] = self._far_notes[place].tobytes()
        return notes

    def _cut(self, size: int) -> tuple[slice, list[tuple[int, slice]]]:
        machines = self._machines(size)
        mine, others = self._cut_here(machines.pop(self._rank))
        return mine, [*others, *((self._speaker, part) for part in machines)]

    def _machines(self, size: int) -> list[slice]:
        """Return the slice of a piece that each machine sums."""
        return slices(slice(0, size), len(self._by_machine))

    def _spread(self, replicas: Sequence[int], dtype: AnyDtype, piece: Piece) -> None:
        whole = slice(0, piece.size)
        self._meet()
        if self._speaks:
            self._swap(
                lambda _: self._slots_of(self._rank, replicas, dtype, piece, whole),
                lambda n: self._slots_of(n, replicas, dtype, piece, whole),
            )
        self._meet()

    def _pass(
        self,
        replicas: Sequence[int],
        groups: int,
        dtype: AnyDtype,
        values: Piece | None,
        totals: Piece | None,
    ) -> None:
        def passed(source: int, target: int) -> list[Array]:
            """Return the values that one machine sends to another."""
            found = []
            if values is not None:
                part = self._machines(values.size)[target]
                found += self._slots_of(source, replicas, dtype, values, part)
            if totals is not None:
                found += self._totals_of(source, groups, dtype, totals)
            return found

        self._meet()
        if self._speaks:
            self._swap(lambda n: passed(self._rank, n), lambda n: passed(n, self._rank))
        self._meet()

    def _slots_of(
        self,
        machine: int,
        replicas: Sequence[int],
        dtype: AnyDtype,
        piece: Piece,
        part: slice,
    ) -> list[Array]:
        """Return the values of the replicas of a machine, as bytes."""
        there = self._by_machine[machine]
        owned = [r for r in replicas if r // self._each in there]
        return [self._slot(r, dtype, piece)[part].view(np.uint8) for r in owned]

    def _totals_of(
        self, machine: int, groups: int, dtype: AnyDtype, piece: Piece
    ) -> list[Array]:
        """Return the slices that the instances of a machine summed, as bytes."""
        whole = self._machines(piece.size)[machine]
        if machine == self._rank:
            own, others = self._cut_here(whole)
            parts = [(self._speaker, own), *others]
        else:
            count = len(self._by_machine[machine])
            parts = [(self._speaker, part) for part in slices(whole, count)]
        return [
            self._total(member, group, dtype, piece)[part].view(np.uint8)
            for group in range(groups)
            for member, part in parts
        ]

    def _swap(
        self, sent: Callable[[int], list[Array]], received: Callable[[int], list[Array]]
    ) -> None:
        """Send the bytes `sent` to each other machine, and fill the arrays `received`
        from it.
        """
        others = [n for n in range(len(self._by_machine)) if n != self._rank]
        first = {n: self._by_machine[n][0] for n in others}
        self._messages.swap(
            [(first[n], data) for n in others for data in sent(n)],
            [(first[n], into) for n in others for into in received(n)],
        )
