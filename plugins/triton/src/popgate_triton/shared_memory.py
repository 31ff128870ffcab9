"""System shared memory: segments of clients on this machine, by registered names.

A client makes a POSIX segment and registers a part of it here under a name. Requests
then name places in it instead of sending data. The gateway trusts none of it. It never
maps a segment but reads and writes it by system calls. So if the owner shortens the
segment, that causes an error and no SIGBUS. Offsets and sizes are checked at
registration and at every use. Input is copied before it is validated, so it cannot
change in between.

Everything belongs to the event loop's thread, but large tensors are read and written
in another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.errors import InvalidRequest, UnknownRegion
from app.regions import Extent
from app.settings import Settings
from engine import Tensor

FOLDER = Path("/dev/shm")
MAX_REGIONS = 1024  # each is an open file
MAX_NAME = 255  # characters of a region's name, bytes of a key
_LARGEST = (1 << 63) - 1  # the largest offset of the kernel
# Segments of other programs: Triton's own, and POSIX semaphores, which are in the same
# folder.
_RESERVED = ("triton_python_backend_shm_region_", "sem.")
_ONCE = 1 << 30  # bytes of one system call (limit: 2 GiB)
_WRITTEN_ONCE = 1 << 22  # the event loop may wait for one of these


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """A region as it was registered; sizes are bytes."""

    name: str
    key: str
    offset: int
    byte_size: int


class SharedMemoryRegion:
    """One registered part of a segment.

    It stays until it is unregistered and the last request that uses it has ended. Then
    `on_end` is called. `owner` is the key that registered it: empty without a key, None
    on a server without keys. Other keys cannot use it.
    """

    def __init__(
        self,
        status: RegionStatus,
        file: int,
        on_end: Callable[[SharedMemoryRegion], None],
        *,
        writable: bool,
        owner: str | None = None,
    ) -> None:
        self.status = status
        self.owner = owner
        self.used_at = time.monotonic()
        self._on_end = on_end
        self._writable = writable
        self._file = file
        self._users = 0
        self._is_leaving = False
        self._open = threading.Lock()

    @property
    def in_use(self) -> bool:
        return self._users > 0

    def hold(self) -> None:
        """Keep it until `release`."""
        self._users += 1
        self.used_at = time.monotonic()

    def release(self) -> None:
        self._users -= 1
        self.used_at = time.monotonic()
        if self._is_leaving and not self._users:
            self._end()

    def retire(self) -> None:
        """End it once no request uses it."""
        self._is_leaving = True
        if not self._users:
            self._end()

    def _end(self) -> None:
        with self._open:
            os.close(self._file)
            self._file = -1
        self._on_end(self)

    def check(self, offset: int, size: int) -> None:
        """Refuse a place that is not within the region."""
        name, byte_size = self.status.name, self.status.byte_size
        if offset > byte_size or (offset == byte_size and size):
            msg = f"Invalid offset for shared memory region: '{name}'"
            raise InvalidRequest(f"{msg}: {offset}, it has {byte_size} bytes")
        if size > byte_size - offset:
            msg = f"Invalid offset + byte size for shared memory region: '{name}'"
            raise InvalidRequest(f"{msg}: {offset} + {size} of {byte_size} bytes")

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of the bytes there. Raises `InvalidRequest`."""
        self.check(offset, size)
        self.used_at = time.monotonic()
        start = self.status.offset + offset
        try:
            # Another thread may be here. Without the lock, the file could be closed
            # meanwhile and its number could refer to another file.
            with self._open:
                if size <= _ONCE:
                    data = os.pread(self._file, size, start)
                else:
                    data = self._read_long(start, size)
        except OSError as e:
            raise self._failed("read", e) from None
        if len(data) != size:
            msg = (
                f"shared memory region '{self.status.name}' was made shorter after it "
                "was registered"
            )
            raise InvalidRequest(f"{msg}: {len(data)} of {size} bytes are there")
        return data

    def _read_long(self, start: int, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            step = min(_ONCE, size - len(data))
            piece = os.pread(self._file, step, start + len(data))
            if not piece:
                break
            data += piece
        return bytes(data)

    def write(self, offset: int, tensor: Tensor) -> None:
        """Copy a tensor there. Raises `InvalidRequest`."""
        self.check(offset, tensor.nbytes)
        if not self._writable:
            msg = (
                f"shared memory region '{self.status.name}' is read-only for the server"
            )
            raise InvalidRequest(msg)
        start = self.status.offset + offset
        try:
            # Writing beyond the end would extend the segment.
            if os.fstat(self._file).st_size < start + tensor.nbytes:
                msg = (
                    f"shared memory region '{self.status.name}' was made shorter "
                    "after it was registered"
                )
                raise InvalidRequest(msg)
            for part in tensor.parts:
                left = memoryview(part).cast("B")
                while left:
                    with self._open:  # see `read`
                        written = os.pwrite(self._file, left[:_WRITTEN_ONCE], start)
                    start += written
                    left = left[written:]
        except OSError as e:
            raise self._failed("written", e) from None

    def _failed(self, what: str, e: OSError) -> InvalidRequest:
        name = self.status.name
        return InvalidRequest(
            f"shared memory region '{name}' cannot be {what}: {e.strerror}"
        )

    def __repr__(self) -> str:
        return f"<SharedMemoryRegion {self.status} users={self._users}>"


class HeldSharedMemory:
    """The places of a request's outputs, and all regions that the request uses.

    The regions are kept until `release`.
    """

    __slots__ = ("_extents", "_regions")

    def __init__(
        self,
        extents: dict[str, tuple[SharedMemoryRegion, Extent]],
        regions: Iterable[SharedMemoryRegion],
    ) -> None:
        self._extents = extents
        self._regions = tuple(regions)
        for region in self._regions:
            region.hold()

    def __contains__(self, output: str) -> bool:
        return output in self._extents

    def put(self, output: str, tensor: Tensor) -> Mapping[str, str | int]:
        """Write an output to its place; return the parameters that state the place."""
        region, extent = self._extents[output]
        if tensor.nbytes > extent.byte_size:
            msg = (
                f"shared memory size specified with the request for output '{output}' "
                f"({extent.byte_size} bytes) should be at least {tensor.nbytes} bytes "
                "to hold the results"
            )
            raise InvalidRequest(msg)
        region.write(extent.offset, tensor)
        return {
            "shared_memory_region": extent.region,
            "shared_memory_offset": extent.offset,
            "shared_memory_byte_size": tensor.nbytes,
        }

    def release(self) -> None:
        """Release the region. Does nothing the second time."""
        regions, self._regions, self._extents = self._regions, (), {}
        for region in regions:
            region.release()

    def __repr__(self) -> str:
        return f"<HeldSharedMemory {list(self._extents)}>"


class RegionTable:
    """The regions that clients have registered.

    A region that no request has used for `lease` seconds (0: never) is unregistered.
    `max_bytes` limits all regions together. Keys must begin with `prefix`. `later`
    calls a function after some seconds. Without `later`, leases end when the table is
    next used.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        lease: float = 0.0,
        prefix: str = "",
        folder: Path = FOLDER,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._lease = lease
        self._prefix = prefix.lstrip("/")  # as the names of segments
        self._folder = folder
        self._later = later
        self._waiting = False
        self._regions: dict[str, SharedMemoryRegion] = {}

    def register(self, status: RegionStatus, owner: str | None = None) -> None:
        """Open a part of a segment under a name, for requests with the key `owner`.
        Raises `InvalidRequest`."""
        self.sweep()
        name = status.name
        if name in self._regions:
            raise InvalidRequest(f"shared memory region '{name}' already in manager")
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            msg = f"the name of a region must have 1 to {MAX_NAME} printable characters"
            raise InvalidRequest(msg)
        self._check_size(status)
        with self._opened(status) as (file, writable):
            self._regions[name] = SharedMemoryRegion(
                status, file, self._forget, writable=writable, owner=owner
            )
        self._arm()

    def _forget(self, region: SharedMemoryRegion) -> None:
        del self._regions[region.status.name]

    def _check_size(self, status: RegionStatus) -> None:
        if status.byte_size + status.offset > _LARGEST:
            msg = (
                f"Integer overflow detected: byte_size ({status.byte_size}) + offset "
                f"({status.offset}) is no place in a file"
            )
            raise InvalidRequest(msg)
        if len(self._regions) >= MAX_REGIONS:
            msg = (
                f"the server holds {MAX_REGIONS} shared memory regions, which is the "
                "limit; unregister some"
            )
            raise InvalidRequest(msg)
        left = self._max_bytes - sum(r.status.byte_size for r in self)
        if status.byte_size > left:
            msg = (
                f"shared memory region '{status.name}' of {status.byte_size} bytes is "
                f"too large: {left} of {self._max_bytes} bytes are left "
                "(--shared-memory-limit)"
            )
            raise InvalidRequest(msg)

    @contextlib.contextmanager
    def _opened(self, status: RegionStatus) -> Iterator[tuple[int, bool]]:
        """Open the segment; yield it and whether it is writable.

        Close it after an error.
        """
        key = self._check_key(status)
        path = self._folder / key
        # The flags protect from links, and from devices or pipes that would block.
        flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            try:
                file, writable = os.open(path, os.O_RDWR | flags), True
            except OSError as e:
                if e.errno not in (errno.EACCES, errno.EPERM):
                    raise
                file, writable = os.open(path, os.O_RDONLY | flags), False
        except OSError:
            msg = f"Unable to open shared memory region: '{status.key:.300}'"
            raise InvalidRequest(msg) from None
        try:
            info = os.fstat(file)
            if not stat.S_ISREG(info.st_mode):
                msg = f"Unable to open shared memory region: '{status.key:.300}'"
                raise InvalidRequest(msg)
            if status.byte_size < 1 or status.offset + status.byte_size > info.st_size:
                msg = (
                    f"failed to register shared memory region '{status.name}': invalid "
                    f"args: offset {status.offset} + byte_size {status.byte_size} is "
                    f"not within the segment of {info.st_size} bytes"
                )
                raise InvalidRequest(msg)
            yield file, writable
        except BaseException:
            os.close(file)
            raise

    def _check_key(self, status: RegionStatus) -> str:
        """Return the file name of a key, after checking that it leads to no other
        place.
        """
        key = status.key.lstrip("/")
        for reserved in _RESERVED:
            if key.startswith(reserved):
                msg = (
                    f"cannot register shared memory region '{status.name}' with key "
                    f"'{status.key:.300}' as the key contains the reserved prefix "
                    f"'{reserved}'"
                )
                raise InvalidRequest(msg)
        if not key:
            msg = (
                f"cannot register shared memory region '{status.name}' - invalid shm "
                f"key '{status.key:.300}'"
            )
            raise InvalidRequest(msg)
        plain = key.isprintable() and "/" not in key and key[0] != "."
        if not plain or len(os.fsencode(key)) > MAX_NAME:
            msg = f"Unable to open shared memory region: '{status.key:.300}'"
            raise InvalidRequest(f"{msg} is not the name of a segment")
        if not key.startswith(self._prefix):
            msg = f"Unable to open shared memory region: '{status.key:.300}'"
            raise InvalidRequest(
                f"{msg}: keys must begin with '{self._prefix}' (--shared-memory-prefix)"
            )
        return key

    def unregister(self, name: str | None = None, owner: str | None = None) -> None:
        """Forget a region, or all, each as soon as no request uses it any more.

        With an `owner`, only regions of this key are forgotten. An unknown name is
        ignored.
        """
        for region in list(self):
            if name in (None, region.status.name) and _may_use(region, owner):
                region.retire()

    def status(
        self, name: str | None = None, owner: str | None = None
    ) -> list[RegionStatus]:
        """Return all regions, or one. With an `owner`, only regions of this key count.
        Raises `UnknownRegion`.
        """
        self.sweep()
        if name is None:
            return [region.status for region in self if _may_use(region, owner)]
        region = self._regions.get(name)
        if region is None or not _may_use(region, owner):
            raise UnknownRegion(name, "system ")
        return [region.status]

    def hold(
        self,
        extents: Mapping[str, Extent] | None = None,
        read: Iterable[SharedMemoryRegion] = (),
        owner: str | None = None,
    ) -> HeldSharedMemory:
        """Keep the extents of outputs, and the regions from which inputs were `read`,
        until the request with the key `owner` ends.

        Raises `UnknownRegion`, also for a region of another key, or `InvalidRequest`,
        and keeps nothing in that case. Data read from a region stays valid after the
        region has ended.
        """
        found = {}
        for output, extent in (extents or {}).items():
            region = self.find(extent.region)
            if not _may_use(region, owner):
                raise UnknownRegion(extent.region)
            region.check(extent.offset, extent.byte_size)
            found[output] = (region, extent)
        used = [region for region, _ in found.values()]
        for region in read:
            name = region.status.name
            if not _may_use(region, owner):
                raise UnknownRegion(name)
            if self._regions.get(name) is region:
                used.append(region)
        return HeldSharedMemory(found, dict.fromkeys(used))

    def find(self, name: str) -> SharedMemoryRegion:
        """Return the region of that name, of any key. Raises
        `UnknownRegion`.
        """
        region = self._regions.get(name)
        if region is None:
            raise UnknownRegion(name)
        return region

    def sweep(self) -> None:
        """Unregister the regions that were unused for the time of a lease."""
        if not self._lease:
            return
        oldest = time.monotonic() - self._lease
        for region in list(self):
            if region.used_at <= oldest and not region.in_use:
                region.retire()

    def _arm(self) -> None:
        """Check again later, as long as a lease of some region can end."""
        if self._lease and self._later is not None and not self._waiting:
            self._waiting = True
            self._later(self._lease / 2 + 0.1, self._look)

    def _look(self) -> None:
        self._waiting = False
        self.sweep()
        if self._regions:
            self._arm()

    def __iter__(self) -> Iterator[SharedMemoryRegion]:
        return iter(self._regions.values())

    def __repr__(self) -> str:
        return f"<RegionTable {list(self._regions)}>"


def _may_use(region: SharedMemoryRegion, owner: str | None) -> bool:
    return owner is None or region.owner == owner


def regions_of(settings: Settings) -> RegionTable:
    """Return the table of a server; an object of the group `popgate.regions`."""
    return RegionTable(
        max_bytes=settings.shared_memory_limit,
        lease=settings.shared_memory_lease,
        prefix=settings.shared_memory_prefix,
        later=lambda seconds, call: asyncio.get_running_loop().call_later(
            seconds, call
        ),
    )
