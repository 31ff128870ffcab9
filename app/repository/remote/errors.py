"""Errors of remote models. Messages are for the operator."""

from __future__ import annotations


class RemoteError(Exception):
    """A model elsewhere cannot be had."""


class SourceAway(RemoteError):
    """The source does not answer, or an answer broke off; a later attempt
    may succeed.
    """


class SourceChanged(RemoteError):
    """The content of the source differs from its listing."""


class FetchStopped(RemoteError):
    """The server ends."""
