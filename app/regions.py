"""Shared memory that requests may name, from a plugin of the group `popgate.regions`.

Everything here belongs to the event loop's thread, except `Region.read` and
`HeldRegions.put`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from engine import Tensor


class Extent(NamedTuple):
    """Place of a tensor's bytes in a shared memory region."""

    region: str
    offset: int
    byte_size: int


class Region(Protocol):
    """One registered part of a segment; `owner` is the key that registered it."""

    owner: str | None

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of the bytes there. Raises `InvalidRequest`."""


class HeldRegions(Protocol):
    """The places of a request's outputs, and all regions that the request uses."""

    def __contains__(self, output: str) -> bool: ...

    def put(self, output: str, tensor: Tensor) -> Mapping[str, str | int]:
        """Write an output to its place; return the parameters that state the place."""

    def release(self) -> None:
        """Release the regions. Does nothing the second time."""


class Regions(Protocol):
    """The regions that clients have registered."""

    def find(self, name: str) -> Region:
        """Return the region of that name, of any key. Raises `UnknownRegion`."""

    def hold(
        self,
        extents: Mapping[str, Extent] | None = None,
        read: Iterable[Region] = (),
        owner: str | None = None,
    ) -> HeldRegions:
        """Keep the extents of outputs, and the regions from which inputs were `read`,
        until the request with the key `owner` ends.
        """

    def unregister(self) -> None:
        """Forget all regions, each as soon as no request uses it any more."""
