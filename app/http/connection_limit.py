"""`ConnectionLimit`: how many connections a server may have."""

from __future__ import annotations

from app.observe.shared_totals import Total


class ConnectionLimit:
    """At most `most`: in this process, or, where there is a `total`, in all of them."""

    def __init__(self, most: int, total: Total | None = None) -> None:
        self._most = most
        self._total = total

    def excess(self, count: int) -> int:
        """How many connections are too many, now that this process has `count`."""
        total = self._total
        return (count if total is None else total.tell(count)) - self._most

    def __repr__(self) -> str:
        return f"<ConnectionLimit {self._most}, {self._total!r}>"
