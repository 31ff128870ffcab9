"""Request bodies that stop coming: sending nothing does not hold a connection."""

from __future__ import annotations


class Stall:
    """How the body that a connection receives gets on, looked at every few seconds.

    The receiver counts them anyway, so this costs a request nothing.
    """

    __slots__ = ("_arrived", "_request", "_since")

    def __init__(self) -> None:
        self._request: object = None
        self._arrived = 0
        self._since = 0.0

    def stands_still(self, request: object, arrived: int, now: float) -> float:
        """Seconds for which no byte of this request's body has come, as far as seen.

        `arrived` is any number that changes when bytes come.
        """
        if request is not self._request or arrived != self._arrived:
            self._request, self._arrived, self._since = request, arrived, now
        return now - self._since

    def forget(self) -> None:
        """No body is being received."""
        self._request = None

    def __repr__(self) -> str:
        return f"<Stall, {self._arrived} when last seen>"
