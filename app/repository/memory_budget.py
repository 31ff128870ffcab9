"""Limit of the memory of loaded models, and choice of the models to unload."""

from __future__ import annotations

from app.sizes import size_text


class MemoryBudget:
    """Bytes that models use, out of `limit` (0: no limit).

    This class only counts; the repository decides which model to unload. For the event
    loop's thread.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.used = 0

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes if they are free; return whether they were."""
        if self.limit and self.used + size > self.limit:
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        self.used -= size

    def correct(self, reserved: int, size: int) -> None:
        """Correct a size that was counted as `reserved` bytes to `size`."""
        self.used += size - reserved

    def __repr__(self) -> str:
        of = f" of {size_text(self.limit)}" if self.limit else ""
        return f"<MemoryBudget {size_text(self.used)}{of}>"
