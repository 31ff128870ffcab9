"""`Pools`: the threads of a gateway."""

from __future__ import annotations

from app.background import DaemonPool

# The most threads for devices; they start as needed. They attach devices, ping each
# device and bring it back. No such job may wait for a device that hangs.
DEVICE_THREADS = 2048


class Pools:
    """The threads of a gateway, in pools, so that slow work delays no other kind of
    work.

    Listing a folder does not wait for models that load. Loading does not wait for long
    compilations or downloads. Unloading waits for none of these.
    """

    def __init__(self, load_threads: int) -> None:
        self.device = DaemonPool(DEVICE_THREADS, "popgate-devices")
        self.load = DaemonPool(load_threads, "popgate-load")
        self.scan = DaemonPool(1, "popgate-scan")
        self.compile = DaemonPool(load_threads, "popgate-compile")
        self.unload = DaemonPool(load_threads, "popgate-unload")
        self.fetch = DaemonPool(load_threads, "popgate-fetch")
        self._all = (
            self.load, self.scan, self.compile, self.unload, self.fetch, self.device,
        )  # fmt: skip

    @property
    def is_busy(self) -> bool:
        """Return whether a thread is still busy."""
        return any(pool.is_busy for pool in self._all)

    def close(self) -> None:
        """End the threads after their present work, without waiting for them."""
        for pool in self._all:
            pool.close()
