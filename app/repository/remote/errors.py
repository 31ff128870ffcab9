"""What can go wrong with a model that lies elsewhere. Messages are for the operator."""

from __future__ import annotations


class RemoteError(Exception):
    """A model elsewhere cannot be had."""


class SourceAway(RemoteError):
    """Nobody answers, or an answer broke off: the same may succeed soon."""


class SourceChanged(RemoteError):
    """What is there is no longer what was listed."""


class FetchStopped(RemoteError):
    """The server ends."""
